"""Indices of a data set: which a loader draws, whether their examples overlap, and a loader without some of them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader

from wellcond.network.calling import tensors_in
from wellcond.network.isolation.isolation import loader_generators_kept, seed_generators

MOST_INDICES = 2**20
"""Indices of a sampler that are read: one may be endless."""
COMPARED_PAIRS = 3
"""Pairs of neighbors that must all overlap in the same way: one pair may by chance."""


def drawn_indices(loader: DataLoader[Any], device: torch.device) -> list[Any]:
    """The indices of one pass of a loader, in the order of its sampler; the caller restores global generators."""
    batched = loader.batch_sampler
    with loader_generators_kept(loader, 0):
        seed_generators(0, device)
        order: Iterable[Any] = loader.sampler if batched is None else (i for batch in batched for i in batch)
        return list(islice(order, MOST_INDICES))


def overlapping(dataset: Any, indices: Sequence[Any]) -> int:
    """How many of the examples after one share a part of it, as windows of one sequence do; 0 if examples are apart.

    Example:
        >>> text = torch.arange(100).sin()
        >>> windows = [text[i : i + 8] for i in range(90)]
        >>> overlapping(windows, range(90)), overlapping(windows[::8], range(11)), overlapping(windows[::4], range(22))
        (7, 0, 1)
    """
    if not all(isinstance(index, int) for index in indices):
        return 0
    known = set(indices)
    neighbors = [index for index in indices if index + 1 in known][:COMPARED_PAIRS]
    shifts = {_shift(dataset[index], dataset[index + 1]) for index in neighbors}
    return next(iter(shifts)) if len(shifts) == 1 and len(neighbors) == COMPARED_PAIRS else 0


def _shift(one: Any, following: Any) -> int:
    """The number of later examples that overlap with one, by how far the next one is shifted; 0 if it is not."""
    a, b = (next((t for t in tensors_in(each) if t.dim()), torch.zeros(0)) for each in (one, following))
    if a.shape != b.shape:
        return 0
    return next((-(-len(a) // shift) - 1 for shift in range(1, len(a)) if _are_same(a[shift:], b[:-shift])), 0)


def _are_same(a: Tensor, b: Tensor) -> bool:
    """Whether two parts are the same, and no blank margin."""
    return torch.equal(a, b) and bool((a != a.reshape(-1)[0]).any())


def loader_without(loader: DataLoader[Any], apart: Collection[Any], length: int) -> DataLoader[Any]:
    """A copy of a loader that never draws some indices; its sampler, batch size and `collate_fn` stay.

    Args:
        loader: The loader, which stays as it is.
        apart: The indices to leave out.
        length: Indices of one pass that are left.
    """
    batched = loader.batch_sampler
    changed: dict[str, Any]
    if batched is None:
        changed = {"sampler": _Without(loader.sampler, apart, length)}
    elif type(batched) is BatchSampler:
        sampler = _Without(batched.sampler, apart, length)
        changed = {"batch_sampler": BatchSampler(sampler, batched.batch_size, batched.drop_last)}
    else:
        changed = {"batch_sampler": _BatchesWithout(batched, apart)}
    twin = copy.copy(loader)
    vars(twin).update(changed, _iterator=None, persistent_workers=False)
    return twin


class _Without:
    """A sampler without some of its indices."""

    def __init__(self, sampler: Any, apart: Collection[Any], length: int) -> None:
        self.sampler, self._apart, self._length = sampler, frozenset(apart), length

    def __iter__(self) -> Iterator[Any]:
        return (index for index in self.sampler if index not in self._apart)

    def __len__(self) -> int:
        return self._length


class _BatchesWithout:
    """A user's own sampler of batches, without some indices in each."""

    def __init__(self, sampler: Any, apart: Collection[Any]) -> None:
        self.sampler, self._apart = sampler, frozenset(apart)

    def __iter__(self) -> Iterator[list[Any]]:
        for batch in self.sampler:
            if trained := [index for index in batch if index not in self._apart]:
                yield trained

    def __len__(self) -> int:
        return len(self.sampler)
