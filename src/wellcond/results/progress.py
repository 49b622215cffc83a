"""Progress of a call that takes long: a bar in a terminal and in a notebook, nothing in a pipe."""

from __future__ import annotations

import contextlib
import functools
import html
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from wellcond.results.cell_output import CellOutput, is_notebook
from wellcond.results.result import Progress
from wellcond.results.text import duration

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 0.5
"""Seconds after which a call shows a bar: one that ends earlier needs none."""
BETWEEN = 0.2
"""Seconds between two pictures of a bar in a notebook, each of which is sent to the browser."""
_is_inside: ContextVar[bool] = ContextVar("_is_inside", default=False)
"""Whether a call is part of another one, which shows the progress of both."""


class Bar:
    """A progress bar of rich, which appears after a while and is gone at the end.

    Args:
        console: Where it is shown; None: standard error.
        patience: Seconds before it appears.
    """

    def __init__(self, console: Any = None, patience: float = PATIENCE) -> None:
        self._console, self._first = console, time.perf_counter()
        self._begin = self._next = self._first + patience
        self._plan = ""
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, what: str, share: float) -> None:
        """Show what is being done, and the share of all work that is done."""
        if time.perf_counter() >= self._begin:
            self._show(f"{self._plan}: {what}" if self._plan else what, share)

    def plan(self, text: str) -> None:
        """Say in front of everything else what the whole call will take."""
        self._plan = text

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _show(self, text: str, share: float) -> None:
        if self._bar is None:
            self._start()
        self._bar.update(self._task, description=text, completed=share)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        console = self._console or Console(stderr=True)
        self._bar = RichProgress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self._bar.add_task("", total=1.0)
        self._bar.start()


class NotebookBar(Bar):
    """A progress bar in the cell of a notebook, in plain HTML, which Jupyter, VS Code and Colab all show."""

    def close(self) -> None:
        if self._bar is not None:
            self._bar.show("", "")

    def _show(self, text: str, share: float) -> None:
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + BETWEEN
        left = (now - self._first) * (1 - share) / share if share > 0 else math.inf
        about = f"{share:.0%}" + (f", about {duration(left)} left" if 0 < left < math.inf else "")
        progress = f'<progress max="1" value="{share:.3f}" style="vertical-align: middle"></progress>'
        self._bar = self._bar or CellOutput()
        self._bar.show(f"{progress} {about} <small>{html.escape(text)}</small>", f"{about} {text}")


def bar() -> contextlib.closing[Bar]:
    """A bar on standard error or in the cell of a notebook, which is gone at the end of a `with`."""
    return contextlib.closing(NotebookBar() if is_notebook() else Bar())


def announce(progress: Progress, steps: float, seconds: float, share: float = 0.0, memory: str = "") -> None:
    """Say what the work will take before it begins.

    Args:
        progress: What progress is reported to.
        steps: Training steps, at most.
        seconds: What they take, by a step that was timed.
        share: Share of all work that is done.
        memory: What it holds, in words.
    """
    text = f"at most {steps:,.0f} training steps, about {duration(seconds)}{f'; {memory}' if memory else ''}"
    if isinstance(progress, Bar):
        progress.plan(text)
    else:
        progress(text, share)


def shows_progress(call: Callable[P, T]) -> Callable[P, T]:
    """Give a function a bar in a terminal or a notebook, unless `progress` is passed or another call shows one."""

    @functools.wraps(call)
    def showing(*args: P.args, **kwargs: P.kwargs) -> T:
        if _is_inside.get():
            return call(*args, **kwargs)
        with without_bars():
            if kwargs.get("progress") is not None or not is_watched():
                return call(*args, **kwargs)
            with bar() as kwargs["progress"]:
                return call(*args, **kwargs)

    return showing


@contextlib.contextmanager
def without_bars() -> Iterator[None]:
    """Calls inside of it show no bar of their own."""
    token = _is_inside.set(True)
    try:
        yield
    finally:
        _is_inside.reset(token)


def is_watched() -> bool:
    """Whether this is a notebook, or standard error a terminal with rich there to draw on it."""
    return is_notebook() or (sys.stderr.isatty() and _has_rich())


@functools.cache
def _has_rich() -> bool:
    try:
        import rich  # noqa: F401
    except ImportError:
        return False
    return True
