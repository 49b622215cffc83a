"""Targets that are not there, by a mask next to them or by a number that marks them, and that count in the loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from wellcond.diagnosis.probes.exchanged import ExchangedOutputs
from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import tensors_in

NEARLY_ALL = 0.95
"""Share of the places that a mask shows whose targets are not zero, and of those that it hides which count."""
FEWEST_VALUES = 20
"""Other values that targets have at least which are measured: fewer may be classes."""
GAP = 0.5
"""Distance of a mark from the nearest of the others, in their standard deviations: -1 for places from 0 to 1."""


class Marked(NamedTuple):
    """Targets that all have one number, far from what the others are, and count in the loss.

    Attributes:
        number: That number.
        share: Their share.
    """

    number: float
    share: float


def unmeasured(subject: Subject) -> float | None:
    """Share of the targets that are filled with zeros, if the loss counts them and does not depend on the mask.

    Returns:
        None if there is no mask of zeros and ones of the shape of the targets, which are zero exactly where it is.
    """
    exchanged = ExchangedOutputs.of(subject)
    tensors = [] if exchanged is None else [t for t in tensors_in(exchanged.targets) if t.dim() > 1]
    if exchanged is None or len(tensors) != 2 or tensors[0].shape != tensors[1].shape:
        return None
    for values, mask in (tensors, tensors[::-1]):
        if not values.is_floating_point() or not _is_mask(mask) or values.shape != exchanged.outputs.shape:
            continue
        hidden = mask == 0
        if bool(values[hidden].any()) or float((values[~hidden] != 0).double().mean()) < NEARLY_ALL:
            continue
        gradient = exchanged.gradient(exchanged.outputs)
        other = exchanged.exchanged_targets(lambda t, mask=mask: torch.ones_like(t) if t is mask else t)  # type: ignore[misc]
        if gradient is None or exchanged.loss(targets=other) != exchanged.loss():
            return None
        counts = float((gradient[hidden] != 0).double().mean())
        return float(hidden.double().mean()) if counts >= NEARLY_ALL else None
    return None


def marked(subject: Subject) -> Marked | None:
    """Targets of one number outside of what all others are, as -1 for what was not seen, if the loss counts them.

    Zero is left alone: much is zero for a good reason.

    Returns:
        None unless one tensor of numbers among the targets has the shape of the outputs, and some of it is marked so.
    """
    exchanged = ExchangedOutputs.of(subject)
    tensors = [] if exchanged is None else [t for t in tensors_in(exchanged.targets) if t.is_floating_point()]
    of_outputs = [t.double() for t in tensors if exchanged is not None and t.shape == exchanged.outputs.shape]
    if exchanged is None or len(of_outputs) != 1:
        return None
    (values,) = of_outputs
    numbers, counts = torch.unique(values, return_counts=True)
    at = int(counts.argmax())
    number, others = float(numbers[at]), numbers[numbers != numbers[at]]
    if number == 0 or counts[at] < 2 or len(others) < FEWEST_VALUES:
        return None
    is_outside = number < float(others.min()) or number > float(others.max())
    is_there = values != number
    if not is_outside or float((others - number).abs().min()) < GAP * float(values[is_there].std()):
        return None
    gradient = exchanged.gradient(exchanged.outputs)
    if gradient is None or float((gradient[~is_there] != 0).double().mean()) < NEARLY_ALL:
        return None
    return Marked(number, float((~is_there).double().mean()))


def _is_mask(tensor: Tensor) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all()) and bool((tensor == 0).any()) and bool((tensor == 1).any())
