"""Pictures of spectral densities, and of spectra over the Marchenko-Pastur law."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from subjects import density, drawn
from torch import Tensor
from zoo import normal

from wellcond.curvature.spectra.exact import Spectrum
from wellcond.measurements.blocks.marchenko_pastur import marchenko_pastur
from wellcond.report.figures.spectra import density_figure

pytest.importorskip("matplotlib")


def measured(c: float) -> Tensor:
    """The eigenvalues of WᵀW/n for random W with 80 columns and 80 c rows."""
    w = normal(int(80 * c), 80)
    return torch.linalg.eigvalsh(w.T @ w / len(w))


def panel(values: Tensor | Spectrum, c: float) -> tuple[Any, Tensor, Tensor, list[str]]:
    """The axes; the heights and the edges of the bars; the legend."""
    (axes,) = marchenko_pastur(c).figure(values).axes
    heights, edges, _ = axes.patches[0].get_data()
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    return axes, torch.as_tensor(heights), torch.as_tensor(edges), legend


def test_densities_are_drawn_six_decades_deep_in_their_bands() -> None:
    (axes,) = density_figure({"a": density(4.0, 1.0, 0.0, error=(0.5, math.nan, 0.1))}).axes
    assert drawn(axes) == {"a": ([0.0, 1.0, 2.0], [4.0, 1.0, 0.0])}
    assert axes.get_ylim() == pytest.approx((4e-6, 8.0))
    corners = {tuple(map(float, corner)) for corner in axes.collections[0].get_paths()[0].vertices}
    assert {(0.0, 3.0), (0.0, 5.0), (1.0, 1.0)} <= corners


@pytest.mark.parametrize("c", [0.25, 1.0, 4.0], ids=["few_rows", "square", "many_rows"])
def test_areas_of_bars_and_law_are_the_share_of_nonzero_eigenvalues(c: float, tmp_path: Path) -> None:
    law = marchenko_pastur(c)
    assert law.save(tmp_path / "law.png").read_bytes().startswith(b"\x89PNG")
    (alone,) = law.figure().axes
    assert (len(alone.patches), len(alone.lines)) == (0, 1)
    axes, heights, edges, legend = panel(Spectrum(measured(c), "dense"), c)
    assert (len(axes.patches), len(axes.lines)) == (1, 1)
    x, density = (torch.as_tensor(part) for part in axes.lines[0].get_data())
    assert float((heights * edges.diff()).sum()) == pytest.approx(min(1, c), rel=1e-12)
    assert float(torch.trapezoid(density, x)) == pytest.approx(min(1, c), rel=0.01)
    assert (float(x.min()), float(x.max())) == pytest.approx(law.support, abs=1e-3)
    at_zero = ", and 75 % at 0" if c < 1 else ""
    assert legend == [f"measured{at_zero}", f"law{at_zero}"]


@pytest.mark.parametrize("factor", [1, 1000])
def test_every_bar_is_inside_its_panel_even_far_from_the_law(factor: float) -> None:
    axes, heights, edges, _ = panel(factor * measured(4.0), 4.0)
    assert float(heights.max()) < axes.get_ylim()[1] < 2 * float(heights.max())
    assert float(heights.sum() * edges.diff()[0]) == pytest.approx(1, rel=1e-12)


def test_a_spectrum_of_zeros_has_no_bars_and_its_distance_as_title() -> None:
    axes, heights, _, legend = panel(torch.zeros(100, dtype=torch.float64), 4.0)
    assert not heights.any()
    assert legend[0] == "measured, and 100 % at 0"
    assert axes.get_ylim()[1] > 0
    assert axes.get_title(loc="left") == (
        "Marchenko-Pastur, c = 4, σ = 1\nKolmogorov distance 1; critical at 1 %: 0.16"
    )
