"""The first batch of a problem, passed through once: what every probe starts from."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wellcond.diagnosis.inspection.failures import Failures
from wellcond.diagnosis.inspection.signals import Signals
from wellcond.network.calling import logits_of
from wellcond.network.isolation import isolation
from wellcond.problem.batches import examples_in
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep


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
    """

    problem: Problem
    inputs: Any
    targets: Any
    raw: Any
    outputs: Tensor | None

    @classmethod
    def of(cls, problem: Problem) -> Subject:
        """Pass the first batch through the model."""
        with torch.no_grad(), contextlib.closing(problem.data()) as data:
            index, (inputs, targets) = next(data)
            raw = problem.forward(index, inputs)
        is_step = isinstance(problem.loss, TrainingStep)
        return cls(problem, inputs, targets, raw, None if is_step else logits_of(raw))

    @property
    def examples(self) -> int:
        """Number of examples in the batch."""
        return examples_in((self.inputs, self.targets))

    @property
    def tolerance(self) -> float:
        """Relative change of the outputs that rounding may cause: 1e3 times the precision of their dtype."""
        return 1e3 * torch.finfo(self.problem.dtype if self.outputs is None else self.outputs.dtype).eps

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
            return logits_of(self.problem.forward(0, inputs))

    def last(self, count: int) -> Any:
        """The inputs of the last few examples."""
        return tree_map(lambda t: t[-count:] if isinstance(t, Tensor) else t, self.inputs)


def relative_change(before: Tensor, after: Tensor) -> float:
    """‖after − before‖/‖before‖; 0 where both are zero."""
    size = float(before.double().norm())
    return float((after.double() - before.double()).norm()) / size if size else float(bool((after != before).any()))
