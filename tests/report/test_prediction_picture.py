"""Pictures of predictions show what the predictions say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from wellcond.meanfield import predict
from wellcond.results.files import OutputError

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from wellcond.report import prediction as pictures

PNG = b"\x89PNG"


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    figures: list[Figure] = []
    save = pictures.save_figure

    def keep(figure: Figure, path: Any) -> Path:
        figures.append(figure)
        return save(figure, path)

    monkeypatch.setattr(pictures, "save_figure", keep)
    return figures


def test_figure_1_has_a_line_for_every_variant_in_every_panel(tmp_path: Path, drawn: list[Figure]) -> None:
    gammas = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    path = pictures.save_figure_1(tmp_path / "figure.png", gammas=gammas)
    assert path.read_bytes()[:4] == PNG
    dense, rates, convolutional, _ = drawn[0].axes
    for axes in drawn[0].axes:
        assert [line.get_label() for line in axes.lines] == list(pictures.LINES)
        assert axes.get_yscale() == "log"
    trained, constant, printed, without, _ = (line.get_ydata() for line in dense.lines)
    assert trained[1] == pytest.approx(1000 / 6.283185307179586, rel=1e-9)
    assert [constant[1], printed[1], without[1]] == pytest.approx([361.5, 230, 2234], rel=1e-2)
    assert without[0] == without[2]
    assert rates.lines[0].get_ydata() == pytest.approx(3.8 / trained, rel=1e-12)
    assert convolutional.lines[2].get_ydata()[1] == pytest.approx(6704, rel=1e-3)


def test_figure_1_of_a_network_of_ones_own(tmp_path: Path, drawn: list[Figure]) -> None:
    gammas = torch.tensor([0.5, 1.0])
    pictures.save_figure_1(tmp_path / "figure.png", {"small": "fc 10-20-2 tanh sigma_b2=1"}, gammas, momentum=0.0)
    assert len(drawn[0].axes) == 2
    assert drawn[0].axes[0].get_title(loc="left").startswith("small")


def test_bars_are_the_terms_and_their_shares(tmp_path: Path, drawn: list[Figure]) -> None:
    prediction = predict("conv 1x28x28 30-60-90 k3 s2 10", variant="detached")
    assert pictures.save_prediction(prediction, tmp_path / "bars.png").read_bytes()[:4] == PNG
    axes = drawn[0].axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == pytest.approx([layer.term for layer in prediction.layers], rel=1e-12)
    assert [text.get_text() for text in axes.texts] == ["0 %", "16 %", "44 %", "40 %"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["conv1", "conv2", "conv3", "head"]
    assert "detached" in axes.get_title(loc="left")


def test_a_network_that_nothing_limits_has_bars_without_shares(tmp_path: Path, drawn: list[Figure]) -> None:
    pictures.save_prediction(predict("fc 10-20-20-2 tanh"), tmp_path / "bars.png")
    assert "∞" in drawn[0].axes[0].get_title(loc="left")


def test_layers_of_a_grid_have_no_picture(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one network"):
        pictures.save_prediction(predict("fc 10-20-2", torch.tensor([1.0, 2.0])), tmp_path / "bars.png")


def test_a_path_that_cannot_be_written_is_refused_before_anything_is_drawn(drawn: list[Figure]) -> None:
    with pytest.raises(OutputError):
        pictures.save_figure_1("/no/such/folder/figure.png")
    assert drawn == []
