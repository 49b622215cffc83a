"""What an inspection could not check, and why: an error in one part of it is recorded, and the others go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from wellcond.network.calling import one_line

T = TypeVar("T")

MAX_ERROR_CHARS = 400
"""Characters kept of an exception's message."""


@dataclass(frozen=True)
class InspectionFailure:
    """One thing that could not be checked.

    Attributes:
        what: What was being inspected, as one reads it after "could not be checked".
        error: Type and message of the exception.
    """

    what: str
    error: str


class Failures:
    """Records the exceptions of an inspection's parts.

    Example:
        >>> failures = Failures()
        >>> failures.attempt("the inputs", lambda: 1 / 0, None)
        >>> failures.recorded
        (InspectionFailure(what='the inputs', error='ZeroDivisionError: division by zero'),)
    """

    def __init__(self) -> None:
        self._by_what: dict[str, InspectionFailure] = {}

    @property
    def recorded(self) -> tuple[InspectionFailure, ...]:
        """The first failure of each part, in order."""
        return tuple(self._by_what.values())

    @contextlib.contextmanager
    def recording(self, what: str) -> Iterator[None]:
        """Record an exception of the code inside, and go on after it."""
        try:
            yield
        except Exception as error:  # any part may meet a model, a loss or data that it was not written for
            name, message = type(error).__name__, shortened_message(error)
            text = name if message == name else f"{name}: {message}"
            self._by_what.setdefault(what, InspectionFailure(what, text))

    def attempt(self, what: str, function: Callable[[], T], otherwise: T) -> T:
        """The result of a function, or `otherwise` if it raises, which is recorded."""
        with self.recording(what):
            return function()
        return otherwise


def shortened_message(error: Exception) -> str:
    """The message of an exception on one line of limited length; the name of its type if it has none."""
    return one_line(error)[:MAX_ERROR_CHARS] or type(error).__name__
