"""Whether outputs depend on the order of a sequence's steps, and whether targets do."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wellcond.diagnosis.labels import EXAMPLES_READ, Prediction, left_out_prediction
from wellcond.diagnosis.probes.influence import watched
from wellcond.diagnosis.probes.steps import Sequence, compared, target_of
from wellcond.diagnosis.probes.subject import Subject, relative_change
from wellcond.problem.loss.outputs import named_tensors, with_tensors

MOST_FEATURES = 8192
"""Steps times features, or times tokens, up to which a fit of all of them is cheap."""


@dataclass(frozen=True)
class Order:
    """What the order of the steps is worth.

    Attributes:
        change: ‖f − f'‖/‖f‖ of the outputs if the steps change places; of outputs for each step, if they move along.
        is_by_step: Whether there is an output for each step.
        placed: How well a linear fit of every step at its place, or of pairs of neighbors, predicts the targets; None
            where that was not asked.
        unordered: The same for a fit of the steps' sums, which the order leaves as they are.
    """

    change: float
    is_by_step: bool
    placed: Prediction | None = None
    unordered: Prediction | None = None


def order(subject: Subject) -> Order | None:
    """Give the steps other places; if the outputs do not care, ask the data whether the targets do.

    Returns:
        None if the inputs are no sequence.
    """
    seen = subject.once(watched)
    if seen is None or subject.outputs is None:
        return None
    sequence = seen.sequence
    places = torch.randperm(sequence.layout.steps, generator=torch.Generator().manual_seed(0))
    after = subject.outputs_for(_moved(sequence, places))
    if after is None or after.shape != subject.outputs.shape:
        return None
    pair = subject.once(compared, sequence.layout)
    before = subject.outputs
    if pair is not None:
        before, after = pair.grid(before), pair.grid(after)
        if before.shape[1] != len(places):
            return None
        before = before[:, places]
    change = relative_change(before, after)
    if change > subject.tolerance or pair is not None:
        return Order(change, pair is not None)
    data = _data(subject, sequence)
    if data is None:
        return Order(change, False)
    steps, target = data
    placed = [left_out_prediction(steps.flatten(1), target)]
    if steps.shape[2] ** 2 <= MOST_FEATURES:
        placed.append(left_out_prediction(torch.einsum("nta,ntb->nab", steps[:, :-1], steps[:, 1:]).flatten(1), target))
    unordered = left_out_prediction(torch.cat([steps.sum(1), steps.square().sum(1)], 1), target)
    return Order(change, False, min(placed, key=lambda each: each.error), unordered)


def _moved(sequence: Sequence, places: Tensor) -> object:
    """The inputs with the steps of every tensor that counts them at other places."""
    dim = 0 if sequence.layout.steps_first else 1
    front = sequence.grid.shape[:2][::-1] if sequence.layout.steps_first else sequence.grid.shape[:2]
    tensors = [t for t in named_tensors(sequence.inputs).values() if t.shape[:2] == front]
    return with_tensors(sequence.inputs, {id(t): t.index_select(dim, places.to(t.device)) for t in tensors})


def _data(subject: Subject, sequence: Sequence) -> tuple[Tensor, Tensor] | None:
    """(N, T, features) and one target for each example, of several batches."""
    steps: list[Tensor] = []
    targets: list[Tensor] = []
    target = target_of(subject)
    if target is None or target is not subject.targets or target.dim() > 2 or len(target) != sequence.layout.examples:
        return None
    with contextlib.closing(subject.problem.data()) as data:
        for _, (inputs, labels) in data:
            tensor = named_tensors(inputs).get(sequence.name)
            if tensor is None or tensor.dim() != sequence.grid.dim():
                return None
            grid = tensor.transpose(0, 1) if sequence.layout.steps_first else tensor
            if grid.shape[1:] != sequence.grid.shape[1:] or len(labels) != len(grid):
                break
            steps.append(grid.cpu())
            targets.append(labels.detach().cpu())
            if sum(map(len, steps)) >= EXAMPLES_READ:
                break
    grids = torch.cat(steps)
    tokens = 1 if not sequence.is_tokens else int(grids.max()) + 1
    if grids[0].numel() * tokens > MOST_FEATURES:
        return None
    return (F.one_hot(grids, tokens) if sequence.is_tokens else grids).double(), torch.cat(targets)
