"""`wellcond treat file.py:build`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from wellcond.cli.output import INTERRUPTED, AsJson, Momentum, Out, Output, Target, as_usage_errors
from wellcond.errors import Interrupted
from wellcond.remedies.remedy import REMEDIES
from wellcond.report.terminal import new_table, show_treatment
from wellcond.training.optimizers import DEFAULT_MOMENTUM
from wellcond.treatment.arm import Arm
from wellcond.treatment.treat import check_settings
from wellcond.treatment.treat import treat as compare
from wellcond.treatment.treatment import PRICES, Treatment


def treat(
    target: Target,
    steps: Annotated[int, typer.Option(help="Training steps of each run.")] = 200,
    seeds: Annotated[int, typer.Option(min=1, help="How often each run is repeated, with other random numbers.")] = 5,
    remedies: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,…", help=f"Try these alone, of {', '.join(REMEDIES)}.", show_default="all that apply"
        ),
    ] = None,
    momentum: Momentum = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Try remedies on copies of your network, and see how much each helps.

    First it is diagnosed, and a fifth of the data is held out. Then every remedy
    that applies is screened by a short race of learning rates. The best ones, a
    better rate alone and one remedy drawn at random are trained in full, and so
    is the untreated network: from your weights, with your optimizer, on the same
    batches. All are judged by the held-out data. The answer comes with the lines
    to write. Nothing of yours is changed; Ctrl-C prints what is finished so far.

    FUNCTION is that of [bold]wellcond diagnose[/bold].

    [bold]Examples[/bold]

    [cyan]wellcond treat train.py:build[/cyan]
    [cyan]wellcond treat train.py:build --steps 600 --seeds 5 --out curves.png[/cyan]
    [cyan]wellcond treat train.py:build --remedies bnp,last-bn --json[/cyan]
    """
    chosen = None if remedies is None else [name.strip() for name in remedies.split(",") if name.strip()]
    settings: dict[str, Any] = {"steps": steps, "seeds": range(seeds), "momentum": momentum}
    with as_usage_errors():
        check_settings(**{"momentum": DEFAULT_MOMENTUM} | settings, remedies=chosen or ())
    output = Output(out, as_json)
    with (
        output.problem(target, momentum) as (problem, optimizer, progress),
        warnings.catch_warnings(record=True) as caught,
    ):
        try:
            treatment: Treatment = compare(problem, optimizer, **settings, remedies=chosen, progress=progress)
        except Interrupted as interrupt:
            treatment = interrupt.result
    messages = list(dict.fromkeys(str(warning.message) for warning in caught))
    output.finish(treatment, lambda console: _show(treatment, messages, console))
    if not treatment.is_complete:
        typer.secho(treatment.status, err=True, fg="red", bold=True)
        raise typer.Exit(INTERRUPTED)


def _show(treatment: Treatment, messages: list[str], console: Console) -> None:
    """Print the answer and the lines to write, and then every arm."""
    show_treatment(treatment, console)
    console.print(f"\n{treatment.title}, and its difference to the untreated network:")
    console.print(_arms(treatment))
    if (priced := treatment.prices())[1]:
        console.print(f"\n{PRICES}:")
        console.print(_filled(*priced))
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


def _not_run(treatment: Treatment) -> list[Arm]:
    return [arm for arm in treatment.arms.values() if not arm.runs and arm.refused is None]


def _arms(treatment: Treatment) -> Table:
    """One line per arm that was run; the best in bold, those that diverged in red."""
    headings, body = treatment.table()
    trained = {name: arm for name, arm in treatment.arms.items() if arm.runs}
    styles = {
        name: "red" if arm.best_lr is None else "bold" if arm is treatment.best else "" for name, arm in trained.items()
    }
    return _filled(headings, [line for line in body if line[0] in trained], styles)


def _filled(headings: list[str], body: list[list[str]], styles: Mapping[str, str] | None = None) -> Table:
    """A table, each line in the style of its name."""
    table = new_table()
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("", "proposed by") else "right")
    for line in body:
        table.add_row(*(Text(cell, (styles or {}).get(line[0], "")) for cell in line))
    return table
