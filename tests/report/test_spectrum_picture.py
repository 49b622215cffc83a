from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from zoo import normal

from wellcond.local.marchenko_pastur import MarchenkoPastur, marchenko_pastur
from wellcond.results.files import OutputError
from wellcond.spectral.exact import Spectrum

spectra = pytest.importorskip("wellcond.report.spectra")


def measured(rows: int, columns: int) -> Tensor:
    w = normal(rows, columns)
    return torch.linalg.eigvalsh(w.T @ w / rows)


@dataclass
class Panel:
    """What is drawn in one panel. edges, heights: of the bars. x, density: of the law. top: upper end of the axis."""

    edges: Tensor
    heights: Tensor
    x: Tensor
    density: Tensor
    legend: list[str]
    top: float

    @classmethod
    def of(cls, values: Tensor, law: MarchenkoPastur) -> Panel:
        axes = spectra.Figure().subplots()
        spectra._draw(axes, values, law)
        (stairs,), (line,) = axes.patches, axes.lines
        heights, edges, _ = stairs.get_data()
        numbers = [torch.as_tensor(part) for part in (edges, heights, line.get_xdata(), line.get_ydata())]
        return cls(*numbers, [text.get_text() for text in axes.get_legend().get_texts()], axes.get_ylim()[1])


def test_panels_for_few_as_many_and_more_rows_than_columns_are_written(tmp_path: Path) -> None:
    panels = {f"c = {c}": (measured(int(c * 80), 80), marchenko_pastur(c)) for c in (0.25, 1.0, 4.0)}
    panels["wrapped"] = (Spectrum(measured(20, 80), "dense"), marchenko_pastur(0.25))
    path = spectra.save_spectrum_png(panels, tmp_path / "spectra.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
def test_the_areas_of_bars_and_law_are_the_share_of_eigenvalues_away_from_zero(c: float) -> None:
    panel = Panel.of(measured(int(c * 80), 80), marchenko_pastur(c))
    assert float((panel.heights * panel.edges.diff()).sum()) == pytest.approx(min(1, c), rel=1e-12)
    assert float(torch.trapezoid(panel.density, panel.x)) == pytest.approx(min(1, c), rel=0.01)
    assert (float(panel.x.min()), float(panel.x.max())) == pytest.approx(marchenko_pastur(c).support, abs=1e-3)


def test_the_legend_says_what_is_at_zero() -> None:
    assert Panel.of(measured(20, 80), marchenko_pastur(0.25)).legend == [
        "measured, and 75 % at 0",
        "law, and 75 % at 0",
    ]
    assert Panel.of(measured(160, 80), marchenko_pastur(2.0)).legend == ["measured", "law"]


def test_the_title_says_the_distance_and_what_is_critical() -> None:
    law = marchenko_pastur(4.0)
    assert spectra._verdict(torch.zeros(100), law) == "Kolmogorov distance 1; critical at 1 %: 0.16"


@pytest.mark.parametrize("factor", [1, 1000])
def test_every_bar_is_inside_its_panel_also_where_the_law_is_elsewhere(factor: float) -> None:
    panel = Panel.of(factor * measured(320, 80), marchenko_pastur(4.0))
    assert float(panel.heights.max()) < panel.top < 2 * float(panel.heights.max())
    assert float(panel.heights.sum() * panel.edges.diff()[0]) == pytest.approx(1, rel=1e-12)


def test_a_spectrum_of_zeros_is_drawn_as_no_bars() -> None:
    panel = Panel.of(torch.zeros(5, dtype=torch.float64), marchenko_pastur(0.25))
    assert not panel.heights.any()
    assert panel.legend[0] == "measured, and 100 % at 0"
    assert panel.top > 0


def test_a_path_that_cannot_be_written_and_no_panels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        spectra.save_spectrum_png({"one": (torch.ones(3), marchenko_pastur(1.0))}, tmp_path / "missing" / "a.png")
    with pytest.raises(ValueError, match="panels is empty"):
        spectra.save_spectrum_png({}, tmp_path / "a.png")
