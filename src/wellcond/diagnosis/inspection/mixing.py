"""Whether an example's output depends on the other examples of its batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wellcond.network.calling import logits_of, tensors_in
from wellcond.network.isolation import isolation
from wellcond.network.taps import tapped
from wellcond.problem.batches import examples_in, share_examples
from wellcond.problem.problem import Problem

FEW = 8
"""Examples that are passed through the model without the others of their batch."""
SYMMETRIC = 0.01
"""Change of the outputs when the examples are reversed, over the change when the others are left out, below which the
order of the examples makes no difference."""


@dataclass(frozen=True)
class Mixing:
    """Outputs of the last few examples of a batch on their own, compared with those in the batch.

    Attributes:
        difference: ‖f − f'‖/‖f‖ of the outputs.
        layer: First module whose output differs.
        is_symmetric: Whether the order of the examples makes no difference, as for statistics over them.
    """

    difference: float
    layer: str
    is_symmetric: bool = False


def mixing(problem: Problem, batch: Any, raw: Any, modules: Mapping[str, nn.Module]) -> Mixing | None:
    """Pass the last few examples of a batch through the model on their own.

    Args:
        problem: What is inspected, inside `measuring()`.
        batch: Its first batch.
        raw: What the model returned for it.
        modules: Those whose outputs are compared, by name.

    Returns:
        None where outputs cannot be compared by example. That is so with BatchNorm, and unless every tensor has the
        examples in front: sequences of a recurrent network with a target for each step may have the steps there.
    """
    outputs, n = logits_of(raw), examples_in(batch)
    few = min(FEW, n // 2)
    if outputs is None or not few or not _is_by_example(problem, batch, outputs):
        return None
    with torch.no_grad():
        alone = logits_of(problem.forward(0, _last_of(batch[0], few)))
    if alone is None or _draws(problem):
        return None  # fewer examples draw other random numbers
    together = outputs.detach()[-few:].double()
    size = float(together.norm())
    difference = float((alone.double() - together).norm()) / size if size else 0.0
    tolerance = 1e3 * torch.finfo(outputs.dtype).eps
    if not math.isfinite(difference):
        return None
    if difference <= tolerance:
        return Mixing(difference, "")
    layer = _first_that_differs(problem, batch[0], few, modules, tolerance)
    return Mixing(difference, layer, _is_symmetric(problem, batch[0], outputs.detach().double(), difference))


def _is_by_example(problem: Problem, batch: Any, outputs: Tensor) -> bool:
    n, targets = examples_in(batch), tensors_in(batch[1])
    if not targets or problem.couples_examples:
        return False
    if examples_in(outputs) != n or not share_examples(batch[0], outputs, targets[0]):
        return False
    if math.prod(targets[0].shape[1:]) > outputs[0].numel():
        return False
    is_recurrent = any(isinstance(m, nn.RNNBase) for m in problem.model.modules())
    return not (is_recurrent and _has_target_per_step(batch)) or getattr(problem.source.loader, "batch_size", None) == n


def _has_target_per_step(batch: Any) -> bool:
    """Whether inputs and targets share two dimensions, of which the steps may be the first."""
    target = tensors_in(batch[1])[0]
    return target.dim() > 1 and any(t.dim() > 1 and t.shape[1] == target.shape[1] for t in tensors_in(batch[0]))


def _draws(problem: Problem) -> bool:
    """Whether the last forward pass drew random numbers."""
    after = isolation.generator_states(problem.device)
    isolation.seed_generators(problem.dropout or 0, problem.device)
    return not after.is_same_as(isolation.generator_states(problem.device))


def _first_that_differs(
    problem: Problem, inputs: Any, few: int, modules: Mapping[str, nn.Module], tolerance: float
) -> str:
    """First module whose output for the last few examples changes when as few others are passed with them."""
    both: dict[str, Tensor] = {}
    alone: dict[str, Tensor] = {}
    for outputs, count in ((both, 2 * few), (alone, few)):
        with torch.no_grad(), tapped(modules, _first_output_into(outputs)):
            problem.forward(0, _last_of(inputs, count))
    return next((name for name in alone if _differ(both.get(name), alone[name], tolerance)), "")


def _first_output_into(outputs: dict[str, Tensor]) -> Callable[..., None]:
    def record(name: str, _module: nn.Module, _x: Any, output: Any) -> None:
        tensor = next(iter(tensors_in(output)), None)
        if tensor is not None and tensor.dim() and name not in outputs:
            outputs[name] = tensor.detach()

    return record


def _differ(both: Tensor | None, alone: Tensor, tolerance: float) -> bool:
    if both is None or len(both) != 2 * len(alone):
        return both is not None and both.shape != alone.shape
    same = both[-len(alone) :]
    return float((same - alone).double().norm()) > tolerance * float(same.double().norm())


def _is_symmetric(problem: Problem, inputs: Any, outputs: Tensor, difference: float) -> bool:
    with torch.no_grad():
        reversed_inputs = tree_map(lambda t: t.flip(0) if isinstance(t, Tensor) else t, inputs)
        reversed_outputs = logits_of(problem.forward(0, reversed_inputs))
    if reversed_outputs is None:
        return False
    change = float((reversed_outputs.double().flip(0) - outputs).norm())
    return change <= SYMMETRIC * difference * float(outputs.norm())


def _last_of(inputs: Any, count: int) -> Any:
    return tree_map(lambda t: t[-count:] if isinstance(t, Tensor) else t, inputs)
