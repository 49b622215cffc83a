"""Fingerprints: whether a state is still the same at another time."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_
from typing import Any

import torch
from torch import Tensor

NUMBERS = frozenset({int, float, bool, complex, str, bytes})
LARGE = 2**14
"""Tensors of more entries are compared one by one, smaller ones all at once."""
IMMUTABLE = NUMBERS | {type(None), type(...), type(NotImplemented), torch.dtype, torch.device, torch.Size, range, slice}


class Fingerprint:
    """A state to compare with itself at another time: numbers by a copy of them, other objects by identity.

    Args:
        values: Values in the form of `Snapshot.values`.
        tensors: Tensors, which are copied: version counters do not notice writes to `.data`.
        is_passing: Whether it is compared at once and then dropped: large tensors are not copied then.
    """

    def __init__(self, values: list[Any], tensors: Iterable[Tensor], *, is_passing: bool = False) -> None:
        self._values = values
        self._kinds = []
        self._large: list[Tensor] = []
        parts: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for t in map(Tensor.detach, tensors):
            self._kinds.append(t.shape)
            if t.numel() > LARGE:
                self._large.append(t if is_passing else t.clone())
            else:
                parts.setdefault((t.dtype, t.device), []).append(t.reshape(-1))
        self._contents = {kind: torch.cat(flat) for kind, flat in parts.items()}

    def is_same_as(self, other: Fingerprint) -> bool:
        """Whether nothing has changed between the two."""
        mine, its = self._contents, other._contents
        return (
            len(self._values) == len(other._values)
            and (all(map(is_, self._values, other._values)) or all(map(_is_same, self._values, other._values)))
            and self._kinds == other._kinds
            and mine.keys() == its.keys()
            and all(torch.equal(mine[kind], its[kind]) for kind in mine)
            and len(self._large) == len(other._large)
            and all(map(_is_equal, self._large, other._large))
        )


def _is_equal(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.device == second.device and torch.equal(first, second)


def _is_same(first: Any, second: Any) -> bool:
    return first is second or (type(first) is type(second) and type(first) in IMMUTABLE and bool(first == second))
