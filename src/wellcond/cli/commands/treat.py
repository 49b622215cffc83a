"""`wellcond treat file.py:build`."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wellcond.cli.output import INTERRUPTED, AsJson, Out, Output, Target, as_usage_errors
from wellcond.errors import Interrupted
from wellcond.remedies.remedy import REMEDIES
from wellcond.report.terminal import new_table
from wellcond.treatment.arm import Arm
from wellcond.treatment.treat import check_settings
from wellcond.treatment.treat import treat as compare
from wellcond.treatment.treatment import Treatment


def treat(
    target: Target,
    steps: Annotated[int, typer.Option(help="Training steps of each run.")] = 200,
    seeds: Annotated[int, typer.Option(min=1, help="How often each run is repeated, with other random numbers.")] = 3,
    remedies: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,…", help=f"Try these alone, of {', '.join(REMEDIES)}.", show_default="all that apply"
        ),
    ] = None,
    momentum: Annotated[
        float | None,
        typer.Option(help="Of SGD, in place of the optimizer that FUNCTION returns.", show_default="its own, or 0.9"),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Try remedies on copies of your network, and see what each buys.

    First it is diagnosed. Then every remedy that applies is screened by a short
    race of learning rates; the best, a better rate alone and one remedy drawn at
    random are trained in full beside the untreated network, from your weights,
    with your optimizer, on the same batches. At the end stand the lines to
    write. Nothing of yours is changed; Ctrl-C prints what is finished so far.

    FUNCTION is that of [bold]wellcond diagnose[/bold].

    [bold]Examples[/bold]

    [cyan]wellcond treat train.py:build[/cyan]
    [cyan]wellcond treat train.py:build --steps 600 --seeds 5 --out curves.png[/cyan]
    [cyan]wellcond treat train.py:build --remedies bnp,last-bn --json[/cyan]
    """
    chosen = None if remedies is None else [name.strip() for name in remedies.split(",") if name.strip()]
    settings: dict[str, Any] = {"steps": steps, "seeds": range(seeds), "momentum": momentum}
    with as_usage_errors():
        check_settings(**settings, remedies=chosen or ())
    output = Output(out, as_json)
    with (
        output.problem(target, momentum) as (problem, optimizer, progress),
        warnings.catch_warnings(record=True) as caught,
    ):
        try:
            found = compare(problem, optimizer, **settings, remedies=chosen, progress=progress)
        except Interrupted as interrupt:
            found = interrupt.result
    messages = list(dict.fromkeys(str(warning.message) for warning in caught))
    output.finish(found, lambda console: _show(found, messages, console))
    if not found.is_complete:
        typer.secho(found.status, err=True, fg="red", bold=True)
        raise typer.Exit(INTERRUPTED)


def _show(treatment: Treatment, messages: list[str], console: Console) -> None:
    console.print(Text(treatment.verdict(), style="bold"))
    console.print(f"\n{treatment.title}, and what it changes beside the untreated network:")
    console.print(_table(treatment))
    screened = [f"{arm.name} {arm.outcome.removeprefix('screened: ')}" for arm in _not_run(treatment)]
    if screened:
        text = f"screened out after {treatment.screening_steps} steps: {', '.join(screened)}"
        console.print(Text(text, style="dim"))
    for name, reason in treatment.refused.items():
        console.print(Text(f"{name} refused: {reason}", style="dim"))
    for text in messages:
        console.print(Text(f"warning: {text}", style="yellow"))
    for note in treatment.notes:
        console.print(Text(f"note: {note}", style="dim"))
    console.print(Text(treatment.price, style="dim"), soft_wrap=True)
    best = treatment.best
    if best is not None and best is not treatment.untreated:
        console.print(Text(f"\n{best.why.splitlines()[0]} Write:" if best.why else "\nWrite:", style="bold"))
        console.print(Text(treatment.code, style="cyan"), soft_wrap=True)


def _not_run(treatment: Treatment) -> list[Arm]:
    return [arm for arm in treatment.arms.values() if not arm.runs and arm.refused is None]


def _table(treatment: Treatment) -> Table:
    """One line per arm that was run; the best bold, what diverged red."""
    headings, body = treatment.table()
    table = new_table()
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("", headings[-1]) else "right")
    for name, *cells in body:
        arm = treatment.arms[name]
        if arm.runs:
            style = "red" if arm.best_lr is None else "bold" if arm is treatment.best else ""
            table.add_row(*(Text(cell, style) for cell in (name, *cells)))
    return table
