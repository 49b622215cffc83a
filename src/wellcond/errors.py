"""Exceptions whose text says what is wrong, where, and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class WellcondError(Exception):
    """Base of everything wellcond raises on purpose."""


class InvalidProblem(WellcondError, ValueError):
    """The model, loss or batches cannot be measured as given."""


class Unsupported(WellcondError, ValueError):
    """There is no rule for a part of the model, or it does not allow what was asked for."""


class NotDeterministic(WellcondError, RuntimeError):
    """Two passes over the same problem saw different data or gave different losses."""


class NonFinite(WellcondError, FloatingPointError):
    """NaN or infinity in the data, the weights, an activation or the loss."""


class UnknownLayer(WellcondError, KeyError):
    """A name that is neither a parameter nor a module of the model.

    Args:
        name: The name that was not found.
        known: The names that exist; the closest are suggested.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        known = list(known)
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
        self.message = (
            f"there is no layer or parameter {name!r} here. "
            f"Closest: {', '.join(map(repr, close)) or 'none, the model has no trainable parameters'}."
        )
        super().__init__(self.message)

    def __str__(self) -> str:  # KeyError would show the repr of the text
        return self.message


class TooLarge(WellcondError, MemoryError):
    """An exact result was asked for whose matrix does not fit the stated limit."""


class MissingExtra(WellcondError, ImportError):
    """An optional library is not installed.

    Args:
        library: The library that could not be imported.
        extra: The extra of wellcond that installs it.
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f'{library} is not installed. Run:  pip install "wellcond[{extra}]"')


class OutputError(WellcondError, OSError):
    """A file cannot be written where, or in the form, it was asked for."""


class DataNotFound(WellcondError, FileNotFoundError):
    """The files of a data set are not where they were looked for."""


class CorruptData(WellcondError, ValueError):
    """A data file does not hold what its format promises."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a measurement that already knew something. Nothing else changes: `except KeyboardInterrupt` works.

    Attributes:
        result: What was known, of the kind that the measurement returns; its status says that it was interrupted.
    """

    def __init__(self, result: Any) -> None:
        super().__init__(f"{getattr(result, 'status', 'interrupted')}; see .result of this exception")
        self.result = result
