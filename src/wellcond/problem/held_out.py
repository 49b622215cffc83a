"""Examples that are never trained on: which they are, and the batches of all others."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from wellcond.network.calling import tensors_in
from wellcond.network.isolation.isolation import rng_kept
from wellcond.problem.batches import (
    ENOUGH_EXAMPLES,
    MOST_BATCHES,
    Source,
    cloned,
    examples_in,
    read,
    same_batch,
    share_examples,
)
from wellcond.problem.indices import drawn_indices, loader_without, overlapping
from wellcond.problem.loss.outputs import with_tensors

ONE_IN = 5
"""One example in five is held out, until there are `ENOUGH_EXAMPLES`."""
LEAST, OF_LEAST = 8, 16
"""Examples to hold out, so that two parts of two are judged, which have a standard error; and of how many at least."""
LEAST_BATCHES = 4
"""Whole batches to hold out, where batches cannot be cut, for the same reason."""
PARTS, CHOOSING = 24, 3
"""Batches that the held-out examples are cut into: their losses show how far another sample would differ. Every third
is for choosing, the others for judging."""
OWN_ORDER = "the loader makes its own order, so some of them may be trained on too; pass validation= to be sure"


@dataclass(frozen=True)
class HeldOut:
    """Data in two parts: what is trained on, and what is never trained on.

    Attributes:
        training: A re-iterable of batches.
        batches: The held-out batches, small ones; none if there are too few examples.
        about: What is held out, in words, or why nothing is.
    """

    training: Iterable[Any]
    batches: tuple[Any, ...]
    about: str

    @property
    def choosing(self) -> list[Any]:
        """The third by which anything may be chosen: which arms go on, and after how many steps to stop."""
        return list(self.batches[::CHOOSING])

    @property
    def judging(self) -> list[Any]:
        """The others, by which nothing is chosen, so that their loss is no better by chance."""
        return [batch for place, batch in enumerate(self.batches) if place % CHOOSING]


def held_out(source: Source, device: torch.device, validation: Any = None) -> HeldOut:
    """Hold out about a fifth of the examples, the same ones whenever it is called, or take others for that.

    The data set of a `DataLoader` is split by its indices, so that nothing leaks however the loader shuffles; its
    sampler, batch size and `collate_fn` stay. Of windows of one sequence that overlap, the last fifth is held out. Of
    at least 20 other batches every fifth is held out; fewer are cut.

    Args:
        source: The user's batches.
        device: Device of the model, whose generators stay as they are.
        validation: Batches that are not trained on, in any form that `Problem` takes; then nothing else is held out.

    Example:
        >>> x = torch.arange(40.0)[:, None]
        >>> split = held_out(Source(DataLoader(list(zip(x, x)), batch_size=8, shuffle=True), None), torch.device("cpu"))
        >>> trained = {float(v) for batch in split.training for v in batch[0]}
        >>> len(trained), trained & {float(v) for batch in split.batches for v in batch[0]}
        (32, set())
    """
    with rng_kept(device):
        if validation is not None:
            drawn, _ = Source(validation, device).drawn(0, ENOUGH_EXAMPLES)
            return _split(source.loader, _in_parts(drawn), "passed as validation")
        loader = source.loader
        if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
            return _by_index(source, loader, device)
        if not isinstance(loader, (list, tuple)):
            first = list(islice(map(cloned, read(loader, 0, device)), ONE_IN * LEAST_BATCHES))
            if len(first) == ONE_IN * LEAST_BATCHES:
                return _by_place(loader, device)
            loader = first
        return _of_list(source, loader)


def _split(training: Iterable[Any], batches: Sequence[Any], what: str) -> HeldOut:
    count = sum(map(examples_in, batches))
    return HeldOut(training, tuple(batches), f"{count} held-out examples ({what})")


def not_held_out(source: Source, why: str) -> HeldOut:
    """All data are trained on, for a reason."""
    return HeldOut(source.loader, (), f"training: {why}, so nothing is held out; pass validation= to have that")


def _by_index(source: Source, loader: DataLoader[Any], device: torch.device) -> HeldOut:
    """Split the data set of a loader by the indices that its sampler gives."""
    drawn = drawn_indices(loader, device)
    indices = list(dict.fromkeys(drawn))  # a sampler may give one several times
    if len(indices) < OF_LEAST:
        return not_held_out(source, f"there are {len(indices)} examples")
    count = max(len(indices) // ONE_IN, LEAST)
    reach = overlapping(loader.dataset, indices)
    if reach:
        block = sorted(indices)[-count:]  # windows of one sequence, the last of which are held out
        apart, what = {*block, *range(block[0] - reach, block[0])}, f"the last fifth, windows that overlap by {reach}"
        chosen = random.Random(0).sample(block, min(count, ENOUGH_EXAMPLES))
    else:
        # a stride would meet data in which every fifth is of one class
        chosen = random.Random(0).sample(indices, min(count, ENOUGH_EXAMPLES))
        apart, what = set(chosen), f"one in {len(indices) // len(chosen)}"
    if loader.batch_sampler is None:
        held = DataLoader(loader.dataset, batch_size=None, sampler=chosen[:MOST_BATCHES], collate_fn=loader.collate_fn)
    else:
        parts = list(_even_parts(chosen, PARTS))
        held = DataLoader(loader.dataset, batch_sampler=parts, collate_fn=loader.collate_fn)
    training = loader_without(loader, apart, length=sum(index not in apart for index in drawn))
    return _split(training, list(map(cloned, read(held, 0, device))), what)


# other batches


def _by_place(loader: Iterable[Any], device: torch.device) -> HeldOut:
    """Hold out every fifth batch, at most `MOST_BATCHES` of them."""
    places = range(ONE_IN - 1, min(ONE_IN * MOST_BATCHES, length_hint(loader, 2**31)), ONE_IN)
    with contextlib.closing(read(loader, 0, device)) as batches:
        held = [cloned(batch) for place, batch in enumerate(islice(batches, places.stop)) if place in places]
    with contextlib.closing(read(loader, 1, device)) as batches:
        has_own_order = not same_batch(next(islice(batches, places.start, None)), held[0])
    what = f"{len(held)} batches, one in {ONE_IN}" + (f"; {OWN_ORDER}" if has_own_order else "")
    return _split(_Skipping(loader, places), _in_parts(held), what)


class _Skipping:
    """A loader without the batches at some places of each pass."""

    def __init__(self, loader: Iterable[Any], places: range) -> None:
        self.loader, self._places = loader, places

    def __iter__(self) -> Iterator[Any]:
        return (batch for place, batch in enumerate(self.loader) if place not in self._places)

    def __length_hint__(self) -> int:
        length = length_hint(self.loader, 0)
        return length - len([place for place in self._places if place < length])


def _of_list(source: Source, batches: Sequence[Any]) -> HeldOut:
    """Whole batches of a long list; of a short one some examples of each batch."""
    sizes = list(map(examples_in, batches))
    can_cut = all(map(share_examples, batches))
    share = max(1 / ONE_IN, LEAST / sum(sizes))
    counts = [round(share * size) for size in sizes]
    if can_cut and len(batches) < ONE_IN * LEAST_BATCHES and sum(sizes) >= OF_LEAST and sum(counts) >= LEAST:
        places = [
            set(random.Random(i).sample(range(n), count))
            for i, (n, count) in enumerate(zip(sizes, counts, strict=True))
        ]
        held = [_taken(batch, sorted(at)) for batch, at in zip(batches, places, strict=True) if at]
        rest = [
            _taken(batch, sorted(set(range(size)) - at)) for batch, size, at in zip(batches, sizes, places, strict=True)
        ]
        return _split(rest, _in_parts(held), f"one in {round(1 / share)} of each batch")
    if len(batches) < 2 * LEAST_BATCHES:
        return not_held_out(source, f"there are {sum(sizes)} examples" if can_cut else "the batches cannot be cut")
    stride = min(ONE_IN, len(batches) // LEAST_BATCHES)
    every = range(stride - 1, min(len(batches), stride * MOST_BATCHES), stride)
    rest = [batch for place, batch in enumerate(batches) if place not in every]
    return _split(rest, _in_parts([batches[i] for i in every]), f"{len(every)} batches, one in {stride}")


def _in_parts(batches: Sequence[Any]) -> list[Any]:
    """Batches cut into about `PARTS` in all, of two examples or more, where they can be cut."""
    if not all(map(share_examples, batches)):
        return list(batches)
    each = -(-PARTS // len(batches))
    return [_taken(batch, part) for batch in batches for part in _even_parts([*range(examples_in(batch))], each)]


def _even_parts(items: list[Any], most: int) -> Iterator[list[Any]]:
    """Items in parts of two or more, as equal as can be."""
    count = max(1, min(most, len(items) // 2))
    return (items[i * len(items) // count : (i + 1) * len(items) // count] for i in range(count))


def _taken(batch: Any, places: list[int]) -> Any:
    """The examples of a batch at these places."""
    return with_tensors(batch, {id(t): t[torch.tensor(places, device=t.device)] for t in tensors_in(batch)})
