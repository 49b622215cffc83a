"""Measuring in parts: each may fail by itself, and each tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from wellcond.errors import InvalidProblem, NotDeterministic, WellcondError

Progress = Callable[[str, float], None]
"""Called as (what is being measured, share of all work done)."""
Done = Callable[[float], None]
"""Called with the share of the current part that is done."""

T = TypeVar("T")


class Parts:
    """Runs the parts of a measurement one after another and keeps the reasons of those that failed.

    >>> parts = Parts(None)
    >>> parts.measure("division", 1.0, lambda done: 1 / 0), parts.failed
    (None, {'division': 'ZeroDivisionError: division by zero'})
    """

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.failed: dict[str, str] = {}
        self._before = 0.0

    def measure(
        self, name: str, share: float, function: Callable[[Done], T], only: type[Exception] = Exception
    ) -> T | None:
        """Its result, or None after a failure of the kind `only`. A problem that cannot be measured raises."""
        begin = self._before
        self._before = begin + share

        def done(of_part: float) -> None:
            if self.progress is not None:
                self.progress(name, begin + share * min(of_part, 1.0))

        done(0.0)
        try:
            return function(done)
        except (InvalidProblem, NotDeterministic):
            raise
        except only as error:
            self.failed[name] = str(error) if isinstance(error, WellcondError) else _first_line(error)
            return None
        finally:
            done(1.0)


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
