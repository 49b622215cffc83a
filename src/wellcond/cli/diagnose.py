"""`wellcond diagnose file.py:build`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from wellcond.cli.progress import progress_bar
from wellcond.cli.target import built
from wellcond.diagnosis.diagnose import diagnose as measure
from wellcond.report.page import save_page
from wellcond.report.terminal import show
from wellcond.results.files import check_writable


def diagnose(
    target: Annotated[
        str,
        typer.Argument(metavar="FILE.py:FUNCTION", help="A function that returns a Problem, or (Problem, optimizer)."),
    ],
    out: Annotated[Path | None, typer.Option(help="Also write an interactive HTML report here.")] = None,
) -> None:
    """Measure your own network and print what is where.

    FUNCTION takes no arguments and returns a [bold]wellcond.Problem[/bold], or a pair
    (problem, optimizer): the optimizer's learning rate is then shown beside
    the largest stable one. Nothing of yours is changed.

    [bold]Example[/bold], in train.py:

    [cyan]import torch, wellcond as wc[/cyan]

    [cyan]def build():[/cyan]
    [cyan]    model = torch.nn.Linear(784, 10)[/cyan]
    [cyan]    images, labels = torch.rand(256, 784), torch.randint(10, (256,))[/cyan]
    [cyan]    return wc.Problem(model, torch.nn.CrossEntropyLoss(), (images, labels))[/cyan]

    and then:

    [cyan]wellcond diagnose train.py:build[/cyan]
    [cyan]wellcond diagnose train.py:build --out report.html[/cyan]
    """
    console = Console()
    if out is not None:
        check_writable(out)
    with built(target) as (problem, optimizer):
        with progress_bar(console) as report:
            diagnosis = measure(problem, optimizer, progress=report)
        console.print(f"{target}: {problem!r}", style="bold", markup=False, highlight=False)
        show(diagnosis, console)
        if out is not None:
            path = save_page({target: diagnosis}, out)
            console.print(f"report: {path}", markup=False, highlight=False, soft_wrap=True)
