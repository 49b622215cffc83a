"""Targets that the loss does not use, as where a model computes its own loss and the loader gives a number for form."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wellcond.diagnosis.probes.subject import Subject
from wellcond.errors import WellcondError
from wellcond.network.calling import tensors_in
from wellcond.problem.training_step import TrainingStep


def unused_targets(subject: Subject) -> bool | None:
    """Whether the loss of the model's outputs is the same, bit for bit, with other targets.

    Returns:
        None if there are no targets next to the inputs, as in a training step.
    """
    problem, targets = subject.problem, subject.targets
    if isinstance(problem.loss, TrainingStep) or not tensors_in(targets):
        return None
    others = tree_map(lambda leaf: _other(leaf) if isinstance(leaf, Tensor) else leaf, targets)
    try:
        with torch.no_grad():
            return bool(torch.equal(*(torch.as_tensor(problem.raw_loss(subject.raw, t)) for t in (targets, others))))
    except WellcondError:  # the loss refuses other targets, so it uses them
        return False


def _other(targets: Tensor) -> Tensor:
    """Ones where targets are 0, and zeros elsewhere: a class that there is, or another number."""
    return (targets == 0).to(targets)
