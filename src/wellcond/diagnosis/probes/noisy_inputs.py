"""Whether random numbers change what the first layer takes, in evaluation mode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wellcond.diagnosis.probes.noise import in_mode, may_hide
from wellcond.diagnosis.probes.subject import Subject, relative_change
from wellcond.network.calling import tensors_in
from wellcond.network.isolation import isolation
from wellcond.network.layers import weighted_layers
from wellcond.network.taps import tapped


@dataclass(frozen=True)
class NoisyInputs:
    """Two passes in evaluation mode with other random numbers.

    Attributes:
        change: ‖f − f'‖/‖f‖ of the outputs.
        layer: First module whose output differs; "" if it is a layer with weights, so that the noise comes before it.
    """

    change: float
    layer: str


def noisy_inputs(subject: Subject) -> NoisyInputs | None:
    """Pass the batch twice in evaluation mode.

    Returns:
        None if the first layer takes the same both times, or something that depends on parameters, as what a network
        with random weights or codes computes, or that does not depend on the inputs, as a generator's noise. Nor where
        targets may be what was hidden of the inputs, as in an autoencoder, or are all the same.
    """
    if may_hide(subject) or not subject.draws:
        return None
    (target,) = tensors_in(subject.targets)
    if bool((target == target.reshape(-1)[0]).all()):
        return None
    (one, first), (other, second) = (_passed(subject, seed, subject.inputs) for seed in (0, 1))
    layers = weighted_layers(subject.problem.model)
    start = next((name for name in one if name in layers), "")
    taken, changed = (each.get(start, (None, None))[0] for each in (one, other))
    if first is None or second is None or taken is None or changed is None or taken.requires_grad:
        return None
    elsewhere = _passed(subject, 0, tree_map(lambda t: t.roll(1, 0) if isinstance(t, Tensor) else t, subject.inputs))[0]
    of_others = elsewhere.get(start, (None, None))[0]
    if _is_same(taken, changed) or of_others is None or _is_same(taken, of_others):
        return None
    name = next(name for name in one if not _is_same(one[name][1], other.get(name, (None, None))[1]))
    return NoisyInputs(relative_change(first, second), "" if name in layers else name)


def _passed(
    subject: Subject, seed: int, inputs: Any
) -> tuple[dict[str, tuple[Tensor | None, Tensor | None]], Tensor | None]:
    """What each module takes and returns in its first call, in their order, and the outputs."""
    seen: dict[str, tuple[Tensor | None, Tensor | None]] = {}

    def note(name: str, _module: nn.Module, x: Any, output: Any) -> None:
        seen.setdefault(name, (next(iter(tensors_in(x)), None), next(iter(tensors_in(output)), None)))

    model = subject.problem.model
    evaluating = in_mode(subject, training=False)
    with torch.enable_grad(), evaluating, isolation.frozen_lent([model]), tapped(subject.modules, note):
        raw = subject.problem.forward(seed, inputs)
    outputs = subject.outputs_in(raw)
    return seen, None if outputs is None else outputs.detach()


def _is_same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other or (one is not None and other is not None and torch.equal(one, other))
