"""Measuring in parts: each may fail without the others, and each reports how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from wellcond.errors import InvalidProblem, NotDeterministic, WellcondError
from wellcond.results import Progress

T = TypeVar("T")


class Parts:
    """Runs the parts of a measurement one after another and keeps the reasons of those that failed.

    Args:
        progress: Called as (name of the part, share of all work done).

    Attributes:
        failed: Why a part failed, by its name.

    Example:
        >>> parts = Parts(None)
        >>> parts.measure("division", 1.0, lambda report: 1 / 0), parts.failed
        (None, {'division': 'ZeroDivisionError: division by zero'})
    """

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.failed: dict[str, str] = {}
        self._done = 0.0

    def measure(
        self, name: str, share: float, function: Callable[[Progress], T], catch: type[Exception] = Exception
    ) -> T | None:
        """Run one part.

        Args:
            name: What it measures.
            share: Its share of all work.
            function: Called with the `progress` to pass on.
            catch: The failures that end only this part.

        Returns:
            What the function returns, or None after a failure.

        Raises:
            InvalidProblem: The problem cannot be measured at all.
            NotDeterministic: Its passes do not see the same.
        """
        begin = self._done
        self._done = begin + share

        def report(_what: str, share_of_part: float) -> None:
            if self.progress is not None:
                self.progress(name, min(begin + share * share_of_part, begin + share, 1.0))

        report(name, 0.0)
        try:
            return function(report)
        except (InvalidProblem, NotDeterministic):
            raise
        except catch as error:
            self.failed[name] = str(error) if isinstance(error, WellcondError) else _first_line(error)
            return None
        finally:
            report(name, 1.0)


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
