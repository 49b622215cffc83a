"""The batches of all processes, as the process that leads sees them: those that are measured, and those of training."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count, repeat
from operator import length_hint
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from wellcond.errors import Unsupported
from wellcond.network.calling import to_device
from wellcond.problem.batches import Source, cloned, examples_in, readable, share_examples
from wellcond.problem.ranks.orders import Member, answers_of_all, order

TOGETHER = 64
"""Examples up to which the batches of several processes are measured as one, as the trial's mini-batches are cut."""
NOT_JOINED = (
    "the batches of the processes cannot be joined along their examples, so copies cannot be trained on the batches "
    "of all."
)
CPU = torch.device("cpu")
PLAIN = (str, bytes, int, float, bool, type(None), type)


class RankSource(Source):
    """The batches of all processes, each of which has chosen its own as it would alone.

    Args:
        member: This process, which leads.
        couples: Whether examples of a batch depend on each other, as by BatchNorm: each process's batches stay apart.
    """

    def __init__(self, member: Member, couples: bool) -> None:
        self.member, self._couples = member, couples
        self._device = member.problem.device
        self._numbers = count()
        self._ended: list[int] = []
        self.lengths: list[int]
        self.lengths, self._are_held, self._note = member.ask(described)
        self.loader = RankLoader(self)

    @property
    def is_read(self) -> bool:
        return True

    @property
    def fixed(self) -> tuple[Any, str]:
        if self._fixed is None:
            self._fixed = RankBatches(self, self.lengths, self._couples, is_kept=self._are_held), self._note
        return self._fixed

    _fixed: tuple[Any, str] | None = None

    def drawn(self, seed: int, examples: int) -> tuple[list[Any], bool]:
        drawn: list[Any] = []
        with contextlib.closing(self.draws(seed, epochs=1)) as batches:
            for batch in batches:
                if drawn and sum(map(examples_in, drawn)) >= examples:
                    return drawn, False
                drawn.append(cloned(batch))
        return drawn, True

    def draws(self, seed: int, epochs: int | None = None) -> Generator[Any, None, None]:
        """The batches of training steps: those of all processes joined, since all of them make one step."""
        number = next(self._numbers)
        ended, self._ended = self._ended, []
        self.member.ask(open_draws, number, seed, epochs, ended)
        try:
            while parts := self.member.ask(next_draw, number):
                yield _joined(parts)
        finally:
            # told with the next order: the garbage collector may end this one in the middle of another
            self._ended.append(number)


