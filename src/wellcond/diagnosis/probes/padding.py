"""Padding: whether outputs depend on it, whether it hides what is real, and whether it counts in the loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.diagnosis.probes.influence import Watched, main_sequence, watched
from wellcond.diagnosis.probes.steps import Compared, Sequence, compared, sequences
from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import tensors_in

LEAST = 0.05
"""Share of padded places from which on there is something to see."""
FIRST_MODULES = 16
"""Modules among which the first that mixes steps is looked for: embedding, dropout, norm and projections are before."""


@dataclass(frozen=True)
class Padding:
    """Places at the end, or the beginning, of sequences that are filled with one value that occurs nowhere else.

    Attributes:
        share: Share of all places.
        in_loss: Share of the places that count in the loss; 0 if there is no target for each step.
        is_index: Whether the targets there are classes.
        seen: Mean influence of a padded step on what is read from real ones, over that of a real step.
        hidden: First module in which a real step sees padding, but no other real step; None if there is none.
        is_masked: Whether the model is given a mask or lengths that say where the padding is.
    """

    share: float
    in_loss: float = 0.0
    is_index: bool = True
    seen: float = 0.0
    hidden: str | None = None
    is_masked: bool = False


def padding(subject: Subject) -> Padding | None:
    """Find padding, and differentiate what is read from real steps with respect to it.

    Returns:
        None if there is none.
    """
    in_loss, is_index, share = _in_loss(subject)
    sequence = subject.once(main_sequence)
    pads = None if sequence is None else padded(sequence.grid)
    if sequence is None or pads is None:
        return Padding(share, in_loss, is_index) if share else None
    share = float(pads.double().mean())
    seen = subject.once(watched)
    ratio, hidden = (0.0, None) if seen is None else _seen(seen, pads)
    return Padding(share, in_loss, is_index, ratio, hidden, _is_masked(sequence, pads))


def padded(grid: Tensor) -> Tensor | None:
    """(N, T), where steps are filled with one value: at one end, as many as each example lacks, and nowhere else."""
    for turned in (grid, grid.flip(1)):
        runs = _run_at_end(_is(turned, turned[:, -1:]))
        longest = int(runs.sum(1).argmax())
        is_filled = _is(turned, turned[longest : longest + 1, -1:])
        ends = _run_at_end(is_filled)
        lengths = ends.sum(1)
        varies = int(lengths.max()) > max(1, int(lengths.min()))
        if varies and bool((is_filled == ends).all()) and float(ends.double().mean()) >= LEAST:
            return ends if turned is grid else ends.flip(1)
    return None


def _is(grid: Tensor, value: Tensor) -> Tensor:
    same = grid == value
    return same.flatten(2).all(2) if same.dim() > 2 else same


def _run_at_end(places: Tensor) -> Tensor:
    return places.flip(1).long().cumprod(1).flip(1).bool()


def _in_loss(subject: Subject) -> tuple[float, bool, float]:
    """The share of padding in what counts, whether targets are classes, and the share of padding in these targets."""
    for sequence in [] if subject.outputs is None else sequences(subject):
        pair = subject.once(compared, sequence.layout)
        if pair is None:
            continue
        for grid in (sequence.grid, pair.target):
            pads = padded(grid)
            if pads is not None and (share := _counted(pair, pads, grid is pair.target)) is not None:
                return share, not pair.target.is_floating_point(), float(pads.double().mean())
    return 0.0, True, 0.0


def _counted(pair: Compared, pads: Tensor, is_target: bool) -> float | None:
    """The share of padding in what counts; None if the targets of padded steps say something."""
    offset = pair.offset if is_target else 0
    steps = min(pair.counted.shape[1], pads.shape[1] - offset, pair.target.shape[1] - pair.offset)
    counted, at = pair.counted[:, :steps], pads[:, offset : offset + steps]
    targets = pair.target[:, pair.offset : pair.offset + steps][at & counted]
    if len(targets) and not bool((targets == targets[:1]).all()):
        return None
    return float((at & counted).sum()) / max(1, int(counted.sum()))


def _seen(seen: Watched, pads: Tensor) -> tuple[float, str | None]:
    rows = pads.any(1) & ~pads.all(1)
    last = (~pads).long().cumsum(1).argmax(1)  # the last real step
    by_step = seen.by_step
    if by_step is None:
        ratio = _ratio(seen.influence(seen.outputs[rows]), rows, pads, None)
    else:
        within = rows & (last < by_step.shape[1])
        ratio = _ratio(seen.influence(by_step[within, last[within]]), rows, pads, last)
    return ratio, (_hiding(seen, rows, pads, last) if ratio else None)


def _ratio(influence: Tensor, rows: Tensor, pads: Tensor, reader: Tensor | None) -> float:
    """Mean influence of a padded step over that of a real one, without the step that is read itself."""
    real = ~pads & rows[:, None]
    if reader is not None:
        real[torch.arange(len(real)), reader] = False
    of_pads, of_real = influence[pads & rows[:, None]], influence[real]
    mean = float(of_real.mean()) if len(of_real) else 0.0
    padding = float(of_pads.mean())
    return padding / mean if mean else float("inf") if padding else 0.0


def _hiding(seen: Watched, rows: Tensor, pads: Tensor, last: Tensor) -> str | None:
    """The first module whose output at the last real step depends on other steps, if these are all padding."""
    many = rows & ((~pads).sum(1) > 1)
    for name, grid in seen.grids[:FIRST_MODULES]:
        if not bool(many.any()):
            return None
        influence = seen.influence(grid[many, last[many]])
        others = (influence > 0) & many[:, None]
        others[torch.arange(len(others)), last] = False
        if bool(others.any()):
            return None if bool((others & ~pads).any()) else name
    return None


def _is_masked(sequence: Sequence, pads: Tensor) -> bool:
    """Whether a tensor of the inputs is a mask of the padding, or holds the lengths."""
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
