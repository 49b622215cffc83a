"""Figures I to IV of huang2020: the whole Fisher matrix F (or M) and that of every layer, plain and with BN.

M is the Fisher matrix with the labels of the data in place of the model's own. Both spectra are exact. κ_p of a matrix
of side P is finite from p·P gradients on: an image gives 9 to F, and one to M.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from wellcond.curvature.fisher import Fisher
from wellcond.curvature.kronecker.matrix_conditioning import Conditioning
from wellcond.curvature.spectra.exact import block_spectra
from wellcond.problem.problem import Problem
from wellcond.report.figures.style import COLORS, LogScale, legend_below
from wellcond.results import Row, number
from wellcond.results.quantities import FISHER
from wellcond_papers.data.load import load
from wellcond_papers.experiments.claims import Claim, Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import panels
from wellcond_papers.experiments.table import Table
from wellcond_papers.models import mlp

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = (0.2, 0.5, 0.8)
PANELS = {
    r"$\lambda_{\max}$": FISHER.lambda_max,
    r"$\kappa_{50\%}$": FISHER.kappa[0.5],
    r"$\kappa_{80\%}$": FISHER.kappa[0.8],
}
NORMS = {"plain": "none", "BN": "batch"}
LABELS = {"F": "model", "M": "data"}
SIDE = 40_000
"""The largest side of a matrix. The wider of its factors then may take 51 GB; at 10 000 images it takes 6."""
DEPARTURES = (
    "The source does not say how many images its matrices are made of, nor how BN takes its statistics: here over the "
    "images of one batch, with gradients through them.",
    "κ_100% is left out: with ReLU and with BN these matrices are singular.",
)


def measure(job: Job) -> list[Row]:
    """λ_max, κ_p and rank of the whole matrix, which is layer "", and of every layer's."""
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
    blocks = {"": weights} | {name.removesuffix(".weight"): [name] for name in weights}
    spectra = block_spectra(Fisher(problem, job["labels"], layers=weights), blocks, limit=SIDE)
    return [
        row
        for layer, spectrum in spectra.items()
        for row in Conditioning.of(spectrum.values.cpu(), SHARES).rows(layer, FISHER)
    ]


def pairs(table: Table, matrix: str, quantity: str) -> dict[str, tuple[float, float]]:
    """By layer, what the plain network has and what the one with BN has; where both are infinite, nothing is known."""
    plain, bn = (table.arm(f"{network} {matrix}").mean_by_layer(quantity) for network in NORMS)
    both = {layer: (value, bn[layer]) for layer, value in plain.items() if layer in bn}
    return {layer: pair for layer, pair in both.items() if min(pair) < math.inf}


def whole_is_better(matrix: str) -> Claim:
    """The whole matrix."""

    @claim(f"BN improves the conditioning of the full {matrix}: κ_p is smaller", paper="smaller")
    def check(table: Table) -> Outcome:
        known = {p: pairs(table, matrix, FISHER.kappa[p]).get("") for p in SHARES}
        finite = {p: pair for p, pair in known.items() if pair is not None}
        details = [f"κ{100 * p:g}: {number(bn)} with BN, {number(plain)} without" for p, (plain, bn) in finite.items()]
        return judged([bn < plain for plain, bn in finite.values()], "; ".join(details))

    return check


def layers_are_better(matrix: str) -> Claim:
    """The matrices of the layers."""

    @claim(f"BN improves the conditioning of {matrix}_k of every layer: κ_p is smaller", paper="smaller in every layer")
    def check(table: Table) -> Outcome:
        cases, details = [], []
        for p in SHARES:
            by_layer = {layer: pair for layer, pair in pairs(table, matrix, FISHER.kappa[p]).items() if layer}
            better = [bn < plain for plain, bn in by_layer.values()]
            less = sorted(plain / bn for plain, bn in by_layer.values())
            if less:
                span = f"{number(less[0])} to {number(less[-1])} times"
                details.append(f"κ{100 * p:g}: smaller in {sum(better)} of {len(better)} layers ({span})")
            cases += better
        return judged(cases, "; ".join(details))

    return check


