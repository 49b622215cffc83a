"""Figures I to IV of huang2020: the whole Fisher matrix F (or M) and that of every layer, plain and with BN.

M is the Fisher matrix with the labels of the data in place of the model's own. Both spectra are exact. κ_p of a matrix
of side P is finite from p·P gradients on: an image gives 9 to F, and one to M.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from wellcond.curvature.fisher import Fisher
from wellcond.curvature.kronecker.matrix_conditioning import Conditioning
from wellcond.curvature.spectra.exact import block_spectra
from wellcond.problem.problem import Problem
from wellcond.report.figures.style import COLORS, LogScale, legend_below
from wellcond.results import Row
from wellcond.results.quantities import FISHER, GRADIENT_NORM, HESSIAN
from wellcond_papers.data.load import load
from wellcond_papers.experiments.claims import Claim
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.models import mlp
from wellcond_papers.papers.huang2020.fisher_claims import (
    MATRICES,
    NORMS,
    SHARES,
    WITHOUT_A_WORD,
    greater_with_bn,
    layers_agree,
    layers_are_better,
    matrices_agree,
    whole_is_better,
)
from wellcond_papers.papers.huang2020.sub_hessian import (
    has_negative_eigenvalues,
    indicates_the_gradient,
    is_fisher_without_bn,
    sub_hessians,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = {
    r"$\lambda_{\max}$": FISHER.lambda_max,
    r"$\kappa_{50\%}$": FISHER.kappa[0.5],
    r"$\kappa_{80\%}$": FISHER.kappa[0.8],
}
LABELS: dict[str, str | None] = {"F": "model", "M": "data", "H": None}
"""Whose labels give the gradients of a matrix; the Hessian has no such choice."""
SIDE = 40_000
"""The largest side of a matrix. The wider of its factors then may take 51 GB; at 10 000 images it takes 6."""
DEPARTURES = (
    "The source does not say how many images its matrices are made of, nor how BN takes its statistics: here over the "
    "images of one `batch`, with gradients through them.",
    "An image gives 9 gradients to F and one to M. A full matrix has one row per weight, 7152 with 8 layers, 4848 with "
    "4 and 8136 with 36 units: with fewer gradients than a few times that many, κ_80% shows the sample as well.",
    "κ_100% is left out: with ReLU and with BN these matrices are singular.",
    "The matrices are those of the layers' weights; gains and shifts of BN are left out.",
)
ONLY_WITH_BN = (
    "They have with BN, in all layers but the last, after which there is no norm. A rectifier network without BN is "
    "linear in one layer's weights, piece by piece: its sub-Hessians are its sub-Fisher matrices (claim 8)."
)


def measure(job: Job) -> list[Row]:
    """λ_max, κ_p and rank of the whole matrix, which is layer "", and of every layer's; or the sub-Hessians."""
    images, labels = load(job["data"], job.data, size=job["size"]).tensors(
        torch.float64, flatten=True, count=job["images"]
    )
    sizes = [images.shape[1], *[job["units"]] * (job["depth"] - 1), 10]
    model = mlp(sizes, norm=job["norm"], init="lecun", bias=False, seed=job["seed"]).to(job.device, torch.float64)
    batches = [
        (x.to(job.device), y.to(job.device))
        for x, y in zip(torch.split(images, job["batch"]), torch.split(labels, job["batch"]), strict=True)
    ]
    problem = Problem(model, nn.CrossEntropyLoss(), batches, batchnorm="batch")
    weights = [name for name in problem.params if name.startswith("fc")]
    if job["labels"] is None:
        return sub_hessians(problem, weights)
    blocks = {"": weights} | {name.removesuffix(".weight"): [name] for name in weights}
    spectra = block_spectra(Fisher(problem, job["labels"], layers=weights), blocks, limit=SIDE)
    return [
        row
        for layer, spectrum in spectra.items()
        for row in Conditioning.of(spectrum.values.cpu(), SHARES).rows(layer, FISHER)
    ]


