"""`wellcond report runs/a`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from wellcond.cli.commands.diagnose import FailOn, exit_code
from wellcond.cli.output import AsJson, Out, Output
from wellcond.cli.run_folder import RunFolder
from wellcond.recording.run import Run, read_run
from wellcond.report.health import digest_json
from wellcond.report.manifests import progress_text, run_name
from wellcond.report.terminal import show_findings

RUN_PAGE = Path("run.html")
"""The file that is written if no other is named."""


def report(
    folder: RunFolder,
    fail_on: Annotated[
        FailOn, typer.Option(help="Mildest finding that fails the command: severe exits with 4, a warning with 3.")
    ] = "severe",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """What happened in a training, as one page: verdict, findings on the loss, every layer over steps.

    DIR is what the recorder in your script was given as [bold]run_dir[/bold]; the training
    may still be running. The page is run.html unless --out names another
    file, opens offline, and has all findings with the lines to write. Findings
    that have ended count for the exit code as well.

    [bold]Examples[/bold]

    [cyan]wellcond report runs/a[/cyan]
    [cyan]wellcond report runs/a --out a.html --out rows.csv[/cyan]
    [cyan]wellcond report runs/a --json --fail-on warning[/cyan]
    """
    output = Output(out or ([] if as_json else [RUN_PAGE]), as_json)
    run = read_run(folder)
    output.finish(run, lambda console: _show(run, console), as_json=lambda: digest_json(run))
    raise typer.Exit(exit_code(run.findings, fail_on))


def _show(run: Run, console: Console) -> None:
    console.print(Text.assemble((run_name(run), "bold"), f"  {progress_text(run)}"))
    show_findings(run.verdict(), run.findings, console)
    for note in run.notes:
        console.print(Text(f"note: {note}", style="dim"))
