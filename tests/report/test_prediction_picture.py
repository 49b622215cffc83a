"""Pictures of predictions show what the predictions say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from wellcond.errors import OutputError
from wellcond.meanfield import predict
from wellcond.report.prediction import gamma_figure

pytest.importorskip("matplotlib")


def test_bars_are_the_terms_and_their_shares(tmp_path: Path) -> None:
    prediction = predict("conv 1x28x28 30-60-90 k3 s2 10", variant="detached")
    assert prediction.save(tmp_path / "bars.png").read_bytes()[:4] == b"\x89PNG"
    axes = prediction.figure().axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([layer.term for layer in prediction.layers], rel=1e-12)
    assert [text.get_text() for text in axes.texts] == ["0 %", "16 %", "44 %", "40 %"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["conv1", "conv2", "conv3", "head"]
    assert "detached" in axes.get_title(loc="left")


def test_a_network_that_nothing_limits_has_bars_without_shares() -> None:
    assert "∞" in predict("fc 10-20-20-2 tanh").figure().axes[0].get_title(loc="left")


def test_layers_of_a_grid_have_no_picture(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="one network"):
        predict("fc 10-20-2", torch.tensor([1.0, 2.0])).save(tmp_path / "bars.png")
    assert not list(tmp_path.iterdir())


def test_every_network_has_a_panel_of_lambda_max_and_one_of_the_rate() -> None:
    figure = gamma_figure([0.5, 1.0], {"small": {"as trained": ([1.0, 4.0], [2.0, 0.5])}})
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["small: largest eigenvalue λmax", "small: largest rate η*"]
    assert [list(axes.lines[0].get_ydata()) for axes in figure.axes] == [[1.0, 4.0], [2.0, 0.5]]
