"""Whether outputs depend on the order of a sequence's steps, or of the blocks of an image, and whether targets do."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wellcond.diagnosis.labels import EXAMPLES_READ, Prediction, columns, left_out_prediction, related
from wellcond.diagnosis.probes.influence import watched
from wellcond.diagnosis.probes.steps import Sequence, compared, target_of
from wellcond.diagnosis.probes.subject import Subject, relative_change
from wellcond.network.isolation.isolation import parameters_kept
from wellcond.problem.loss.outputs import named_tensors, with_tensors

MOST_FEATURES = 8192
"""Steps times features, or times tokens, up to which a fit of all of them is cheap."""

PARTS = (2, 3)
"""How many blocks an image is cut into along each side: patches of a transformer divide one of these, as a rule."""
STEP = 0.01
"""Size of what is added to weights: as far as a step or two of Adam goes."""


@dataclass(frozen=True)
class Order:
    """What the order of the steps is worth.

    Attributes:
        change: ‖f − f'‖/‖f‖ of the outputs if the steps change places; of outputs for each step, if they move along.
        is_by_step: Whether there is an output for each step.
        placed: How well a linear fit of every step at its place, or of pairs of neighbors, predicts the targets; None
            where that was not asked.
        unordered: The same for a fit of the steps' sums, which the order leaves as they are.
        known: How well the steps at their places tell the targets, by neighbors or smooth fits, in standard deviations
            of shuffled targets; NaN where that was not asked.
        known_unordered: The same of the steps in an order of their own.
    """

    change: float
    is_by_step: bool
    placed: Prediction | None = None
    unordered: Prediction | None = None
    known: float = math.nan
    known_unordered: float = math.nan


def order(subject: Subject) -> Order | None:
    """Give the steps, or blocks of an image, other places; if the outputs do not care, ask whether the targets do.

    Returns:
        None if the inputs are neither a sequence nor images, or if all outputs are alike.
    """
    outputs = subject.outputs
    if outputs is None or not outputs.dim() or subject.are_all_alike:
        return None  # outputs that are all alike have lost more than the order
    seen = subject.once(watched)
    if seen is None:
        return _order_of_blocks(subject)
    sequence = seen.sequence
    places = torch.randperm(sequence.layout.steps, generator=torch.Generator().manual_seed(0))
    pair = subject.once(compared, sequence.layout)
    moved = _moved(sequence, places)

    def change(before: Tensor) -> float | None:
        after = subject.outputs_for(moved)
        if after is None or after.shape != before.shape:
            return None
        if pair is None:
            return relative_change(before, after)
        before, after = pair.grid(before), pair.grid(after)
        return relative_change(before[:, places], after) if before.shape[1] == len(places) else None

    size = _change_at_any_weights(subject, change)
    if size is None or size > subject.tolerance or pair is not None:
        return None if size is None else Order(size, pair is not None)
    data = _data(subject, sequence)
    return Order(size, False) if data is None else _compared_fits(size, *data)


def _change_at_any_weights(subject: Subject, change: Callable[[Tensor], float | None]) -> float | None:
    """The change of the outputs; if there is none, that with weights that have moved a little.

    Positions that are learned from zeros, or from one number, leave the order out at the start alone.
    """
    assert subject.outputs is not None
    size = change(subject.outputs)
    if size is None or size > subject.tolerance:
        return size
    params = subject.problem.params
    draw = torch.Generator(subject.problem.device).manual_seed(0)
    with parameters_kept(params.values()):
        for p in params.values():
            p.data = p.data + STEP * torch.randn(p.shape, generator=draw, device=p.device).to(p)
        outputs = subject.outputs_for(subject.inputs)
        again = None if outputs is None else change(outputs)
    return again if again is not None and again > subject.tolerance else size


def _compared_fits(change: float, steps: Tensor, target: Tensor) -> Order:
    """Fits of (N, T, features) with the steps at their places, and of their sums."""
    placed = [left_out_prediction(steps.flatten(1), target)]
    if steps.shape[2] ** 2 <= MOST_FEATURES:
        placed.append(left_out_prediction(torch.einsum("nta,ntb->nab", steps[:, :-1], steps[:, 1:]).flatten(1), target))
    unordered = left_out_prediction(torch.cat([steps.sum(1), steps.square().sum(1)], 1), target)
    y = columns(target[:, None] if target.dim() == 1 else target)
    is_regression = target.is_floating_point() and not bool(((target == 0) | (target == 1)).all())
    known = [
        0.0 if relation is None else relation.best
        for relation in (related(x.flatten(1), y, is_regression) for x in (steps, _sorted(steps)))
    ]
    return Order(change, False, min(placed, key=lambda each: each.error), unordered, *known)


def _sorted(steps: Tensor) -> Tensor:
    """(N, T, features) with the steps of each example ordered along a random direction: as sets they are the same."""
    direction = torch.randn(steps.shape[2], generator=torch.Generator().manual_seed(0), dtype=steps.dtype)
    order = (steps @ direction).argsort(1)
    return steps.gather(1, order[..., None].expand_as(steps))


def _order_of_blocks(subject: Subject) -> Order | None:
    """Two blocks of an image change places, of the sizes that patches of a transformer divide."""
    image, outputs = subject.inputs, subject.outputs
    if not isinstance(image, Tensor) or image.dim() != 4 or not image.is_floating_point() or outputs is None:
        return None
    if outputs.dim() != 2 or len(outputs) != len(image):
        return None
    common = math.gcd(*image.shape[2:])
    sides = [common // n for n in PARTS if common % n == 0]
    changes = {side: _of_blocks(image, side, subject) for side in sides}
    known = {side: change for side, change in changes.items() if change is not None}
    sizes = {side: size for side, change in known.items() if (size := change(outputs)) is not None}
    if not sizes:
        return None
    side = min(sizes, key=lambda each: sizes[each])
    size = sizes[side] if sizes[side] > subject.tolerance else _change_at_any_weights(subject, known[side])
    data = None if size is None or size > subject.tolerance else _images(subject)
    if size is None or data is None:
        return None if size is None else Order(size, False)
    images, target = data
    blocks = F.unfold(images, side, stride=side).transpose(1, 2)
    return _compared_fits(size, blocks, target)


def _of_blocks(image: Tensor, side: int, subject: Subject) -> Callable[[Tensor], float | None] | None:
    """The change of the outputs if two blocks next to each other change places; None if both are blank."""
    swapped = image.clone()
    swapped[..., :side, :side] = image[..., :side, side : 2 * side]
    swapped[..., :side, side : 2 * side] = image[..., :side, :side]
    if relative_change(image, swapped) <= subject.tolerance:
        return None

    def change(before: Tensor) -> float | None:
        after = subject.outputs_for(swapped)
        return None if after is None else relative_change(before, after)

    return change


def _images(subject: Subject) -> tuple[Tensor, Tensor] | None:
    """Images and one target for each, of several batches."""
    shape, images, targets = subject.inputs.shape, [], []
    if not isinstance(subject.targets, Tensor) or subject.targets.dim() > 2 or shape[1:].numel() > MOST_FEATURES:
        return None
    with contextlib.closing(subject.problem.data()) as data:
        for _, (image, labels) in data:
            if image.shape[1:] != shape[1:] or len(labels) != len(image):
                break
            images.append(image.cpu().double())
            targets.append(labels.detach().cpu())
            if sum(map(len, images)) >= EXAMPLES_READ:
                break
    return torch.cat(images), torch.cat(targets)


def _moved(sequence: Sequence, places: Tensor) -> object:
    """The inputs with the steps of every tensor that counts them at other places."""
    dim = 0 if sequence.layout.steps_first else 1
    front = sequence.grid.shape[:2][::-1] if sequence.layout.steps_first else sequence.grid.shape[:2]
    named = named_tensors(sequence.inputs)
    moved = {id(t): t.index_select(dim, places.to(t.device)) for t in named.values() if t.shape[:2] == front}
    if sequence.has_steps_last:
        own = named[sequence.name]
        moved[id(own)] = own.index_select(2, places.to(own.device))
    return with_tensors(sequence.inputs, moved)


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
            turned = (1, 2) if sequence.has_steps_last else (0, 1) if sequence.layout.steps_first else (0, 0)
            grid = tensor.transpose(*turned)
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
