"""A progress bar with an estimate of the time that is left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from wellcond.problem.parts import Progress as Report


@contextlib.contextmanager
def progress_bar(console: Console) -> Iterator[Report]:
    """Yields the function to call as (what is being done, share of all work); the bar is gone at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)
