"""Whether an example's output depends on the other examples of its batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wellcond.diagnosis.probes.subject import Subject, relative_change
from wellcond.network.calling import tensors_in
from wellcond.network.taps import tapped
from wellcond.problem.batches import examples_in, share_examples

FEW = 8
"""Examples that are passed through the model without the others of their batch."""
SYMMETRIC = 0.01
"""Change of the outputs when the examples are reversed, over the change when the others are left out, below which the
order of the examples makes no difference."""


@dataclass(frozen=True)
class Mixing:
    """Outputs of the last few examples of a batch on their own, compared with those in the batch.

    Attributes:
        difference: ‖f − f'‖/‖f‖ of the outputs, in the steps that both have; 1 if their number is not that of the
            examples.
        layer: First module whose output differs.
        is_symmetric: Whether the order of the examples makes no difference, as for statistics over them.
        is_inside: Whether only the outputs of that module differ, while those of the model are the same for all.
    """

    difference: float
    layer: str
    is_symmetric: bool = False
    is_inside: bool = False


def mixing(subject: Subject) -> Mixing | None:
    """Pass the last few examples of a batch through the model on their own.

    Returns:
        None where outputs cannot be compared by example. That is so with BatchNorm, and unless every tensor has the
        examples in front: sequences of a recurrent network with a target for each step may have the steps there.
    """
    outputs, few = subject.outputs, min(FEW, subject.examples // 2)
    if outputs is None or not few or not _is_by_example(subject, outputs) or subject.draws:
        return None  # fewer examples draw other random numbers
    alone = subject.outputs_for(subject.last(few))
    if alone is None:
        return None
    if len(alone) != few:  # a dimension that is as long as the batch was taken for the examples
        return Mixing(1.0, _first_that_differs(subject, few))
    together = outputs[-few:]
    if together.dim() != alone.dim():
        return None
    # padded to the longest sequence of those that are passed: compared is what both have
    common = tuple(slice(min(sizes)) for sizes in zip(together.shape, alone.shape, strict=True))
    difference = relative_change(together[common], alone[common])
    if not math.isfinite(difference):
        return None
    if difference <= subject.tolerance:
        return (_mixed_inside(subject, few) if subject.are_all_alike else None) or Mixing(difference, "")
    if together.shape != alone.shape:  # what is padded less may differ for that reason
        return None
    return Mixing(difference, _first_that_differs(subject, few), _is_symmetric(subject, outputs, difference))


def _is_by_example(subject: Subject, outputs: Tensor) -> bool:
    problem, targets = subject.problem, tensors_in(subject.targets)
    if not targets or problem.couples_examples:
        return False
    if examples_in(outputs) != subject.examples or not share_examples(subject.inputs, outputs, targets[0]):
        return False
    if math.prod(targets[0].shape[1:]) > outputs[0].numel():
        return False
    is_recurrent = any(isinstance(m, nn.RNNBase) for m in problem.model.modules())
    may_have_steps_first = is_recurrent and _has_target_per_step(subject.inputs, targets[0])
    return not may_have_steps_first or getattr(problem.source.loader, "batch_size", None) == subject.examples


def _has_target_per_step(inputs: Any, target: Tensor) -> bool:
    """Whether inputs and targets share two dimensions, of which the steps may be the first."""
    return target.dim() > 1 and any(t.dim() > 1 and t.shape[1] == target.shape[1] for t in tensors_in(inputs))


def _mixed_inside(subject: Subject, few: int) -> Mixing | None:
    """A layer without `batch_first` that takes the examples for steps, where the model's outputs are the same for all.

    So they are if they are read at a first token that the examples share.
    """
    both, alone = _outputs_of_modules(subject, few)
    layer = _first_of(both, alone, subject.tolerance)
    if getattr(dict(subject.problem.model.named_modules()).get(layer), "batch_first", True) or not layer:
        return None
    apart, together = alone[layer], both[layer]
    # with the steps in front, as is right, the first size does not depend on the number of examples
    if apart.dim() != 3 or len(apart) != few or len(together) != 2 * few or apart.shape[1:] != together.shape[1:]:
        return None
    return Mixing(relative_change(together[-few:], apart), layer, is_inside=True)


def _first_that_differs(subject: Subject, few: int) -> str:
    """First module whose output for the last few examples changes when as few others are passed with them."""
    return _first_of(*_outputs_of_modules(subject, few), subject.tolerance)


def _first_of(both: dict[str, Tensor], alone: dict[str, Tensor], tolerance: float) -> str:
    return next((name for name in alone if _differ(both.get(name), alone[name], tolerance)), "")


def _outputs_of_modules(subject: Subject, few: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    both: dict[str, Tensor] = {}
    alone: dict[str, Tensor] = {}
    for outputs, count in ((both, 2 * few), (alone, few)):
        with torch.no_grad(), tapped(subject.modules, _first_output_into(outputs)):
            subject.problem.forward(0, subject.last(count))
    return both, alone


def _first_output_into(outputs: dict[str, Tensor]) -> Callable[..., None]:
    def record(name: str, _module: nn.Module, _x: Any, output: Any) -> None:
        tensor = next(iter(tensors_in(output)), None)
        if tensor is not None and tensor.dim() and name not in outputs:
            outputs[name] = tensor.detach()

    return record


def _differ(both: Tensor | None, alone: Tensor, tolerance: float) -> bool:
    if both is None or (len(both) != 2 * len(alone) and both.shape != alone.shape):
        return both is not None
    same = both[-len(alone) :]
    return float((same - alone).double().norm()) > tolerance * float(same.double().norm())


def _is_symmetric(subject: Subject, outputs: Tensor, difference: float) -> bool:
    in_reverse = tree_map(lambda t: t.flip(0) if isinstance(t, Tensor) else t, subject.inputs)
    reversed_outputs = subject.outputs_for(in_reverse)
    return reversed_outputs is not None and (
        relative_change(outputs, reversed_outputs.flip(0)) <= SYMMETRIC * difference
    )
