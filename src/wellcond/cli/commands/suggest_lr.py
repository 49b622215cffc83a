"""`wellcond suggest-lr file.py:build`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from wellcond.cli.output import INTERRUPTED, AsJson, Momentum, Out, Output, Target, print_sections
from wellcond.errors import Interrupted
from wellcond.learning_rate.race.suggest_lr import suggest_lr as measure
from wellcond.learning_rate.race.suggested_rate import SuggestedRate


def suggest_lr(
    target: Target,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Length of the run that the rate is for.", show_default="1000"),
    ] = None,
    momentum: Momentum = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """With which learning rate to start?

    Races rates: copies of your network, your optimizer, your mini-batches, most
    rates dropped early. About 500 training steps in all. The curvature of the
    loss says where to begin. Nothing of yours is changed. FUNCTION is that of
    [bold]wellcond diagnose[/bold].

    [bold]Examples[/bold]

    [cyan]wellcond suggest-lr train.py:build[/cyan]
    [cyan]wellcond suggest-lr train.py:build --steps 5000 --out rates.png[/cyan]
    [cyan]wellcond suggest-lr train.py:build --momentum 0 --json[/cyan]
    """
    output = Output(out, as_json)
    with output.problem(target, momentum) as (problem, optimizer, progress):
        try:
            found = measure(problem, optimizer, steps=steps, momentum=momentum, progress=progress)
        except Interrupted as interrupt:
            known: SuggestedRate = interrupt.result
            output.finish(known, lambda console: print_suggestion(known, console))
            raise typer.Exit(INTERRUPTED) from None
    output.finish(found, lambda console: print_suggestion(found, console))


def print_suggestion(found: SuggestedRate, console: Console) -> None:
    """Print the answers that there are, and what follows from them."""
    console.print(Text(found.verdict(), style="bold"), soft_wrap=True)
    print_sections(console, found.parts)
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)
    console.print(Text(str(found.cost), style="dim"), soft_wrap=True)
