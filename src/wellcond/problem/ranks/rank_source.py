"""The batches of all processes, as the process that leads sees them: those that are measured, and those of training."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterator
from itertools import count
from operator import length_hint
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from wellcond.errors import Unsupported
from wellcond.network.calling import to_device
from wellcond.problem.batches import Source, cloned, examples_in, readable, share_examples
from wellcond.problem.ranks.orders import Member, order

TOGETHER = 64
"""Examples up to which the batches of several processes are measured as one, as the trial's mini-batches are cut."""
APART = 1_000_003
"""Between the seeds of two processes, so that loaders that shuffle by themselves draw different examples."""
NOT_JOINED = (
    "the batches of the processes cannot be joined along their examples, so copies cannot be trained on the batches "
    "of all."
)
CPU = torch.device("cpu")


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
        self.member.ask(open_draws, number, seed, epochs)
        try:
            while parts := self.member.ask(next_draw, number):
                yield _joined(parts)
        finally:
            if not self.member.team.is_lost:
                self.member.ask(close_draws, number)


class RankLoader:
    """The batches of training steps, one epoch at each iteration."""

    def __init__(self, source: RankSource) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        return self._source.draws(0, epochs=1)

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
    try:
        joined = [
            torch.cat(same) if isinstance(same[0], torch.Tensor) else same[0] for same in zip(*leaves, strict=True)
        ]
    except RuntimeError:  # of other shapes, as sentences padded to their longest
        return None
    return tree_unflatten(joined, forms[0])


def parted(batch: Any, count: int) -> list[Any]:
    """A joined batch in this number of parts again."""
    leaves, form = tree_flatten(batch)
    columns = [leaf.chunk(count) if isinstance(leaf, torch.Tensor) else [leaf] * count for leaf in leaves]
    return [tree_unflatten(list(part), form) for part in zip(*columns, strict=True)]


def _joined(parts: list[Any]) -> Any:
    joined = joined_batches(parts)
    if joined is None:
        raise Unsupported(NOT_JOINED)
    return joined


@order
def described(member: Member) -> tuple[list[int], bool, str]:
    """How many batches each process measures, whether all are held in memory, and the sentence on those held."""
    batches, note = member.problem.source.fixed
    member.state["batches"] = batches
    length = length_hint(batches, 0)
    answers = member.team.collect((length if member.has_data else 0, isinstance(batches, (list, tuple)), note))
    if not member.team.leads:
        return [], False, ""
    note = f"each process reads its own batches: {answers[0][2]}" if answers[0][2] else ""
    return [length for length, _, _ in answers], all(held for _, held, _ in answers), note


@order
def measured_batch(member: Member, place: int) -> list[Any]:
    """The measured batches at one place of all processes that have one there."""
    batches = member.state["batches"]
    batch = None
    if member.has_data:
        if isinstance(batches, (list, tuple)):
            batch = batches[place] if place < len(batches) else None
        else:
            at, reading = member.state.get("reading", (math.inf, None))
            if at > place:
                at, reading = 0, iter(readable(batches))
            for _ in range(place - at):
                next(reading, None)
            batch = next(reading, None)
            member.state["reading"] = place + 1, reading
    return _of_all(member, batch)


@order
def open_draws(member: Member, number: int, seed: int, epochs: int | None) -> None:
    """Begin to draw batches for training."""
    draws = member.problem.source.draws(seed + APART * member.team.rank, epochs) if member.has_data else iter(())
    member.state["draws", number] = draws


@order
def next_draw(member: Member, number: int) -> list[Any]:
    """The next batch of every process."""
    return _of_all(member, next(member.state["draws", number], None))


@order
def close_draws(member: Member, number: int) -> None:
    """Draw no more of them."""
    draws = member.state.pop(("draws", number))
    if hasattr(draws, "close"):
        draws.close()


def _of_all(member: Member, batch: Any) -> list[Any]:
    return [each for each in member.team.collect(None if batch is None else to_device(batch, CPU)) if each is not None]
