"""Pictures of learning rates that were tried, and of those that were predicted."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from subjects import legend

from wellcond.errors import OutputError
from wellcond.learning_rate.meanfield import predict
from wellcond.learning_rate.race.horizon import Choice
from wellcond.learning_rate.race.outcome import Race
from wellcond.report.figures.rates import race_figure
from wellcond.results.run import Run

pytest.importorskip("matplotlib")


def test_a_race_is_drawn_with_its_limits_and_crosses_for_divergence() -> None:
    runs = {0.1: Run([3.0, 2.0]), 1.0: Run([3.0, 2.0, 1.0, 1.0]), 10.0: Run([3.0], diverged_at=2)}
    race = Race(runs, Choice(1.0, 0.5, 2.0), steps=20, own=0.1, steps_taken=7)
    figure = race_figure(race, {"measured": 2.0, "none": math.inf})
    over_steps, over_rates = figure.axes
    assert [list(line.get_ydata()) for line in over_steps.get_lines()] == [[3, 2], [3, 2, 1, 1], [3]]
    assert [list(line.get_xdata()) for line in over_rates.get_lines() if line.get_marker() == "x"] == [[10.0]]
    assert legend(figure) == ["after 2 steps", "after 4 steps", "measured: 2", "for 20 steps: 1"]


def test_bars_are_the_terms_of_a_prediction_and_their_shares(tmp_path: Path) -> None:
    prediction = predict("conv 1x28x28 30-60-90 k3 s2 10", variant="detached")
    assert prediction.save(tmp_path / "bars.png").read_bytes()[:4] == b"\x89PNG"
    axes = prediction.figure().axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([layer.term for layer in prediction.layers], rel=1e-12)
    assert [text.get_text() for text in axes.texts] == ["0 %", "16 %", "44 %", "40 %"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["conv1", "conv2", "conv3", "head"]
    assert "detached" in axes.get_title(loc="left")
    unlimited = predict("fc 10-20-20-2 tanh").figure().axes[0]
    assert "∞" in unlimited.get_title(loc="left")
    assert {text.get_text() for text in unlimited.texts} == {""}


def test_layers_of_a_grid_have_no_picture(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="one network"):
        predict("fc 10-20-2", torch.tensor([1.0, 2.0])).save(tmp_path / "bars.png")
    assert not list(tmp_path.iterdir())