def draw(table: Table) -> Figure:
    """One line of panels per matrix: λ_max and κ_p, whole and of every layer, plain next to BN."""
    shown = {
        f"${matrix}$: {title}": (matrix, quantity)
        for matrix in MATRICES
        if any(arm.endswith(matrix) for arm in table.arms)
        for title, quantity in PANELS.items()
    }
    if any(arm.endswith("H") for arm in table.arms):
        shown["sub-Hessian: $\\lambda_{\\max}$"] = ("H", HESSIAN.lambda_max)
        shown["weight-gradient"] = ("H", GRADIENT_NORM)
    figure, axes = panels(list(shown), columns=len(PANELS))
    for title, (matrix, quantity) in shown.items():
        lines = {network: table.arm(f"{network} {matrix}").mean_by_layer(quantity) for network in NORMS}
        draw_bars(axes[title], lines, "W" if quantity == GRADIENT_NORM else matrix)
    legend_below(figure, next(iter(axes.values())))
    return figure


def draw_bars(axes: Axes, lines: dict[str, dict[str, float]], matrix: str) -> None:
    """Bars from the foot of a logarithmic axis; an infinite one is hatched and reaches the level of ∞."""
    scale = LogScale.of(value for line in lines.values() for value in line.values())
    scale.set_axis(axes)
    foot = axes.get_ylim()[0]
    for place, (network, line) in enumerate(lines.items()):
        for i, value in enumerate(line.values()):
            look: dict[str, Any] = {"edgecolor": COLORS[place], "label": network if i == 0 else None}
            look |= {"color": COLORS[place]} if math.isfinite(value) else {"facecolor": "none", "hatch": "//"}
            axes.bar(i - 0.2 + 0.4 * place, scale.place(value) - foot, 0.4, bottom=foot, **look)
    layers = max(lines.values(), key=len)
    axes.set_xticks(range(len(layers)), [f"${matrix}_{{{layer[2:]}}}$" if layer else f"${matrix}$" for layer in layers])


def experiment(
    figure: str,
    title: str,
    says: str,
    matrices: Sequence[str],
    network: dict[str, int],
    images: dict[str, int],
    tied: Mapping[str, str] | None = None,
    **more: Any,
) -> Experiment:
    """One of the four figures.

    Args:
        figure: A name such as "fig1".
        title: What it shows.
        says: What the paper says.
        matrices: Of "F", "M" and "H".
        network: Its depth and units.
        images: How many make up each matrix at the laptop's scale.
        tied: By matrix, why its λ_max is a tie between the networks at the paper's scale.
        more: `minutes`.
    """
    arms = {
        f"{name} {matrix}": {"norm": norm, "labels": LABELS[matrix]}
        for matrix in matrices
        for name, norm in NORMS.items()
    }

    def own(count: dict[str, int], batch: int) -> dict[str, Any]:
        return {arm: {"images": count[arm[-1]], "batch": min(batch, count[arm[-1]])} for arm in arms}

    def undecided(claim: Claim, matrix: str) -> Claim:
        return claim.because("paper", "seeds", tied[matrix]) if tied and matrix in tied else claim

    def claims() -> Iterator[Claim]:
        for matrix in matrices:
            if matrix in MATRICES and not (matrix == "F" and "H" in matrices):
                yield from (make(matrix) for make in (whole_is_better, layers_are_better))
                yield from (undecided(make(matrix), matrix) for make in (layers_agree, greater_with_bn))
        if "H" in matrices:
            yield from (matrices_agree, indicates_the_gradient)
            yield has_negative_eigenvalues.because("paper", "the paper's claim does not hold here", ONLY_WITH_BN)
            yield is_fisher_without_bn
        elif "M" in matrices:
            yield undecided(replace(matrices_agree, paper=WITHOUT_A_WORD, is_ours=True), "F")

    small = network | {"units": network["units"] // 3, "data": "digits", "size": None}
    real = network | {"data": "mnist", "size": 12}
    return Experiment(
        name=f"huang2020-{figure}",
        title=title,
        says=says,
        arms=arms,
        scales={
            "smoke": small | {"arms": own({"F": 64, "M": 500, "H": 64}, 250)},
            "laptop": real | {"arms": own(images, 640)},
            "paper": real | {"seeds": 3, "arms": own({"F": 10_000, "M": 60_000, "H": 10_000}, 1000)},
        },
        measure=measure,
        claims=tuple(claims()),
        draw=draw,
        contrast=[(f"plain {matrix}", f"BN {matrix}") for matrix in matrices if matrix in MATRICES],
        departures=DEPARTURES,
        silent=("images", "batch"),
        **more,
    )
