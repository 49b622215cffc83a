"""`wellcond diagnose file.py:build`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import typer
from rich.console import Console

from wellcond.cli.output import INTERRUPTED, AsJson, Out, Output, Target
from wellcond.diagnosis.diagnose import diagnose as measure
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.report.terminal import show_layers, show_verdict

LAST_OF_LAYERS = ("layers", "neurons")
"""With which part the table of layers is complete: all in one, or the last by itself."""


def diagnose(
    target: Target,
    budget: Annotated[
        str, typer.Option(metavar="fast|full|SECONDS", help="What it may take: fast is 40 passes at most.")
    ] = "fast",
    layers: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="List this layer, or those of this module; repeat it.", show_default="all"),
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure your own network and print what is where.

    FUNCTION takes no arguments and returns a [bold]wellcond.Problem[/bold], or a pair
    (problem, optimizer): the optimizer's learning rate is then shown beside
    the largest stable one. Nothing of yours is changed. The layers are printed
    first; Ctrl-C ends the rest and prints and saves what is known by then.

    [bold]Example[/bold], in train.py:

    [cyan]import torch, wellcond as wc[/cyan]

    [cyan]def build():[/cyan]
    [cyan]    model = torch.nn.Linear(784, 10)[/cyan]
    [cyan]    images, labels = torch.rand(256, 784), torch.randint(10, (256,))[/cyan]
    [cyan]    return wc.Problem(model, torch.nn.CrossEntropyLoss(), (images, labels))[/cyan]

    and then:

    [cyan]wellcond diagnose train.py:build[/cyan]
    [cyan]wellcond diagnose train.py:build --out report.html --out rows.csv[/cyan]
    [cyan]wellcond diagnose train.py:build --budget full --json[/cyan]
    """
    asked = _budget(budget)
    output = Output(out, as_json)
    has_layers = False

    def show_first(diagnosis: Diagnosis) -> None:
        nonlocal has_layers
        if not as_json and diagnosis.parts[-1].name in LAST_OF_LAYERS:
            output.print_title()
            show_layers(diagnosis, output.console)
            has_layers = True

    with output.problem(target) as (problem, optimizer, progress):
        diagnosis = measure(problem, optimizer, budget=asked, layers=layers, on_part=show_first, progress=progress)

    def show_rest(console: Console) -> None:
        if not has_layers:
            show_layers(diagnosis, console)
        show_verdict(diagnosis, console)

    about = diagnosis.about | {"model": f"{diagnosis.about['model']} of {target}"}
    output.finish(replace(diagnosis, about=about), show_rest)
    if diagnosis.is_interrupted:
        typer.secho("interrupted: this is what was known by then", err=True, fg="red", bold=True)
        raise typer.Exit(INTERRUPTED)


def _budget(text: str) -> Literal["fast", "full"] | float:
    named: dict[str, Literal["fast", "full"]] = {"fast": "fast", "full": "full"}
    try:
        return named.get(text) or float(text)
    except ValueError:
        raise typer.BadParameter(f"--budget is {text!r}; write fast, full or a number of seconds.") from None
