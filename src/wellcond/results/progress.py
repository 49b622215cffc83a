"""Progress of a call that takes long: a bar in a terminal and in a notebook, nothing in a pipe."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from wellcond.results.result import Progress

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 0.5
"""Seconds after which a call shows a bar: one that ends earlier needs none."""
_is_inside: ContextVar[bool] = ContextVar("_is_inside", default=False)
"""Whether a call is part of another one, which shows the progress of both."""


class Bar:
    """A progress bar of rich, which appears after a while and is gone at the end.

    Args:
        console: Where it is shown; None: standard error.
        patience: Seconds before it appears.
    """

    def __init__(self, console: Any = None, patience: float = PATIENCE) -> None:
        self._console, self._begin = console, time.perf_counter() + patience
        self._plan = ""
        self._bar: Any = None
        self._task: Any = None

    def __call__(self, what: str, share: float) -> None:
        """Show what is being done, and the share of all work that is done."""
        if self._bar is None and time.perf_counter() >= self._begin:
            self._start()
        if self._bar is not None:
            text = f"{self._plan}: {what}" if self._plan else what
            self._bar.update(self._task, description=text, completed=share)

    def plan(self, text: str) -> None:
        """Say in front of everything else what the whole call will take."""
        self._plan = text

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
        console = self._console or Console(stderr=True)
        self._bar = RichProgress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self._bar.add_task("", total=1.0)
        self._bar.start()


def bar() -> contextlib.closing[Bar]:
    """A bar on standard error, which is gone at the end of a `with`."""
    return contextlib.closing(Bar())


def announce(progress: Progress, steps: float, seconds: float, share: float = 0.0) -> None:
    """Say what the work will take before it begins.

    Args:
        progress: What progress is reported to.
        steps: Training steps, at most.
        seconds: What they take, by a step that was timed.
        share: Share of all work that is done.
    """
    text = f"at most {steps:.0f} training steps, about {seconds:.2g} s"
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
        with _outermost():
            if kwargs.get("progress") is not None or not is_watched():
                return call(*args, **kwargs)
            with bar() as kwargs["progress"]:
                return call(*args, **kwargs)

    return showing


@contextlib.contextmanager
def _outermost() -> Iterator[None]:
    """Calls inside of this one show no bar of their own."""
    token = _is_inside.set(True)
    try:
        yield
    finally:
        _is_inside.reset(token)


def is_watched() -> bool:
    """Whether standard error is a terminal, or the cell of a notebook, and rich is there to draw on it."""
    shell = sys.modules.get("IPython")
    kernel = None if shell is None else shell.get_ipython()
    is_notebook = kernel is not None and type(kernel).__name__ == "ZMQInteractiveShell"
    if not is_notebook and not sys.stderr.isatty():
        return False
    return _has_rich()


@functools.cache
def _has_rich() -> bool:
    try:
        import rich  # noqa: F401
    except ImportError:
        return False
    return True