def layers_agree(matrix: str) -> Claim:
    """Magnitude and conditioning, layer by layer, against the whole."""

    @claim(
        f"the matrices of the layers show what the full {matrix} shows: which network has the greater λ_max and κ_p",
        paper="they do",
    )
    def check(table: Table) -> Outcome:
        cases, details = [], []
        for name, quantity in {"λ_max": FISHER.lambda_max, "κ50": FISHER.kappa[0.5]}.items():
            by_layer = pairs(table, matrix, quantity)
            if "" not in by_layer:
                continue
            whole = by_layer[""][0] > by_layer[""][1]
            agree = [(plain > bn) == whole for layer, (plain, bn) in by_layer.items() if layer]
            cases += agree
            details.append(
                f"{name}: {'plain' if whole else 'BN'} is greater, in {sum(agree)} of {len(agree)} layers too"
            )
        return judged(cases, "; ".join(details))

    return check


@claim("M shows what F shows: which network has the greater λ_max and κ_p", paper="the same observation")
def matrices_agree(table: Table) -> Outcome:
    """The whole matrix and every layer's."""
    cases = []
    for quantity in (FISHER.lambda_max, *(FISHER.kappa[p] for p in SHARES)):
        of_f, of_m = (pairs(table, matrix, quantity) for matrix in LABELS)
        cases += [(of_f[layer][0] > of_f[layer][1]) == (m[0] > m[1]) for layer, m in of_m.items() if layer in of_f]
    return judged(cases, f"in {sum(cases)} of {len(cases)} comparisons")


def draw(table: Table) -> Figure:
    """One line of panels per matrix: λ_max and κ_p, whole and of every layer, plain next to BN."""
    matrices = [matrix for matrix in LABELS if any(arm.endswith(matrix) for arm in table.arms)]
    figure, axes = panels([f"${matrix}$: {title}" for matrix in matrices for title in PANELS], columns=len(PANELS))
    for matrix in matrices:
        for title, quantity in PANELS.items():
            lines = {network: table.arm(f"{network} {matrix}").mean_by_layer(quantity) for network in NORMS}
            draw_bars(axes[f"${matrix}$: {title}"], lines, matrix)
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
    **more: Any,
) -> Experiment:
    """One of the four figures.

    Args:
        figure: A name such as "fig1".
        title: What it shows.
        says: What the paper says.
        matrices: "F", "M" or both.
        network: Its depth and units.
        images: How many make up each matrix at the laptop's scale.
        more: `minutes`.
    """
    arms = {
        f"{name} {matrix}": {"norm": norm, "labels": LABELS[matrix]}
        for matrix in matrices
        for name, norm in NORMS.items()
    }

    def own(count: dict[str, int], batch: int) -> dict[str, Any]:
        return {arm: {"images": count[arm[-1]], "batch": min(batch, count[arm[-1]])} for arm in arms}

    def claims() -> Iterator[Claim]:
        for matrix in matrices:
            yield from (whole_is_better(matrix), layers_are_better(matrix), layers_agree(matrix))
        if len(matrices) > 1:
            yield matrices_agree

    small = network | {"units": network["units"] // 3, "data": "digits", "size": None}
    real = network | {"data": "mnist", "size": 12}
    return Experiment(
        name=f"huang2020-{figure}",
        title=title,
        says=says,
        arms=arms,
        scales={
            "smoke": small | {"arms": own({"F": 64, "M": 500}, 250)},
            "laptop": real | {"arms": own(images, 640)},
            "paper": real | {"seeds": 3, "arms": own({"F": 10_000, "M": 60_000}, 1000)},
        },
        measure=measure,
        claims=tuple(claims()),
        draw=draw,
        contrast=[(f"plain {matrix}", f"BN {matrix}") for matrix in matrices],
        departures=DEPARTURES,
        silent=("images", "batch"),
        **more,
    )
