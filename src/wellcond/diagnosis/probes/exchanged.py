"""The loss of a few examples as a function of their outputs and targets, and the outputs at which it is lowest."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import tensors_in
from wellcond.network.graph import plain, upstream
from wellcond.problem.batches import share_examples
from wellcond.problem.problem import Problem

MOST_EXAMPLES, MOST_VALUES = 64, 2**21
"""Examples that the loss is evaluated at, and values of their outputs at most."""
SEARCH_STEPS = 40
"""Steps of Adam over the outputs."""
FIRST, LAST = 0.5, 0.01
"""Size of its first and last step, over the scale of outputs and targets."""

Form = Callable[[Tensor], Tensor]
"""Turns any numbers into outputs that a model can give; numbers of the size of 1 into all of them."""


@dataclass(frozen=True)
class ExchangedOutputs:
    """Some examples of a batch, whose outputs and targets may be exchanged for others. Use it while measuring.

    Attributes:
        problem: Its loss is evaluated.
        outputs: The model's own outputs.
        targets: Their targets.
    """

    problem: Problem
    outputs: Tensor
    targets: Any

    @classmethod
    def of(cls, subject: Subject) -> ExchangedOutputs | None:
        """The first examples of a batch.

        Returns:
            None if the loss takes something else than one tensor with the examples in front; also for torch's binary
            cross-entropy of probabilities, which ends a GPU's process on other numbers.
        """
        outputs, targets = subject.outputs, subject.targets
        if outputs is None or outputs is not subject.raw or not tensors_in(targets):
            return None
        if not outputs.is_floating_point() or not share_examples(outputs, targets) or len(outputs) < 2:
            return None
        few = _each(lambda t: t[:MOST_EXAMPLES], (outputs.detach(), targets))
        if few[0].numel() > MOST_VALUES or few[0].numel() == 0:
            return None
        exchanged = cls(subject.problem, *few)
        return exchanged if math.isfinite(exchanged.loss()) and not exchanged._takes_probabilities() else None

    def with_graph(self, outputs: Tensor, targets: Any = None) -> Tensor:
        """The loss of other outputs. It may raise."""
        value: Tensor = self.problem.raw_loss(outputs, self.targets if targets is None else targets)
        return value.reshape(())

    def loss(self, outputs: Tensor | None = None, targets: Any = None) -> float:
        """The loss of other outputs or targets; NaN if it raises."""
        with torch.no_grad(), contextlib.suppress(Exception):  # the user's loss may refuse them in any way
            return float(self.with_graph(self.outputs if outputs is None else outputs, targets))
        return math.nan

    def gradient(self, outputs: Tensor) -> Tensor | None:
        """Of the loss by other outputs; None if it has none."""
        leaf = outputs.clone().requires_grad_()
        with torch.enable_grad(), contextlib.suppress(Exception):
            gradient: Tensor | None = torch.autograd.grad(self.with_graph(leaf), [leaf], allow_unused=True)[0]
            return gradient
        return None

    def exchanged_targets(self, change: Callable[[Tensor], Tensor]) -> Any:
        """The targets with each of their tensors changed."""
        return _each(change, self.targets)

    @property
    def scale(self) -> float:
        """RMS of the outputs or targets, whichever is larger; 1 at least."""
        return max([1.0, rms(self.outputs), *(rms(t) for t in tensors_in(self.targets) if t.is_floating_point())])

    def lowest(self, form: Form | None = None) -> tuple[Tensor, float] | None:
        """Outputs with the lowest loss, among those that `form` gives, and this loss; None if there is no gradient."""
        scale = self.scale if form is None else 1.0
        free = (self.outputs / max(1.0, rms(self.outputs))).clone().requires_grad_()
        optimizer = torch.optim.Adam([free], lr=FIRST * scale)
        best: tuple[Tensor, float] | None = None
        for step in range(SEARCH_STEPS):
            optimizer.param_groups[0]["lr"] = scale * FIRST * (LAST / FIRST) ** (step / (SEARCH_STEPS - 1))
            value = math.nan
            with torch.enable_grad(), contextlib.suppress(Exception):
                outputs = free if form is None else form(free)
                loss = self.with_graph(outputs)
                (free.grad,) = torch.autograd.grad(loss, [free])
                value = float(loss.detach())
            if not math.isfinite(value) or free.grad is None or not bool(free.grad.isfinite().all()):
                break
            if step == 0 and not bool(free.grad.any()):
                return None
            if best is None or value < best[1]:
                best = outputs.detach().clone(), value
            optimizer.step()
        return best

    def _takes_probabilities(self) -> bool:
        leaf = self.outputs.clone().requires_grad_()
        with torch.enable_grad():
            end = self.with_graph(leaf).grad_fn
        return any(plain(node) == "BinaryCrossEntropy" for node in upstream([end], None))


def rms(tensor: Tensor) -> float:
    """√(mean x²)."""
    return float(tensor.detach().double().square().mean().sqrt())


def _each(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    return tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, tree)
