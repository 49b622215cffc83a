"""The first batch of a problem, passed through once: what every probe starts from."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wellcond.diagnosis.inspection.failures import Failures
from wellcond.diagnosis.inspection.signals import Signals
from wellcond.network.calling import logits_of
from wellcond.network.isolation import isolation
from wellcond.problem.batches import examples_in
from wellcond.problem.loss.outputs import named_tensors, own_loss, seen_outputs
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep

T = TypeVar("T")

CAST = 0.1
"""Relative change of outputs that rounding may cause under autocast, at most."""


@dataclass(frozen=True)
class Subject:
    """A batch and its outputs. Use it inside `problem.measuring()`.

    Attributes:
        problem: What is probed.
        inputs: Inputs of its first batch.
        targets: Their targets.
        raw: What the model returned for them, without a graph.
        outputs: The tensor among them that the loss depends on; None if there is no such tensor, and with a step of the
            user's own.
        name: Its name in what the model returns, as it is written in code: "", `.logits`, `[0]`.
    """

    problem: Problem
    inputs: Any
    targets: Any
    raw: Any
    outputs: Tensor | None
    name: str = ""
    _shared: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, problem: Problem) -> Subject:
        """Pass the first batch through the model."""
        with torch.no_grad(), contextlib.closing(problem.data()) as data:
            index, (inputs, targets) = next(data)
            raw = problem.forward(index, inputs)
        name = _name_of_outputs(problem, raw, targets)
        return cls(problem, inputs, targets, raw, None if name is None else named_tensors(raw).get(name), name or "")

    @property
    def examples(self) -> int:
        """Number of examples in the batch."""
        return examples_in((self.inputs, self.targets))

    @property
    def tolerance(self) -> float:
        """Relative change of the outputs that rounding may cause: 1e3 times the precision of their dtype.

        Under autocast at most `CAST`: what does not depend on a change is computed from the same numbers.
        """
        dtype = self.problem.dtype if self.outputs is None else self.outputs.dtype
        return max(1e3 * float(torch.finfo(dtype).eps), min(1e3 * self.problem.eps, CAST))

    @property
    def are_all_alike(self) -> bool:
        """Whether all examples have the same outputs, so that these tell nothing of what else they might be."""
        outputs = self.outputs
        if outputs is None or not outputs.dim() or len(outputs) < 2:
            return False
        return relative_change(outputs, outputs.roll(1, 0)) <= self.tolerance

    @functools.cached_property
    def modules(self) -> dict[str, nn.Module]:
        """Layers with weights, and modules that contain no others, by name."""
        return Signals(self.problem.model, Failures()).modules

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the model draws random numbers. All passes draw the same ones, if their tensors have one shape."""
        with torch.no_grad():
            self.problem.forward(0, self.inputs)
        after = isolation.generator_states(self.problem.device)
        isolation.seed_generators(self.problem.dropout or 0, self.problem.device)
        return not after.is_same_as(isolation.generator_states(self.problem.device))

    def outputs_for(self, inputs: Any) -> Tensor | None:
        """The outputs for other inputs, without a graph: one forward pass."""
        with torch.no_grad():
            return self.outputs_in(self.problem.forward(0, inputs))

    def outputs_in(self, raw: Any) -> Tensor | None:
        """The same tensor in what the model returns another time."""
        return named_tensors(raw).get(self.name)

    def once(self, function: Callable[..., T], *args: Any) -> T:
        """What a function of the subject returns: computed once, and shared between probes."""
        key = (function, *args)
        if key not in self._shared:
            self._shared[key] = function(self, *args)
        result: T = self._shared[key]
        return result

    def last(self, count: int) -> Any:
        """The inputs of the last few examples."""
        return tree_map(lambda t: t[-count:] if isinstance(t, Tensor) else t, self.inputs)


def _name_of_outputs(problem: Problem, raw: Any, targets: Any) -> str | None:
    """The name of the only tensor that the loss depends on, or that the model computes its own loss from."""
    logits = logits_of(raw)
    if isinstance(problem.loss, TrainingStep) or isinstance(raw, Tensor) or logits is not None:
        is_step = isinstance(problem.loss, TrainingStep)
        return None if is_step else next(name for name, t in named_tensors(raw).items() if t is logits)
    if problem.loss is own_loss:
        return next((name for name, t in named_tensors(raw).items() if t.is_floating_point() and t.dim() > 1), None)
    try:
        names = seen_outputs(problem.raw_loss, raw, targets).names
    except Exception:  # the user's loss may not take a copy of the outputs
        return None
    return names[0] if len(names) == 1 else None


def relative_change(before: Tensor, after: Tensor) -> float:
    """‖after − before‖/‖before‖; 0 where both are zero."""
    size = float(before.double().norm())
    return float((after.double() - before.double()).norm()) / size if size else float(bool((after != before).any()))
