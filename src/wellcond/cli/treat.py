"""`wellcond treat file.py:build`."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wellcond.cli.output import INTERRUPTED, AsJson, Out, Output, Target, as_usage_errors
from wellcond.report.terminal import new_table
from wellcond.verify.treat import LEARNING_RATES, REMEDIES, check_settings
from wellcond.verify.treat import treat as compare
from wellcond.verify.treatment import Arm, Treatment


def treat(
    target: Target,
    steps: Annotated[int, typer.Option(help="Training steps of each run.")] = 200,
    lr: Annotated[
        list[float] | None,
        typer.Option(
            help="A learning rate; repeat it for several.",
            show_default=f"{', '.join(map(str, LEARNING_RATES))}; 0.1 to 10 times the optimizer's",
        ),
    ] = None,
    remedy: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(REMEDIES)}; repeat it for several.", show_default="all of them"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How often each run is repeated, with other random numbers.")] = 3,
    momentum: Annotated[
        float | None,
        typer.Option(help="Of SGD, in place of the optimizer that FUNCTION returns.", show_default="its own, or 0"),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Train copies of your network with and without the remedies, and see what each buys.

    All runs start from your weights; those of one seed see your batches in the
    same order. Nothing of yours is changed.

    [bold]bnp[/bold]            the gradient preconditioned as if each layer's input were normalised
    [bold]last-bn[/bold]        one BatchNorm before the last layer
    [bold]scale-amended[/bold]  SGD with every layer's gradient in its own scale

    FUNCTION is that of [bold]wellcond diagnose[/bold]; with an optimizer, copies of it take the
    steps, and without one plain SGD. Ctrl-C prints what is finished so far.

    [bold]Examples[/bold]

    [cyan]wellcond treat train.py:build[/cyan]
    [cyan]wellcond treat train.py:build --steps 600 --lr 0.03 --lr 0.1 --out curves.png[/cyan]
    [cyan]wellcond treat train.py:build --remedy bnp --seeds 1 --momentum 0.9[/cyan]
    """
    settings: dict[str, Any] = {"steps": steps, "seeds": range(seeds), "learning_rates": lr}
    settings |= {"remedies": list(REMEDIES) if remedy is None else remedy, "momentum": momentum or 0.0}
    with as_usage_errors():
        check_settings(**settings)
    output = Output(out, as_json)
    latest: list[Treatment] = []
    is_complete = True
    with (
        output.problem(target, momentum) as (problem, optimizer, progress),
        warnings.catch_warnings(record=True) as caught,
    ):
        try:
            latest.append(compare(problem, optimizer, **settings, progress=progress, on_run=latest.append))
        except KeyboardInterrupt:
            is_complete = False
    if latest:
        messages = list(dict.fromkeys(str(warning.message) for warning in caught))
        output.finish(latest[-1], lambda console: _show(latest[-1], messages, console))
    if not is_complete:
        finished = f"{latest[-1].finished} of {latest[-1].planned}" if latest else "no"
        typer.secho(f"interrupted: {finished} runs are finished", err=True, fg="red", bold=True)
        raise typer.Exit(INTERRUPTED)


def _show(treatment: Treatment, messages: list[str], console: Console) -> None:
    console.print(f"{treatment.title}.")
    console.print(_table(treatment))
    for name, reason in treatment.refused.items():
        console.print(Text(f"{name} refused: {reason}", style="dim"))
    for text in messages:
        console.print(Text(f"warning: {text}", style="yellow"))
    for note in treatment.notes:
        console.print(Text(f"note: {note}", style="dim"))
    console.print(Text(treatment.verdict(), style="bold"))
    if treatment.code:
        console.print(Text(f"\n{treatment.code}", style="cyan"), soft_wrap=True)
    console.print(Text(str(treatment.cost), style="dim"), soft_wrap=True)


def _table(treatment: Treatment) -> Table:
    """One column per arm, so that several fit a terminal; its best loss bold, what diverged red."""
    table = new_table()
    table.add_column("lr", style="bold", no_wrap=True)
    for name in treatment.arms:
        table.add_column(Text(name), justify="right")
    for rate in treatment.learning_rates:
        table.add_row(f"{rate:g}", *(Text(arm.cell(rate), _style(arm, rate)) for arm in treatment.arms.values()))
    return table


def _style(arm: Arm, rate: float) -> str:
    if rate in arm.runs and arm.final(rate) is None:
        return "red"
    return "bold" if rate == arm.best_lr else ""
