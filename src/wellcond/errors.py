"""Exceptions, whose messages say what is wrong, where, and what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

PAGE = "More about {name}: the section of this name in docs/errors.md of wellcond's repository"
"""Note below the traceback of every exception."""


def _add_page(error: BaseException) -> None:
    error.add_note(PAGE.format(name=type(error).__name__))


class WellcondError(Exception):
    """Base class of wellcond's exceptions."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        _add_page(self)


class InvalidProblem(WellcondError, ValueError):
    """The model, loss or batches cannot be measured as they are."""


class NoLoss(InvalidProblem):
    """What a model or a training step returns is no loss that a gradient could be taken of."""


class Unsupported(WellcondError, ValueError):
    """Not possible for this model, as when a layer type has no rule."""


class NotDeterministic(WellcondError, RuntimeError):
    """Two passes over the same problem saw different data or gave different losses."""


class NonFinite(WellcondError, FloatingPointError):
    """NaN or infinity in the data, the weights, an activation or the loss."""


class LostRank(WellcondError, RuntimeError):
    """A process of a training on several has ended, came late, or does not answer."""


class UnknownLayer(WellcondError, KeyError):
    """A name that is neither a parameter nor a module of the model.

    Args:
        name: The unknown name.
        known: Names that exist; the closest are suggested.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        known = list(known)
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
        self.message = (
            f"there is no layer or parameter {name!r} here. "
            f"Closest: {', '.join(map(repr, close)) or 'none, the model has no trainable parameters'}."
        )
        super().__init__(self.message)

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return self.message


class TooLarge(WellcondError, MemoryError):
    """The matrix of an exact result exceeds the memory limit."""


class MissingExtra(WellcondError, ImportError):
    """An optional library is not installed.

    Args:
        library: The library that could not be imported.
        extra: The extra of wellcond that installs it.
    """

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f'{library} is not installed. Run:  pip install "wellcond[{extra}]"')


class OutputError(WellcondError, OSError):
    """A file cannot be written, or the result has no such format."""


class RunInUse(OutputError):
    """Another process writes to a run directory.

    Args:
        path: The run directory.
        holder: The process that writes to it.
    """

    def __init__(self, path: object, holder: str) -> None:
        super().__init__(
            f"{path} is being written by {holder}; a run directory has one writer at a time. Name another run_dir, or "
            "end that process."
        )


class DataNotFound(WellcondError, FileNotFoundError):
    """The files of a data set are missing."""


class CorruptData(WellcondError, ValueError):
    """A data file is damaged or not in its format."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a measurement that has a first result. It is a `KeyboardInterrupt`, and can be caught as one.

    Attributes:
        result: The first result, of the type that the measurement returns; its status says that it was interrupted.
    """

    def __init__(self, result: Any) -> None:
        super().__init__(f"{getattr(result, 'status', 'interrupted')}; see .result of this exception")
        _add_page(self)
        self.result = result
