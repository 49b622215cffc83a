"""Forward and backward passes over the first batches: losses, gradients, and what the user's code raises."""

from __future__ import annotations

import contextlib
import math
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wellcond.diagnosis.inspection.comparisons import Comparisons
from wellcond.diagnosis.inspection.failures import Failures, shortened_message
from wellcond.diagnosis.inspection.log_probabilities import LogArgument, LogProbabilities
from wellcond.diagnosis.inspection.signals import Signals
from wellcond.errors import NoLoss
from wellcond.network.calling import failing_layer
from wellcond.network.guarded import Guarded
from wellcond.problem.apart import StepLoss
from wellcond.problem.batch_losses import merged
from wellcond.problem.batches import examples_in
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep

PASSED_EXAMPLES, PASSED_BATCHES = 128, 2
"""Stop the passes after this many examples or batches: with all other passes, an inspection takes at most 4 u."""


class Forward(NamedTuple):
    """A forward pass.

    Attributes:
        raw: What the model returned.
        loss: Its loss, with a graph; None if the loss raised.
    """

    raw: Any
    loss: Tensor | None


class Passes:
    """Sums over the passes so far. What the user's model, loss or backward pass raises is recorded.

    Args:
        problem: What is inspected.
        failures: Where an error in the recording of signals goes.

    Attributes:
        signals: What the modules return.
        compared: What a training step compares with what.
        examples: Number of examples passed through the model.
        losses: Loss of every batch.
        gradients: Mean gradient, by parameter; empty if there is none.
        loss_shape: Shape of the first loss; None if none was computed.
        loss_depends: Whether the loss depends on any trainable parameter; None if no loss was computed.
        gradient_over_time: (steps,), ‖∂ℓ/∂x_t‖ of sequences that recurrent layers read; None for others.
        sequences: Copies of the inputs of the last pass that are differentiated for it.
        forward_error: Why the model could not be called.
        failing_layer: Name of the layer that raised; "" if it is the model itself.
        loss_error: Why the loss could not be computed.
        gradient_error: Why there are no gradients.
    """

    def __init__(self, problem: Problem, failures: Failures) -> None:
        self.problem, self.compared, self._logs = problem, Comparisons(), LogProbabilities()
        self.signals = Signals(problem.model, failures)
        self.examples = 0
        self.losses: list[float] = []
        self.gradients: list[Tensor | None] = []
        self.loss_shape: tuple[int, ...] | None = None
        self.loss_depends: bool | None = None
        self.gradient_over_time: Tensor | None = None
        self.sequences: list[Tensor] = []
        self.forward_error = self.failing_layer = self.loss_error = self.gradient_error = ""
        recurrent = (nn.RNNBase, nn.RNNCellBase)
        self._is_recurrent = any(isinstance(m, recurrent) for m in problem.model.modules())

    @property
    def log_arguments(self) -> list[LogArgument]:
        """What torch's losses get where they take logarithms of probabilities."""
        return self._logs.seen

    @property
    def loss(self) -> float | None:
        """Mean loss over the batches; NaN if any batch's loss is."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    def are_enough(self, batches: int) -> bool:
        """Whether no further batch need be passed after this many."""
        return self.examples >= PASSED_EXAMPLES or batches >= PASSED_BATCHES

    def forward(self, index: int, batch: Any) -> Forward | None:
        """Pass a batch forward; None if the model raises."""
        self.examples += examples_in(batch)
        self.sequences = []
        try:
            with self._comparisons(), self._logs, self.signals.watched(examples_in(batch)), Guarded():
                raw = self.problem.forward(index, self._differentiable(batch[0]))
        except NoLoss:
            return None  # no illness of the network: `Problem` refuses it
        except Exception as error:  # the user's model may raise anything
            if not self.forward_error:
                self.forward_error = shortened_message(error)
                self.failing_layer = failing_layer(self.problem.model, error.__cause__ or error)
            return None
        try:
            with self._comparisons(), self._logs, Guarded():
                loss = self.problem.raw_loss(raw, batch[1], index)
            if not isinstance(loss, Tensor):
                return Forward(raw, None)
            self.loss_shape = self.loss_shape or tuple(loss.shape)
            loss = loss if loss.numel() == 1 else loss.mean()
            self.losses.append(float(loss.detach()))
        except NoLoss:
            return Forward(raw, None)
        except Exception as error:  # and so may the loss
            self.loss_error = self.loss_error or shortened_message(error)
            return Forward(raw, None)
        return Forward(raw, loss)

    def backward(self, loss: Tensor) -> None:
        """Pass the last loss backward, if it has a graph and is finite."""
        self.loss_depends = bool(self.loss_depends)
        if not loss.requires_grad or not math.isfinite(self.losses[-1]):
            return
        params = list(self.problem.params.values())
        try:
            every = self.problem.gradient(loss, [*params, *self.sequences], allow_unused=True)
        except Exception as error:  # a custom backward pass may raise anything
            self.gradient_error = self.gradient_error or shortened_message(error)
            return
        gradients, of_sequences = every[: len(params)], every[len(params) :]
        self.loss_depends = self.loss_depends or any(g is not None for g in gradients)
        share = 1 / len(self.losses)
        self.gradients = merged(self.gradients, gradients, share) if self.gradients else list(gradients)
        if of_sequences and of_sequences[0] is not None:
            self.gradient_over_time = of_sequences[0].double().norm(dim=(0, 2)).cpu()

    def _comparisons(self) -> contextlib.AbstractContextManager[Any]:
        """Those of a training step; what a loss of outputs and targets compares is known by their shapes."""
        is_step = isinstance(self.problem.loss, (TrainingStep, StepLoss))
        return self.compared if is_step else contextlib.nullcontext()

    def _differentiable(self, inputs: Any) -> Any:
        """The inputs, with sequences of recurrent networks as leaves of the graph; the model may write into them."""
        if not self._is_recurrent:
            return inputs

        def leaf(t: Any) -> Any:
            if not isinstance(t, Tensor) or not t.is_floating_point() or t.dim() != 3:
                return t
            self.sequences.append(t.detach().requires_grad_())
            return self.sequences[-1].clone()

        return tree_map(leaf, inputs)
