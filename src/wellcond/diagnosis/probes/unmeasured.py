"""Targets that a mask next to them says are not there, and that count in the loss all the same."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.diagnosis.probes.exchanged import ExchangedOutputs
from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import tensors_in

NEARLY_ALL = 0.95
"""Share of the places that a mask shows whose targets are not zero, and of those that it hides which count."""


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


def _is_mask(tensor: Tensor) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all()) and bool((tensor == 0).any()) and bool((tensor == 1).any())
