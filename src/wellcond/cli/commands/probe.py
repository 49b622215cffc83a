"""`wellcond probe file.py:build`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import torch
import typer

from wellcond.cli.output import AsJson, Out, Output, Target, print_sections
from wellcond.curvature.spectra.eigenvalues import Eigenvalues, eigenvalues
from wellcond.errors import WellcondError
from wellcond.measurements.blocks.local_hessian import LocalHessian, local_hessian
from wellcond.measurements.landscape.directions import DirectionName
from wellcond.measurements.landscape.landscape import Landscape, landscape
from wellcond.measurements.layers.covariate_shift import CovariateShift, covariate_shift
from wellcond.results import Result, Row, text_table
from wellcond.training.optimizers import current_lr

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")

DEFAULT_LR = 0.1
TOLERANCE = 1e-2
"""Relative error of a local Hessian's largest eigenvalue."""


@dataclass(frozen=True)
class Probe(Result):
    """What was found around the present weights.

    Attributes:
        walk: The loss and its gradient along a direction.
        shift: The covariate shift of every layer by one step; None if not asked for, or not measured.
        blocks: The local Hessians that were asked for.
        eigenvalues: The largest eigenvalue of each of their matrices, by block and matrix.
        sections: All of it in words, by title, with the reasons of what could not be measured.
    """

    walk: Landscape
    shift: CovariateShift | None
    blocks: tuple[LocalHessian, ...]
    eigenvalues: dict[str, dict[str, Eigenvalues]]
    sections: dict[str, str]

    def rows(self, step: int | None = None) -> list[Row]:
        """Those of the walk, of the covariate shift and of the local Hessians."""
        parts = [self.walk, *([] if self.shift is None else [self.shift]), *self.blocks]
        return [row for part in parts for row in part.rows(step)]

    def figure(self) -> Figure:
        """The walk."""
        return self.walk.figure()

    def __str__(self) -> str:
        return "\n\n".join(f"{title}\n{text}" for title, text in self.sections.items())


def probe(
    target: Target,
    lr: Annotated[
        float | None,
        typer.Option(help="The learning rate whose multiples are walked.", show_default="the optimizer's, or 0.1"),
    ] = None,
    steps: Annotated[int, typer.Option(help="Points of the walk.")] = 8,
    span: Annotated[tuple[float, float], typer.Option(help="The first and the last point, in units of lr.")] = (
        0.5,
        4.0,
    ),
    direction: Annotated[
        DirectionName, typer.Option(help="gradient, random or eigenvector (the Hessian's first).")
    ] = "gradient",
    shift: Annotated[bool, typer.Option(help="Also measure every layer's covariate shift.")] = True,
    layer: Annotated[
        list[str] | None,
        typer.Option(help="Also this block's local Hessian: a module, or a range body[2:5]; repeat it for several."),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Look around the present weights: how far can the gradient be trusted?

    Walks along the gradient on your batches and shows how the loss and the
    gradient change, then how much each layer's gradient changes because the
    layers before it take their step. Nothing of yours is changed.

    FUNCTION is that of [bold]wellcond diagnose[/bold]; without an optimizer a step of plain SGD
    with that learning rate is taken.

    [bold]Examples[/bold]

    [cyan]wellcond probe train.py:build[/cyan]
    [cyan]wellcond probe train.py:build --lr 0.01 --span 0.01 30 --out walk.png[/cyan]
    [cyan]wellcond probe train.py:build --no-shift --layer 0 --layer 'body[2:5]'[/cyan]
    """
    output = Output(out, as_json)
    with output.problem(target) as (problem, optimizer, progress):
        rate = _rate(lr, optimizer)
        blocks = [local_hessian(problem, name) for name in layer or ()]  # an unknown name is refused before the work
        walk = landscape(problem, rate, span, steps, direction=direction, progress=progress)
        sections = {f"Along the {walk.direction}, from {span[0]:g} to {span[1]:g} times lr {rate:g}": str(walk)}
        shifted = None
        if shift:
            step = optimizer or torch.optim.SGD(problem.params.values(), lr=rate)
            shifted, text = _attempted(lambda: covariate_shift(problem, step, progress=progress))
            sections[f"Covariate shift by a step of {type(step).__name__}"] = text
        found: dict[str, dict[str, Eigenvalues]] = {}
        for block in blocks:
            found[block.name], sections[str(block).partition("\n")[0]] = _eigenvalues(block)
    result = Probe(walk, shifted, tuple(blocks), found, sections)
    output.finish(result, lambda console: print_sections(console, sections))


def _rate(lr: float | None, optimizer: torch.optim.Optimizer | None) -> float:
    if lr is not None or optimizer is None:
        return DEFAULT_LR if lr is None else lr
    rates = set(map(current_lr, optimizer.param_groups))
    if len(rates) > 1 or rates == {0.0}:
        found = ", ".join(f"{rate:g}" for rate in sorted(rates))
        raise typer.BadParameter(f"the optimizer's learning rate is {found}: say which to walk by --lr.")
    return rates.pop()


def _attempted(measure: Callable[[], T]) -> tuple[T | None, str]:
    """What was measured and its text, or None and why it could not be."""
    try:
        found = measure()
    except WellcondError as error:
        return None, f"not measured: {error}"
    return found, str(found)


def _eigenvalues(block: LocalHessian) -> tuple[dict[str, Eigenvalues], str]:
    """The largest eigenvalue of every matrix of a block, and a table of them."""
    parts = {"H_z": block.z} if block.call.z is not None else {}
    parts |= {"H_W": block.weight} if block.call.params else {}
    found: dict[str, Eigenvalues] = {}
    body = []
    for symbol, part in parts.items():
        for kind in ("exact", "gauss_newton"):
            name = f"{symbol}, {kind}"
            operator = getattr(part, kind)
            top, text = _attempted(functools.partial(eigenvalues, operator, tol=TOLERANCE))
            if top is not None:
                found[name], text = top, f"{top.values[-1]:.4g} ± {top.errors[-1]:.1g}"
            body.append([name, f"{part.shape[0]:,}", text])
    table = text_table(["", "side", "largest eigenvalue"], body)
    return found, f"{table}\na step of size 1 in z suits eigenvalues of about 1"
