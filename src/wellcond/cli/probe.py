"""`wellcond probe file.py:build`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console
from rich.text import Text

from wellcond.cli.output import AsJson, Out, Output, Target, as_usage_errors, print_section
from wellcond.cli.target import built
from wellcond.errors import WellcondError
from wellcond.layerwise.covariate_shift import CovariateShift, covariate_shift
from wellcond.local.local_hessian import LocalHessian, local_hessian
from wellcond.problem.problem import Problem
from wellcond.results import Progress, Result, Row, text_table
from wellcond.spectral.eigenvalues import eigenvalues
from wellcond.surface.directions import DirectionName
from wellcond.surface.landscape import Landscape, landscape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_LR = 0.1
TOLERANCE = 1e-2
"""Relative error of a local Hessian's largest eigenvalue."""


@dataclass(frozen=True)
class LocalEigenvalue:
    """The largest eigenvalue of one local Hessian.

    Attributes:
        matrix: H_z or H_W, exact or Gauss-Newton.
        side: Its number of rows.
        value: The eigenvalue, or None where it could not be measured.
        error: A bound on its error.
        failed: Why it could not be measured, or "".
    """

    matrix: str
    side: int
    value: float | None = None
    error: float | None = None
    failed: str = ""

    def __str__(self) -> str:
        return f"not measured: {self.failed}" if self.failed else f"{self.value:.4g} ± {self.error:.1g}"


@dataclass(frozen=True)
class Probe(Result):
    """What was found around the present weights.

    Attributes:
        walk: The loss and its gradient along a direction.
        lr: The learning rate whose multiples were walked.
        shift: The covariate shift of every layer by one step; None if not asked for, or not measured.
        stepped_by: The name of the optimizer that takes this step.
        blocks: The local Hessians that were asked for, each with the largest eigenvalues of its matrices.
        failed: Why the covariate shift could not be measured, or "".
    """

    walk: Landscape
    lr: float
    shift: CovariateShift | None
    stepped_by: str
    blocks: tuple[tuple[LocalHessian, tuple[LocalEigenvalue, ...]], ...]
    failed: str

    def rows(self, step: int | None = None) -> list[Row]:
        """Those of the walk, of the covariate shift and of the local Hessians."""
        parts = [self.walk, *([] if self.shift is None else [self.shift]), *(block for block, _ in self.blocks)]
        return [row for part in parts for row in part.rows(step)]

    def figure(self) -> Figure:
        """The walk."""
        return self.walk.figure()

    def sections(self) -> Iterator[tuple[str, str]]:
        """Title and text of every part."""
        first, last = (float(self.walk.step_lengths[i]) / self.lr for i in (0, -1))
        yield f"Along the {self.walk.direction}, from {first:g} to {last:g} times lr {self.lr:g}", str(self.walk)
        if self.shift is not None or self.failed:
            text = f"not measured: {self.failed}" if self.shift is None else str(self.shift)
            yield f"Covariate shift by a step of {self.stepped_by}", text
        for block, found in self.blocks:
            body = [[each.matrix, f"{each.side:,}", str(each)] for each in found]
            table = text_table(["", "side", "largest eigenvalue"], body)
            yield str(block).partition("\n")[0], f"{table}\na step of size 1 in z suits eigenvalues of about 1"

    def __str__(self) -> str:
        return "\n\n".join(f"{title}\n{text}" for title, text in self.sections())


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
    with built(target) as (problem, optimizer), as_usage_errors():
        rate = _rate(lr, optimizer)
        blocks = [local_hessian(problem, name) for name in layer or ()]  # an unknown name is refused before the work
        with output.progress() as progress:
            walk = landscape(problem, rate, span, steps, direction=direction, progress=progress)
            step = optimizer or torch.optim.SGD(problem.params.values(), lr=rate)
            shifted, failed = _shift(problem, step, progress) if shift else (None, "")
            found = tuple((block, tuple(_eigenvalues(block))) for block in blocks)
    result = Probe(walk, rate, shifted, type(step).__name__, found, failed)

    def print_all(console: Console) -> None:
        console.print(Text(f"{target}: {problem!r}", style="bold"))
        for title, text in result.sections():
            print_section(console, title, text)

    output.finish(result, print_all)


def _rate(lr: float | None, optimizer: torch.optim.Optimizer | None) -> float:
    if lr is not None or optimizer is None:
        return DEFAULT_LR if lr is None else lr
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1 or rates == {0.0}:
        found = ", ".join(f"{rate:g}" for rate in sorted(rates))
        raise typer.BadParameter(f"the optimizer's learning rate is {found}: say which to walk by --lr.")
    return rates.pop()


def _shift(
    problem: Problem, step: torch.optim.Optimizer, progress: Progress
) -> tuple[CovariateShift, str] | tuple[None, str]:
    """The covariate shift, or why it could not be measured."""
    try:
        return covariate_shift(problem, step, progress=progress), ""
    except WellcondError as error:
        return None, str(error)


def _eigenvalues(block: LocalHessian) -> Iterator[LocalEigenvalue]:
    parts = {"H_z": block.z} if block.call.z is not None else {}
    parts |= {"H_W": block.weight} if block.call.params else {}
    for symbol, part in parts.items():
        for kind in ("exact", "gauss_newton"):
            name, side = f"{symbol}, {kind}", part.shape[0]
            try:
                top = eigenvalues(getattr(part, kind), tol=TOLERANCE)
            except WellcondError as error:
                yield LocalEigenvalue(name, side, failed=str(error))
            else:
                yield LocalEigenvalue(name, side, float(top.values[-1]), float(top.errors[-1]))
