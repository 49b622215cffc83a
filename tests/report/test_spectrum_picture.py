from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from zoo import normal

from wellcond.local.marchenko_pastur import MarchenkoPastur, marchenko_pastur
from wellcond.report.spectra import spectra_figure
from wellcond.results.result import picture
from wellcond.spectral.exact import Spectrum

pytest.importorskip("matplotlib")


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
    title: str
    top: float

    @classmethod
    def of(cls, values: Tensor, law: MarchenkoPastur) -> Panel:
        (axes,) = law.figure(values).axes
        (stairs,), (line,) = axes.patches, axes.lines
        heights, edges, _ = stairs.get_data()
        numbers = [torch.as_tensor(part) for part in (edges, heights, line.get_xdata(), line.get_ydata())]
        legend = [text.get_text() for text in axes.get_legend().get_texts()]
        return cls(*numbers, legend, axes.get_title(loc="left"), axes.get_ylim()[1])


def test_panels_for_few_as_many_and_more_rows_than_columns_are_drawn_side_by_side() -> None:
    figure = spectra_figure({f"c = {c}": (measured(int(c * 80), 80), marchenko_pastur(c)) for c in (0.25, 1.0, 4.0)})
    titles = [axes.get_title(loc="left").partition("\n")[0] for axes in figure.axes]
    assert titles == ["c = 0.25", "c = 1.0", "c = 4.0"]
    assert picture(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
def test_a_law_is_drawn_with_and_without_a_spectrum(c: float, tmp_path: Path) -> None:
    law = marchenko_pastur(c)
    assert law.save(tmp_path / "law.png").read_bytes().startswith(b"\x89PNG")
    (alone,) = law.figure().axes
    (spectrum,) = law.figure(Spectrum(measured(int(80 * c), 80), "dense")).axes
    assert (len(alone.patches), len(alone.lines)) == (0, 1)
    assert (len(spectrum.patches), len(spectrum.lines)) == (1, 1)


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
def test_the_areas_of_bars_and_law_are_the_share_of_eigenvalues_away_from_zero(c: float) -> None:
    panel = Panel.of(measured(int(c * 80), 80), marchenko_pastur(c))
    assert float((panel.heights * panel.edges.diff()).sum()) == pytest.approx(min(1, c), rel=1e-12)
    assert float(torch.trapezoid(panel.density, panel.x)) == pytest.approx(min(1, c), rel=0.01)
    assert (float(panel.x.min()), float(panel.x.max())) == pytest.approx(marchenko_pastur(c).support, abs=1e-3)


def test_the_legend_gives_the_shares_at_zero() -> None:
    few_rows = Panel.of(measured(20, 80), marchenko_pastur(0.25))
    assert few_rows.legend == ["measured, and 75 % at 0", "law, and 75 % at 0"]
    assert Panel.of(measured(160, 80), marchenko_pastur(2.0)).legend == ["measured", "law"]


def test_the_title_gives_the_law_the_distance_and_what_is_critical() -> None:
    assert Panel.of(torch.zeros(100), marchenko_pastur(4.0)).title == (
        "Marchenko-Pastur, c = 4, σ = 1\nKolmogorov distance 1; critical at 1 %: 0.16"
    )


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


def test_no_panels_are_refused() -> None:
    with pytest.raises(ValueError, match="panels is empty"):
        spectra_figure({})
