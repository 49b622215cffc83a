"""Padding: whether outputs depend on it, whether it hides what is real, and whether it counts in the loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wellcond.diagnosis.probes.influence import FIRST_MODULES, Reading, Watched, read_out
from wellcond.diagnosis.probes.steps import (
    FEWEST_STEPS,
    Compared,
    Sequence,
    compared,
    loss_gradient,
    masked_places,
    padded,
    sequences,
    target_of,
)
from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import tensors_in

MOSTLY = 0.5
"""Share of padded steps that have an influence, from which on they are read."""
DISTINCT = 10
"""Different numbers before padding, from which on targets are no code that counts: 1, 1, 1, 0, 0."""
ABRUPT = 0.5
"""Distance of the last number from what fills the rest, over that of the others: what fades away has less."""


@dataclass(frozen=True)
class Padding:
    """Places at the end, or the beginning, of sequences that are filled with one value.

    It occurs nowhere else, or a mask or lengths in the batch say where they are.

    Attributes:
        share: Share of all places.
        in_loss: Share of the places that count in the loss; 0 if there is no target for each step.
        label: The target there, if it is a class.
        is_free: Whether no real step has this target.
        seen: Mean influence of a padded step on what is read from real ones, over that of a real step.
        hidden: First module in which a real step sees padding, but no other real step; None if there is none.
        pool: First module that makes one of all steps, where outputs depend on padding alone; "" if there is none.
        is_masked: Whether the model gets a mask or lengths that say where the padding is.
        unread: Share of the real steps of padded examples that what is read does not depend on at all, where it depends
            on padding; 0 where there is an output for each step.
        is_abrupt: Whether targets are numbers that vary, and end far from what they are filled with.
    """

    share: float
    in_loss: float = 0.0
    label: int | None = None
    is_free: bool = False
    seen: float = 0.0
    hidden: str | None = None
    pool: str = ""
    is_masked: bool = False
    unread: float = 0.0
    is_abrupt: bool = False

    @property
    def weight(self) -> float:
        """Influence of all padding over that of all that is real."""
        return self.seen * self.share / (1 - self.share)


def padding(subject: Subject) -> Padding | None:
    """Find padding, and differentiate what is read from real steps with respect to it.

    Returns:
        None if there is none.
    """
    counted = _counted_in(subject) or _filled(subject)
    reading = subject.once(read_out)
    if reading is None or not bool(reading.pads.any()):
        return counted
    seen = _seen(reading)
    return replace(
        counted or Padding(0.0),
        share=float(reading.pads.double().mean()),
        seen=seen,
        hidden=_hiding(reading) if seen else None,
        pool=next(iter(reading.watched.pools), "") if seen == float("inf") else "",
        is_masked=_is_masked(reading),
        unread=_unread(reading),
    )


def _counted_in(subject: Subject) -> Padding | None:
    """Padding of any sequence that has a target for each step, by the share of what counts in the loss."""
    every = [] if subject.outputs is None else sequences(subject)
    pairs = [(each, pair) for each in every if (pair := subject.once(compared, each.layout)) is not None]
    # the first place after a sequence is padding of the inputs, but may be its end in the targets
    alone = (*((each.grid, pair) for each, pair in pairs), *((pair.target, pair) for _, pair in pairs))
    # what fills inputs and targets may be a word and a label of its own, but not of each other
    grids = (*alone, *((torch.stack([each.grid, pair.target], 2), pair) for each, pair in pairs if _fit(each, pair)))
    for grid, pair in grids:
        pads = padded(grid)
        if pads is not None and (share := _counted(pair, pads, grid is pair.target)):
            return share
    by_mask = ((pair, places) for each, pair in pairs for places in masked_places(subject, each))
    return next((share for pair, places in by_mask if (share := _counted(pair, places, False))), None)


def _filled(subject: Subject) -> Padding | None:
    """Padding of targets (N, T, …) alone, where inputs are no sequence; None if they may be meant."""
    target, outputs = subject.once(target_of), subject.outputs
    if target is None or outputs is None or not target.is_floating_point() or target.shape != outputs.shape:
        return None
    pads = padded(target) if target.dim() in (2, 3) and target.shape[1] >= FEWEST_STEPS else None
    gradient = None if pads is None else subject.once(loss_gradient)
    if pads is None or gradient is None:
        return None
    counted = gradient.flatten(2).any(2) if gradient.dim() > 2 else gradient != 0
    in_loss = float((pads & counted).sum()) / max(float(counted.sum()), 1.0)
    is_abrupt = ends_abruptly(target, pads, target[pads][0])
    return Padding(float(pads.double().mean()), in_loss, is_free=True, is_abrupt=True) if is_abrupt else None


def ends_abruptly(target: Tensor, pads: Tensor, value: Tensor) -> bool:
    """Whether numbers (N, T, …) vary, and the last one before padding is as far from its value as others are.

    What fades away, or counts up to where it ends, is meant as it is.
    """
    if pads.shape != target.shape[:2]:
        return False
    distance = (target.double() - value.double()).flatten(2).norm(dim=2) if target.dim() > 2 else (target - value).abs()
    real = ~pads
    rows = pads.any(1) & real.any(1)
    if not bool(rows.any()) or len(torch.unique(distance[real])) < DISTINCT:
        return False
    edge = (pads[:, 1:] != pads[:, :-1]).long().argmax(1)  # the step before it changes
    at_edge = torch.maximum(distance.gather(1, edge[:, None]), distance.gather(1, edge[:, None] + 1))[:, 0]
    return float(at_edge[rows].median()) >= ABRUPT * float(distance[real].median())


def _fit(sequence: Sequence, pair: Compared) -> bool:
    """Whether tokens have a label each, at their own step."""
    return (
        sequence.is_tokens and pair.offset == 0 and sequence.grid.shape == pair.target.shape and pair.target.dim() == 2
    )


def _counted(pair: Compared, pads: Tensor, is_target: bool) -> Padding | None:
    """The share of padding in what counts; None if the targets of padded steps say something.

    They do if they differ, and if all others are alike too, as in 1, 1, 1, 0, 0: where these end is what is learned.
    """
    begin = max(0, -pair.offset)
    offset = pair.offset if is_target else 0
    end = min(pair.counted.shape[1], pads.shape[1] - offset, pair.target.shape[1] - pair.offset)
    counted, at = pair.counted[:, begin:end], pads[:, begin + offset : end + offset]
    targets = pair.target[:, begin + pair.offset : end + pair.offset]
    there = targets[at & counted]
    share = float(pads.double().mean())
    if not len(there):
        return Padding(share)
    real = targets[counted & ~at]
    if not bool((there == there[:1]).all()) or (len(real) and bool((real == real[:1]).all())):
        return None
    is_class = not targets.is_floating_point()
    is_abrupt = not is_class and ends_abruptly(pair.target, pads if is_target else at, there[0])
    return Padding(
        share,
        float((at & counted).sum()) / float(counted.sum()),
        int(there[0]) if is_class and there.dim() == 1 else None,
        not bool((real == there[:1]).any()),
        is_abrupt=is_abrupt,
    )


def _seen(reading: Reading) -> float:
    """Influence of a padded step over that of a real one, without the step that is read itself: means by example."""
    real = ~reading.pads
    if reading.is_by_step:
        real[torch.arange(len(real)), reading.last] = False
    rows = reading.pads.any(1) & real.any(1)
    padding, others = (_means(reading.influence[rows], places[rows]) for places in (reading.pads, real))
    return padding / others if others else float("inf") if padding else 0.0


def _unread(reading: Reading) -> float:
    """The share of real steps without any influence, in examples whose padding has some."""
    is_read = reading.influence > 0
    rows = (is_read & reading.pads).any(1)
    if reading.is_by_step or not bool(rows.any()):
        return 0.0
    real, pads = ~reading.pads[rows], reading.pads[rows]
    if float(is_read[rows][pads].double().mean()) < MOSTLY:
        return 0.0
    return float((~is_read[rows][real]).double().mean())


def _means(values: Tensor, places: Tensor) -> float:
    """The sum over examples of the means over places."""
    return float(((values * places).sum(1) / places.sum(1)).sum())


def _hiding(reading: Reading) -> str | None:
    """The first module that mixes steps, if the first and the last real step see nothing else but padding in it."""
    pads = reading.pads
    first = (~pads).long().argmax(1)
    rows = pads.any(1) & (first < reading.last)
    for name, grid in reading.watched.grids[:FIRST_MODULES] if bool(rows.any()) else ():
        others = [_others(reading.watched, grid, rows, reader) for reader in (first, reading.last)]
        if any(bool(each.any()) for each in others):
            is_hidden = all(bool(each.any()) and not bool((each & ~pads).any()) for each in others)
            return name if is_hidden else None
    return None


def _others(seen: Watched, grid: Tensor, rows: Tensor, reader: Tensor) -> Tensor:
    """(N, T), other steps that the output of a module at one step of each example depends on."""
    others = (seen.influence(grid[rows, reader[rows]]) > 0) & rows[:, None]
    others[torch.arange(len(others)), reader] = False
    return others


def _is_masked(reading: Reading) -> bool:
    """Whether a tensor of the inputs is a mask of the padding, or holds the lengths."""
    sequence, pads = reading.watched.sequence, reading.pads
    lengths = (~pads).sum(1)
    for tensor in tensors_in(sequence.inputs):
        if tensor.shape == lengths.shape and torch.equal(tensor.to(lengths), lengths):
            return True
        grid = next(sequence.layout.grids(tensor), None)
        if grid is not None and grid.shape == pads.shape and grid is not sequence.grid:
            flags = grid.bool()
            if torch.equal(flags, pads) or torch.equal(flags, ~pads):
                return True
    return False
