"""`wellcond watch runs/a`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.control import Control
from rich.screen import Screen

from wellcond.cli.output import AsJson
from wellcond.cli.run_folder import RunFolder
from wellcond.errors import DataNotFound
from wellcond.recording.run import Follower, Run
from wellcond.report.health import digest_json
from wellcond.report.terminal import new_console
from wellcond.report.watch import frame


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
        typer.echo(digest_json(follower.read()))
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
        # Live of rich takes several steps to begin, and Ctrl-C between them would leave the terminal as it is then
        console.set_alt_screen(True)
        console.show_cursor(False)
        _draw(run, console)
        while run.status == "running":
            time.sleep(every)
            run = follower.read()
            _draw(run, console)
    finally:
        console.set_alt_screen(False)
        console.show_cursor(True)
        console.print(frame(run))


def _draw(run: Run, console: Console) -> None:
    console.control(Control.home())
    console.print(Screen(frame(run)), end="")


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
