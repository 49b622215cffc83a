"""Pictures of learning rates that were tried, and of those that were predicted."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from subjects import legend

from wellcond.errors import OutputError
from wellcond.meanfield import predict
from wellcond.report.rates import rates_figure

pytest.importorskip("matplotlib")


def test_rates_are_drawn_with_their_limits_and_what_diverged_is_crossed() -> None:
    trial = SimpleNamespace(
        rates=torch.tensor([0.1, 1.0, 10.0]),
        final=torch.tensor([2.0, 1.0, math.nan]),
        diverged=torch.tensor([False, False, True]),
        loss=3.0,
        steps=20,
    )
    figure = rates_figure(trial, {"measured": 2.0, "none": math.inf})
    (axes,) = figure.axes
    assert list(axes.get_lines()[0].get_ydata()) == [2.0, 1.0]
    assert [list(line.get_xdata()) for line in axes.get_lines() if line.get_marker() == "x"] == [[10.0]]
    assert legend(figure) == ["before the first step", "diverged", "measured: 2"]
    assert axes.get_ylabel() == "loss after 20 steps"


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
