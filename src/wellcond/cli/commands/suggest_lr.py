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
        typer.Option(min=1, help="Length of the run that the rate is for, in training steps.", show_default="1000"),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(help="What it may take, in training steps.", show_default="5 % of --steps, at least 400"),
    ] = None,
    limits: Annotated[
        bool, typer.Option("--limits", help="Also show the limit that the curvature sets, and the one predicted.")
    ] = False,
    momentum: Momentum = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Which learning rate to start with?

    Trains copies of your network at several rates, with your optimizer on your
    mini-batches, and ends most of them early. Your own rate is one of them, and
    is kept unless another is better beyond noise. It takes 5 % of the planned
    steps, at least 400. Nothing of yours is changed. FUNCTION is that of
    [bold]wellcond diagnose[/bold].

    [bold]Examples[/bold]

    [cyan]wellcond suggest-lr train.py:build[/cyan]
    [cyan]wellcond suggest-lr train.py:build --steps 50000 --out rates.png[/cyan]
    [cyan]wellcond suggest-lr train.py:build --momentum 0 --json[/cyan]
    """
    output = Output(out, as_json)
    with output.problem(target, momentum) as (problem, optimizer, progress):
        try:
            suggestion = measure(
                problem, optimizer, steps=steps, max_steps=max_steps, momentum=momentum, progress=progress
            )
        except Interrupted as interrupt:
            known: SuggestedRate = interrupt.result
            output.finish(known, lambda console: show_suggestion(known, console, limits=limits))
            raise typer.Exit(INTERRUPTED) from None
    output.finish(suggestion, lambda console: show_suggestion(suggestion, console, limits=limits))


def show_suggestion(suggestion: SuggestedRate, console: Console, *, limits: bool) -> None:
    """Print which rate to start with and the race; then, if asked for, the limits."""
    answer, _, rest = str(suggestion).partition("\n\n")
    console.print(Text(answer, style="bold"), soft_wrap=True)
    console.print(Text(f"\n{rest}"), soft_wrap=True)
    if limits:
        print_sections(console, suggestion.theory)
