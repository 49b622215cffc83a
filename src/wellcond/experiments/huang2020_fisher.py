"""Figures I and III of huang2020: the full Fisher matrix against the sub-Fisher of every layer, plain and BN.

MNIST, centre-cropped and resized to 12×12; MLPs of 8 and 4 layers with 24 units, LeCun initialisation, no biases (the
source's h = W x). Exact spectra from `examples` images: κ_p is finite up to a share of about 9·examples / P.

    python -m wellcond.experiments.huang2020_fisher [--data DIR] [--out docs/figures]
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from wellcond.curvature.fisher import Fisher
from wellcond.data import mnist
from wellcond.experiments.output import output_files, parser, write
from wellcond.layerwise.matrix_conditioning import Conditioning
from wellcond.models import mlp
from wellcond.models.mlp import Norm
from wellcond.problem.problem import Problem
from wellcond.report.style import COLOURS, new_figure
from wellcond.results import Row
from wellcond.results.quantities import FISHER
from wellcond.spectral.exact import block_spectra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARES = (0.2, 0.5, 0.8, 1.0)
DEPTHS = {"I": 8, "III": 4}
NORMS: dict[str, Norm] = {"plain": "none", "BN": "batch"}
Networks = dict[str, list[Row]]
"""Rows by network."""


def fisher_conditioning(depth: int, norm: Norm, *, data: str | None, examples: int = 640, units: int = 24) -> list[Row]:
    """λ_max, κ_p, rank and trace of the full Fisher matrix (layer "") and of each layer's, as rows."""
    x, y = mnist(data, size=12).tensors(dtype=torch.float64, flatten=True, count=examples)
    model = mlp([144, *[units] * (depth - 1), 10], norm=norm, init="lecun", bias=False, seed=0).double()
    problem = Problem(model, nn.CrossEntropyLoss(), (x, y), batchnorm="batch")
    weights = [name for name in problem.params if name.startswith("fc")]
    blocks = {"": weights} | {name.removesuffix(".weight"): [name] for name in weights}
    spectra = block_spectra(Fisher(problem, "model", layers=weights), blocks)
    return [
        row
        for layer, spectrum in spectra.items()
        for row in Conditioning.of(spectrum.values, SHARES).rows(layer, FISHER)
    ]


def draw(figures: dict[str, Networks]) -> Figure:
    """One row of panels per figure: λ_max and κ_p of F and of every F_k, plain beside BN."""
    picture = new_figure(13, 3.7 * len(figures))
    columns = {
        r"$\lambda_{\max}$": FISHER.lambda_max,
        r"$\kappa_{50\%}$": FISHER.kappa[0.5],
        r"$\kappa_{80\%}$": FISHER.kappa[0.8],
    }
    for line, (number, networks) in zip(picture.subplots(len(figures), 3), figures.items(), strict=True):
        for panel, (label, quantity) in zip(line, columns.items(), strict=True):
            for place, (network, rows) in enumerate(networks.items()):
                _draw_bars(panel, {row.layer: row.value for row in rows if row.quantity == quantity}, network, place)
            panel.set_ylabel(label)
        line[0].set_title(f"Figure {number}: {DEPTHS[number]}-layer MLP, 24 units, 12×12 MNIST", loc="left")
        line[0].legend(frameon=False)
    return picture


def _draw_bars(panel: Any, values: dict[str, float], network: str, place: int) -> None:
    """Bars on a log axis; an infinite condition number is a hatched bar to the top, not a gap."""
    finite = [value for value in values.values() if value != float("inf")]
    top = 10 * max([*finite, panel.get_ylim()[1] if panel.containers else 0.0, 1e-300])
    for i, value in enumerate(values.values()):
        is_infinite = value == float("inf")
        panel.bar(
            i - 0.2 + 0.4 * place, top if is_infinite else value, 0.4, edgecolor=COLOURS[place], log=True,
            color="none" if is_infinite else COLOURS[place], hatch="//" if is_infinite else None,
            label=network if i == 0 else None,
        )  # fmt: skip
    labels = [layer.replace("fc", "$F_{") + "}$" if layer else "full $F$" for layer in values]
    panel.set_xticks(range(len(labels)), labels)
    panel.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Compute both figures and write the picture and the numbers."""
    options = parser(__doc__, data="MNIST").parse_args()
    files = output_files(options.out, "huang2020_figures_1_3")
    figures: dict[str, Networks] = {number: {} for number in DEPTHS}
    for number, depth in DEPTHS.items():
        for network, norm in NORMS.items():
            begin = time.perf_counter()
            figures[number][network] = fisher_conditioning(depth, norm, data=options.data)
            print(f"figure {number}, {network}: {time.perf_counter() - begin:.1f} s", flush=True)
    numbers = {
        number: {
            network: {f"{row.layer or 'full'} {row.quantity}": row.value for row in rows}
            for network, rows in networks.items()
        }
        for number, networks in figures.items()
    }
    write(files, draw(figures), numbers)


if __name__ == "__main__":
    main()
