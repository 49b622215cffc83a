"""`wellcond compare runs/a runs/b`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from wellcond.cli.output import AsJson, Out, Output
from wellcond.recording.comparison import Comparison, compare_runs
from wellcond.recording.run import Run, read_run
from wellcond.report.comparisons import tables
from wellcond.report.manifests import run_name
from wellcond.report.terminal import new_table


def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR DIR…", help="The run_dir of two or more recorders.", show_default=False)
    ],
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """What differs between trainings: settings, losses at equal steps, findings, and layers.

    The first run is what the others are compared with. A loss is the median
    of the steps around it. Layers are compared by the ratio of their gradient
    norms, update ratios and activations at equal steps.

    [bold]Examples[/bold]

    [cyan]wellcond compare runs/a runs/b[/cyan]
    [cyan]wellcond compare runs/a runs/b runs/c --out compare.html[/cyan]
    [cyan]wellcond compare runs/a runs/b --json | jq .values.settings[/cyan]
    """
    if len(folders) < 2:
        raise typer.BadParameter("name two or more runs, as in: wellcond compare runs/a runs/b")
    output = Output(out, as_json)
    comparison = compare_runs(_by_name(folders))
    output.finish(comparison, lambda console: _show(comparison, console))


def _by_name(folders: list[Path]) -> dict[str, Run]:
    """Runs by the ends of their paths, or by all of a path where two have the same end."""
    runs = [read_run(folder) for folder in folders]
    short = [run_name(run) for run in runs]
    names = short if len({*short}) == len(runs) else [str(run.path) for run in runs]
    if len({*names}) < len(runs):
        raise typer.BadParameter("a run is named twice; name different ones.")
    return dict(zip(names, runs, strict=True))


def _show(comparison: Comparison, console: Console) -> None:
    console.print(Text(comparison.verdict(), style="bold"))
    for title, header, body, nothing in tables(comparison):
        if not body:
            console.print(Text.assemble((f"\n{title}: ", "bold cyan"), nothing))
            continue
        console.print(Text(f"\n{title}", style="bold cyan"))
        table = new_table()
        for i, heading in enumerate(header):
            table.add_column(Text(heading), justify="right" if i else "left", overflow="fold")
        for each in body:
            table.add_row(*map(Text, each))
        console.print(table)
