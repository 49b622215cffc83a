"""`wellcond watch runs/a`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from wellcond.cli.output import AsJson
from wellcond.errors import DataNotFound
from wellcond.recording.run import Follower, Run
from wellcond.report.terminal import new_console
from wellcond.report.watch import by_health, frame, last_values
from wellcond.results.result import as_json as jsonable

RunFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The run_dir of a recorder.")]


def watch(
    folder: RunFolder,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print it once and stop, as it does in a pipe.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch a training while it runs: loss, rate against its limit, layers by health, findings as they come.

    DIR is what the recorder in your script was given as [bold]run_dir[/bold]; if it is
    not there yet, this waits for it. It only reads, needs no graphics, and is at
    home in an ssh session. It ends with the training, or with Ctrl-C.

    [bold]Examples[/bold]

    [cyan]wellcond watch runs/a[/cyan]
    [cyan]wellcond watch runs/a --once[/cyan]
    [cyan]wellcond watch runs/a --json | jq .findings[/cyan]
    """
    follower = Follower(folder)
    console = new_console()
    if as_json:
        typer.echo(json.dumps(state_of(follower.read()), indent=1, ensure_ascii=False, allow_nan=False))
    elif once or not console.is_terminal:
        console.print(frame(follower.read()))
    else:
        try:
            follow(follower, folder, console, every)
        except KeyboardInterrupt:
            raise typer.Exit from None


def follow(follower: Follower, folder: Path, console: Console, every: float) -> None:
    """Show a run until it ends; the last picture stays on the terminal."""
    run = _wait_for(follower, folder, console, every)
    try:
        with Live(frame(run), console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while run.status == "running":
                time.sleep(every)
                run = follower.read()
                live.update(frame(run), refresh=True)
    finally:
        console.print(frame(run))


def state_of(run: Run) -> dict[str, Any]:
    """What the picture shows, for programs."""
    values = last_values(run)
    state: dict[str, Any] = jsonable(
        {
            "path": str(run.path),
            "status": run.status,
            "step": run.last_step,
            "seconds": run.seconds,
            "verdict": run.verdict(),
            "network": {name: float(run.history.series(name).values[-1]) for name in run.history.quantities() if len(run.history.series(name))},
            "layers": {layer: values[layer] for layer in by_health(run)},
            "findings": run.findings,
        }
    )
    return state


def _wait_for(follower: Follower, folder: Path, console: Console, every: float) -> Run:
    is_announced = False
    while True:
        try:
            return follower.read()
        except DataNotFound:
            if not is_announced:
                console.print(f"waiting for a run in {folder}; Ctrl-C ends this", soft_wrap=True)
            is_announced = True
            time.sleep(every)
