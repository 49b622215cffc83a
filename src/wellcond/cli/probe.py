"""`wellcond probe file.py:build`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.text import Text

from wellcond.cli.progress import progress_bar
from wellcond.cli.target import built
from wellcond.cli.usage import as_usage_errors
from wellcond.errors import WellcondError
from wellcond.layerwise.covariate_shift import covariate_shift
from wellcond.local.curvature import LocalCurvature
from wellcond.local.local_hessian import LocalHessian, local_hessian
from wellcond.results import text_table
from wellcond.results.files import check_writable
from wellcond.spectral.eigenvalues import eigenvalues
from wellcond.surface.directions import Name
from wellcond.surface.landscape import landscape

DEFAULT_LR = 0.1
TOLERANCE = 1e-2
"""Relative error of a local Hessian's largest eigenvalue."""


def probe(
    target: Annotated[
        str,
        typer.Argument(metavar="FILE.py:FUNCTION", help="A function that returns a Problem, or (Problem, optimizer)."),
    ],
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
        Name, typer.Option(help="gradient, random or eigenvector (the Hessian's first).")
    ] = "gradient",
    shift: Annotated[bool, typer.Option(help="Also measure every layer's covariate shift.")] = True,
    layer: Annotated[
        list[str] | None,
        typer.Option(help="Also this block's local Hessian: a module, or a range body[2:5]; repeat it for several."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the walk, as a PNG.")] = None,
) -> None:
    """Look around the present weights: how far can the gradient be trusted?

    Walks along the gradient on your batches and shows how the loss and the
    gradient change, then how much each layer's gradient changes because the
    layers before it take their step. Nothing of yours is changed.

    FUNCTION is that of [bold]wellcond diagnose[/bold]; without an optimizer a step of plain SGD
    with that learning rate is taken.

    [bold]Examples[/bold]

    [cyan]wellcond probe train.py:build[/cyan]
    [cyan]wellcond probe train.py:build --lr 0.01 --span 0.01 30 --plot walk.png[/cyan]
    [cyan]wellcond probe train.py:build --no-shift --layer 0 --layer 'body[2:5]'[/cyan]
    """
    console = Console()
    if plot is not None:
        import wellcond.report.landscape  # noqa: F401  a missing matplotlib is said before the work

        check_writable(plot)
    with built(target) as (problem, optimizer), as_usage_errors():
        rate = _rate(lr, optimizer)
        blocks = [local_hessian(problem, name) for name in layer or ()]  # an unknown name is said before the work
        with progress_bar(console) as report:
            walk = landscape(problem, rate, span, steps, direction=direction, progress=report)
        console.print(f"{target}: {problem!r}", style="bold", markup=False, highlight=False)
        _section(console, f"Along the {walk.direction}, from {span[0]:g} to {span[1]:g} times lr {rate:g}", str(walk))
        if shift:
            step = optimizer or torch.optim.SGD(problem.params.values(), lr=rate)
            with progress_bar(console) as report:
                told = _told(lambda: str(covariate_shift(problem, step, progress=report)))
            _section(console, f"Covariate shift by a step of {type(step).__name__}", told)
        for block in blocks:
            _section(console, str(block).partition("\n")[0], _spectra(block))
        if plot is not None:
            from wellcond.report.landscape import save_walk

            saved = save_walk({target: walk}, plot)
            console.print(f"walk: {saved}", markup=False, highlight=False, soft_wrap=True)


def _rate(lr: float | None, optimizer: torch.optim.Optimizer | None) -> float:
    if lr is not None or optimizer is None:
        return DEFAULT_LR if lr is None else lr
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) > 1 or rates == {0.0}:
        found = ", ".join(f"{rate:g}" for rate in sorted(rates))
        raise typer.BadParameter(f"the optimizer's learning rate is {found}: say which to walk by --lr.")
    return rates.pop()


def _told(measure: Callable[[], str]) -> str:
    """What was measured, or why it could not be."""
    try:
        return measure()
    except WellcondError as error:
        return f"not measured: {error}"


def _section(console: Console, title: str, text: str) -> None:
    console.print(Text(f"\n{title}", style="bold cyan"))
    console.print(Text(text), soft_wrap=True)


def _spectra(block: LocalHessian) -> str:
    """The largest eigenvalue of each of the block's local Hessians."""
    parts = {"H_z": block.z} if block.call.z is not None else {}
    parts |= {"H_W": block.weight} if block.call.params else {}
    body = []
    for symbol, part in parts.items():
        for kind in ("exact", "gauss_newton"):
            told = _told(functools.partial(_largest, part, kind))
            body.append([f"{symbol}, {kind}", f"{part.shape[0]:,}", told])
    return text_table(["", "side", "largest eigenvalue"], body) + "\na step of size 1 in z suits eigenvalues of about 1"


def _largest(part: LocalCurvature, kind: str) -> str:
    top = eigenvalues(getattr(part, kind), tol=TOLERANCE)
    return f"{top.values[-1]:.4g} ± {top.errors[-1]:.1g}"
