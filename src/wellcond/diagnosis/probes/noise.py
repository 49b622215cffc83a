"""Which values a network sets to zero at random, in training and in evaluation mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from wellcond.diagnosis.probes.dropped import Dropped, DroppedValues
from wellcond.diagnosis.probes.subject import Subject, relative_change
from wellcond.network.calling import logits_of, tensors_in
from wellcond.network.isolation import isolation
from wellcond.network.layers import weighted_layers
from wellcond.problem.loss.outputs import own_loss

SMALLER = 2
"""How many times the targets of an example must fit into its inputs: larger ones may be inputs that were hidden."""


@dataclass(frozen=True)
class Noise:
    """Dropout by its effect.

    Attributes:
        training: Calls that drop values in training mode, other than those of torch's dropout modules.
        evaluation: Calls that drop values in evaluation mode.
        change: ‖f − f'‖/‖f‖ of two passes in evaluation mode with other random numbers; 0 if none drops values.
        may_hide: Whether a mask may hide what the network is asked for, as a masked autoencoder's does.
    """

    training: tuple[Dropped, ...] = ()
    evaluation: tuple[Dropped, ...] = ()
    change: float = 0.0
    may_hide: bool = False

    def is_dropout(self, call: Dropped) -> bool:
        """Whether a call is made up for by a factor, or is no mask of inputs or of what the network is asked for."""
        return call.scale > 1 or (bool(call.after) and not self.may_hide)


def noise(subject: Subject) -> Noise:
    """Pass the batch in training mode and, if values are dropped there, once or twice in evaluation mode."""
    training, _ = _passed(subject, 0, training=True)
    if not training:
        return Noise()
    evaluation, one = _passed(subject, 0, training=False)
    other = _passed(subject, 1, training=False)[1] if evaluation else None
    change = 0.0 if one is None or other is None else relative_change(one, other)
    modules = dict(subject.problem.model.named_modules())
    own = [call for call in training if not isinstance(modules[call.module], _DropoutNd)]
    return Noise(tuple(own), tuple(evaluation), change, may_hide(subject))


def may_hide(subject: Subject) -> bool:
    """Whether targets may be what was hidden of the inputs: they are as large, or the model computes its own loss."""
    targets, inputs = tensors_in(subject.targets), tensors_in(subject.inputs)
    if subject.problem.loss is own_loss or len(targets) != 1 or not inputs:
        return True
    return SMALLER * targets[0].numel() > max(t.numel() for t in inputs)


def _passed(subject: Subject, seed: int, *, training: bool) -> tuple[list[Dropped], Tensor | None]:
    problem = subject.problem
    watched = DroppedValues(problem.model, set(weighted_layers(problem.model)), problem.device)
    with torch.no_grad(), in_mode(subject, training=training), isolation.frozen_lent([problem.model]), watched:
        return watched.calls, logits_of(problem.forward(seed, subject.inputs))


@contextlib.contextmanager
def in_mode(subject: Subject, *, training: bool) -> Iterator[None]:
    """Put all modules but norms, whose mode the problem decides, into one mode."""
    norms = set(subject.problem.norms()[0])
    modules = [m for n, m in subject.problem.model.named_modules() if n not in norms and not isinstance(m, _NormBase)]
    before = [module.training for module in modules]
    try:
        for module in modules:
            module.training = training
        yield
    finally:
        for module, mode in zip(modules, before, strict=True):
            module.training = mode
