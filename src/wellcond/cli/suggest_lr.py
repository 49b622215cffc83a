"""`wellcond suggest-lr file.py:build`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from wellcond.cli.output import AsJson, Out, Output, Target, as_usage_errors, print_section
from wellcond.cli.target import built
from wellcond.verify.suggest_lr import suggest_lr as measure
from wellcond.verify.suggested_rate import SuggestedRate


def suggest_lr(
    target: Target,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of each trial run.", show_default="a pass over the batches, 20 to 200"),
    ] = None,
    momentum: Annotated[
        float | None,
        typer.Option(help="Of SGD, in place of the optimizer that FUNCTION returns.", show_default="its own, or 0.9"),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """With which learning rate to start?

    Measures how large a rate the curvature of the loss allows, predicts it from
    the architecture, then trains copies of your network for a few steps at rates
    around it, with your optimizer. Nothing of yours is changed. FUNCTION is that
    of [bold]wellcond diagnose[/bold].

    [bold]Examples[/bold]

    [cyan]wellcond suggest-lr train.py:build[/cyan]
    [cyan]wellcond suggest-lr train.py:build --steps 50 --out rates.png[/cyan]
    [cyan]wellcond suggest-lr train.py:build --momentum 0 --json[/cyan]
    """
    output = Output(out, as_json)
    with built(target) as (problem, optimizer), output.progress() as progress, as_usage_errors():
        own = optimizer if momentum is None else None
        found = measure(problem, own, steps, momentum=momentum, progress=progress)
    output.finish(found, lambda console: print_suggestion(console, f"{target}: {problem!r}", found))


def print_suggestion(console: Console, title: str, found: SuggestedRate) -> None:
    """Print the answers that there are, and what follows from them."""
    console.print(Text(title, style="bold"))
    for heading, part in (
        ("Measured, from the curvature at these weights", found.limit),
        ("Predicted, from the architecture", found.predicted),
        ("Tried, from these weights", found.trial),
    ):
        if part is not None:
            print_section(console, heading, str(part))
    for note in found.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)
    console.print(Text(f"\n{found.verdict()}", style="bold"), soft_wrap=True)
    console.print(Text(str(found.cost), style="dim"), soft_wrap=True)
