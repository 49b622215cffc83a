"""`wellcond try file.py:build`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wellcond.cli.progress import progress_bar
from wellcond.cli.target import built
from wellcond.results.files import check_writable
from wellcond.verify.trial import LEARNING_RATES, METHODS, check_settings, trial
from wellcond.verify.trial_result import Run, Trial, tenth

INTERRUPTED = 130
"""The exit code of a command that ctrl-C ended."""


def try_(
    target: Annotated[str, typer.Argument(metavar="FILE.py:FUNCTION", help="A function that returns a Problem.")],
    steps: Annotated[int, typer.Option(help="Training steps of each run.")] = 200,
    lr: Annotated[
        list[float] | None,
        typer.Option(help="A learning rate; repeat it for several.", show_default=", ".join(map(str, LEARNING_RATES))),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(METHODS)}; repeat it for several.", show_default="all of them"),
    ] = None,
    momentum: Annotated[float, typer.Option(help="Of every method.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of dropout, and of a loader that shuffles.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Also draw the best run of every method, as a PNG.")] = None,
) -> None:
    """Train copies of your network with plain SGD and with the remedies, and see what each buys.

    Every method starts from your weights and sees your batches in the same
    order, once for each learning rate. Nothing of yours is changed.

    [bold]sgd[/bold]            plain SGD
    [bold]bnp[/bold]            SGD preconditioned as if each layer's input were normalised
    [bold]last-bn[/bold]        SGD, with one BatchNorm before the last layer
    [bold]scale-amended[/bold]  SGD with every layer's gradient in its own scale

    FUNCTION is that of [bold]wellcond diagnose[/bold]; an optimizer that it returns is not
    used. Ctrl-C prints what is finished so far.

    [bold]Examples[/bold]

    [cyan]wellcond try train.py:build[/cyan]
    [cyan]wellcond try train.py:build --steps 600 --lr 0.03 --lr 0.1 --plot curves.png[/cyan]
    [cyan]wellcond try train.py:build --method sgd --method bnp --momentum 0.9[/cyan]
    """
    methods, rates = method or list(METHODS), lr or list(LEARNING_RATES)
    try:
        check_settings(methods, rates, steps, momentum)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if plot is not None:
        import wellcond.report.curves  # noqa: F401  a missing matplotlib is said before the work

        check_writable(plot)
    console = Console()
    runs: list[Run] = []
    is_complete = True
    with built(target) as (problem, _), warnings.catch_warnings(record=True) as heard, progress_bar(console) as report:
        try:
            trial(problem, methods, rates, steps, momentum=momentum, seed=seed, progress=report, on_run=runs.append)
        except KeyboardInterrupt:
            is_complete = False
    console.print(f"{target}: {problem!r}", style="bold", markup=False, highlight=False)
    told = f"Loss after {steps} steps (mean of the last {tenth(steps)}), by learning rate."
    _show(Trial(runs), told, list(dict.fromkeys(str(warning.message) for warning in heard)), console)
    if plot is not None:
        _draw(Trial(runs), plot, console)
    if not is_complete:
        finished = f"interrupted: {len(runs)} of {len(set(methods)) * len(set(rates))} runs are finished"
        Console(stderr=True).print(Text(finished, style="bold red"))
        raise typer.Exit(INTERRUPTED)


def _show(result: Trial, told: str, warned: list[str], console: Console) -> None:
    if result.runs:
        console.print(told, highlight=False)
        console.print(_table(result))
    for name, reason in result.refused.items():
        console.print(Text(f"{name} refused: {reason}", style="dim"))
    for text in warned:
        console.print(Text(f"warning: {text}", style="yellow"))
    console.print(Text(result.verdict()))


def _table(result: Trial) -> Table:
    """One line a method; its best loss bold, what diverged red."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("lr", style="bold", no_wrap=True)
    for rate in result.learning_rates:
        table.add_column(f"{rate:g}", justify="right")
    for name, runs in result.table().items():
        best = result.best([name])
        cells = [runs.get(rate) for rate in result.learning_rates]
        table.add_row(name, *(Text("") if run is None else Text(str(run), _style(run, best)) for run in cells))
    return table


def _style(run: Run, best: Run | None) -> str:
    if run.diverged_at is not None:
        return "red"
    return "bold" if run is best else ""


def _draw(result: Trial, path: Path, console: Console) -> None:
    from matplotlib.figure import Figure

    from wellcond.report.curves import draw_curves
    from wellcond.report.figures import save_figure

    best = [run for name in result.table() if (run := result.best([name])) is not None]
    if not best:
        return
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    draw_curves(axes, {f"{run.method}, lr {run.lr:g}": [run.curve()] for run in best})
    if min(min(run.curve()[1]) for run in best) > 0:
        axes.set_yscale("log")
    axes.set_xlabel("steps")
    axes.set_ylabel("training loss, mean of a tenth of the steps")
    axes.legend(frameon=False)
    saved = save_figure(figure, path)
    console.print(f"curves: {saved}", markup=False, highlight=False, soft_wrap=True)
