"""`wellcond suggest-lr file.py:build`."""

from __future__ import annotations

from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.text import Text

from wellcond.cli.output import INTERRUPTED, AsJson, Momentum, Out, Output, Target, print_sections
from wellcond.errors import Interrupted
from wellcond.learning_rate.race.rate_table import lr_table
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
        typer.Option(help="What it may take, in training steps.", show_default="5 % of --steps, at least 500"),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(help="Race for each of these batch sizes, as 16,64,256, and show how the rate depends on them."),
    ] = None,
    weight_decays: Annotated[
        str | None, typer.Option(help="Race for each of these weight decays, as 0,0.01,0.1, likewise.")
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
    steps, at least 500. Nothing of yours is changed. FUNCTION is that of
    [bold]wellcond diagnose[/bold].

    [bold]Examples[/bold]

    [cyan]wellcond suggest-lr train.py:build[/cyan]
    [cyan]wellcond suggest-lr train.py:build --steps 50000 --out rates.png[/cyan]
    [cyan]wellcond suggest-lr train.py:build --batch-sizes 16,64,256 --weight-decays 0,0.01[/cyan]
    [cyan]wellcond suggest-lr train.py:build --momentum 0 --json[/cyan]
    """
    output = Output(out, as_json)
    with output.problem(target, momentum) as (problem, optimizer, progress):
        if batch_sizes is not None or weight_decays is not None:
            table = lr_table(
                problem,
                optimizer,
                batch_sizes=_numbers(int, batch_sizes),
                weight_decays=_numbers(float, weight_decays),
                steps=steps,
                max_steps=max_steps,
                progress=progress,
            )
            output.finish(table, lambda console: console.print(Text(str(table)), soft_wrap=True))
            return
        try:
            suggestion = measure(
                problem, optimizer, steps=steps, max_steps=max_steps, momentum=momentum, progress=progress
            )
        except Interrupted as interrupt:
            known: SuggestedRate = interrupt.result
            output.finish(known, lambda console: show_suggestion(known, console, limits=limits))
            raise typer.Exit(INTERRUPTED) from None
    output.finish(suggestion, lambda console: show_suggestion(suggestion, console, limits=limits))


Number = TypeVar("Number", int, float)


def _numbers(kind: type[Number], text: str | None) -> list[Number]:
    try:
        return [kind(part) for part in (text or "").split(",") if part.strip()]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers; write them as 16,64,256.") from None


def show_suggestion(suggestion: SuggestedRate, console: Console, *, limits: bool) -> None:
    """Print which rate to start with and the race; then, if asked for, the limits."""
    answer, _, rest = str(suggestion).partition("\n\n")
    console.print(Text(answer, style="bold"), soft_wrap=True)
    console.print(Text(f"\n{rest}"), soft_wrap=True)
    if limits:
        print_sections(console, suggestion.theory)