class RankLoader:
    """The batches of training steps, one epoch at each iteration, seeded as a `DataLoader` seeds its workers."""

    def __init__(self, source: RankSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        return self._source.draws(int(torch.randint(2**31, ())), epochs=1)

    def __length_hint__(self) -> int:
        return max(self._source.lengths)


class RankBatches:
    """The measured batches of all processes: the first ones of all, then the second ones, and so on.

    Small ones are joined, up to `TOGETHER` examples and never beyond one training step's.
    """

    def __init__(self, source: RankSource, lengths: list[int], couples: bool, *, is_kept: bool) -> None:
        self._member, self._lengths, self._couples, self._is_kept = source.member, lengths, couples, is_kept
        self._known: dict[int, list[Any]] = {}

    def __iter__(self) -> Iterator[Any]:
        for place in range(max(self._lengths)):
            yield from self._at(place)

    def __len__(self) -> int:
        return len(self._at(0)) * max(self._lengths)

    def _at(self, place: int) -> list[Any]:
        if place in self._known:
            return self._known[place]
        batches = list(self._grouped(self._member.ask(measured_batch, place)))
        if self._is_kept:
            self._known[place] = batches
        return batches

    def _grouped(self, parts: list[Any]) -> Iterator[Any]:
        return iter(parts) if self._couples else grouped(parts)


def grouped(parts: list[Any]) -> Iterator[Any]:
    """Batches of several processes, joined up to `TOGETHER` examples."""
    size = max(1, TOGETHER // max(map(examples_in, parts)))
    for begin in range(0, len(parts), size):
        group = parts[begin : begin + size]
        joined = joined_batches(group)
        yield from group if joined is None else [joined]


def joined_batches(parts: list[Any]) -> Any:
    """Several batches as one, along their examples; None if they have other forms, or no examples in front."""
    if len(parts) == 1:
        return parts[0]
    leaves, forms = zip(*map(tree_flatten, parts), strict=True)
    if any(form != forms[0] for form in forms) or not all(map(share_examples, parts)):
        return None
    columns = list(zip(*leaves, strict=True))
    if not all(isinstance(same[0], torch.Tensor) or _are_one_setting(same) for same in columns):
        return None  # names of examples, say, which are not known to belong to rows of tensors
    try:
        joined = [torch.cat(same) if isinstance(same[0], torch.Tensor) else same[0] for same in columns]
    except RuntimeError:  # of other shapes, as sentences padded to their longest
        return None
    return tree_unflatten(joined, forms[0])


def _are_one_setting(leaves: Sequence[Any]) -> bool:
    """Whether parts of batches that are no tensors are the same setting in all of them, such as a flag."""
    return all(isinstance(leaf, PLAIN) and leaf == leaves[0] for leaf in leaves)


def parted(batch: Any, count: int) -> list[Any]:
    """A joined batch in this number of parts again, or in fewer if it has fewer examples."""
    if count == 1:
        return [batch]
    leaves, form = tree_flatten(batch)
    columns = [leaf.chunk(count) if isinstance(leaf, torch.Tensor) else repeat(leaf) for leaf in leaves]
    return [tree_unflatten(list(part), form) for part in zip(*columns, strict=False)]


def _joined(parts: list[Any]) -> Any:
    joined = joined_batches(parts)
    if joined is None:
        raise Unsupported(NOT_JOINED)
    return joined


@order
def described(member: Member) -> tuple[list[int], bool, str]:
    """How many batches each process measures, whether all are held in memory, and the sentence on those held."""

    def own() -> tuple[int, bool, str]:
        batches, note = member.problem.source.fixed
        member.state["batches"] = batches
        return length_hint(batches, 0) if member.has_data else 0, isinstance(batches, (list, tuple)), note

    answers = answers_of_all(member, own)
    if not answers:
        return [], False, ""
    lengths, are_held, notes = zip(*answers, strict=True)
    return list(lengths), all(are_held), f"each process reads its own batches: {notes[0]}" if notes[0] else ""


@order
def measured_batch(member: Member, place: int) -> list[Any]:
    """The measured batches at one place of all processes that have one there."""

    def own() -> Any:
        batches = member.state["batches"]
        if isinstance(batches, (list, tuple)):
            return batches[place] if place < len(batches) else None
        at, reading = member.state.get("reading", (math.inf, None))
        if at > place:
            at, reading = 0, iter(readable(batches))
        for _ in range(place - at):
            next(reading, None)
        member.state["reading"] = place + 1, reading
        return next(reading, None)

    return _of_all(member, own)


@order
def open_draws(member: Member, number: int, seed: int, epochs: int | None, ended: list[int]) -> None:
    """Begin to draw batches for training, and end other draws."""
    if member.has_data:
        for other in ended:
            member.state.pop(("draws", other)).close()
        member.state["draws", number] = member.problem.source.draws(seed, epochs)


@order
def next_draw(member: Member, number: int) -> list[Any]:
    """The next batch of every process."""
    return _of_all(member, lambda: next(member.state["draws", number], None))


def _of_all(member: Member, own: Callable[[], Any]) -> list[Any]:
    """The batches of all processes that have one, in the memory of the host."""

    def on_host() -> Any:
        batch = own() if member.has_data else None
        return None if batch is None else to_device(batch, CPU)

    return [batch for batch in answers_of_all(member, on_host) if batch is not None]
