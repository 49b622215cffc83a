"""`remedy`: the decorator that makes a function of set-ups a remedy, and the table of all remedies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from wellcond.remedies.setup import Setup

Apply = Callable[[Setup], Setup | None]


@dataclass(frozen=True)
class Remedy:
    """One remedy.

    Attributes:
        name: Stable; it is what users select.
        apply: Patient → treated patient, or None where there is nothing to treat; raises `Unsupported` where the
            network does not allow it.
        part: What of the training it changes; two remedies of one part are not combined.
        rules: The findings that it is a remedy for.
    """

    name: str
    apply: Apply
    part: str
    rules: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """What it does and why: the docstring of its function."""
        return inspect.cleandoc(self.apply.__doc__ or "")


REMEDIES: dict[str, Remedy] = {}
"""By name."""


def remedy(name: str, part: str, *, rules: Iterable[str] = ()) -> Callable[[Apply], Apply]:
    """Make a function of patients a remedy that `treat` tries.

    Args:
        name: Of the remedy.
        part: What of the training it changes; two remedies of one part are not combined.
        rules: The findings that it is a remedy for.

    Example:
        >>> @remedy("prayer", "nothing", rules=["loss-not-decreasing"])
        ... def prayer(patient: Patient) -> Patient | None:
        ...     '''Changes nothing.'''
        ...     return patient
        >>> REMEDIES.pop("prayer").why
        'Changes nothing.'
    """

    def register(apply: Apply) -> Apply:
        REMEDIES[name] = Remedy(name, apply, part, tuple(rules))
        return apply

    return register
