"""`BatchLosses`: the loss of single batches, and its mean over all of them with the gradient."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.errors import NonFinite
from wellcond.problem.batches import Batch, examples_in, first_examples, share_examples
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.measured_model import MeasuredModel
from wellcond.problem.not_finite import why_not_finite
from wellcond.problem.ranks.means import mean_gradients
from wellcond.problem.ranks.orders import Member, Order
from wellcond.problem.training_step import TrainingStep, arguments_in

Gradients = dict[str, Tensor | None]
"""∇L of parameters by name; None for an unused one, which an optimizer skips, unlike a gradient of zero."""


class BatchLosses(MeasuredModel):
    """The loss: of single batches, and its mean over all, of this process or of all that share the data."""

    def evaluations(self) -> Generator[Evaluation, None, None]:
        """Evaluate all batches, one at a time, each with its graph."""
        with self.measuring(), contextlib.closing(self.data()) as data:
            for index, batch in data:
                yield self.evaluate(index, batch)

    def model_inputs(self, index: int, batch: Batch) -> Any:
        """What the model is called with on one batch of `data()`.

        Raises:
            Unsupported: A training step calls parts of the model only.
        """
        if not isinstance(self._loss.loss, TrainingStep):
            return batch[0]
        with self.measuring():
            return arguments_in(self.model, lambda: self.forward(index, batch[0]))

    def evaluate(self, index: int, batch: Batch) -> Evaluation:
        """Outputs and loss of one batch; call it inside `measuring()`."""
        return self.evaluate_outputs(index, batch, self.forward(index, batch[0]))

    def evaluate_outputs(self, index: int, batch: Batch, outputs: Any) -> Evaluation:
        """The loss of one batch whose outputs are known."""
        why = functools.partial(self._why_not_finite, index, batch)
        return self._loss.evaluate(index, outputs, batch, why, is_one_batch=self.is_one_batch)

    def loss_of(self, index: int, batch: Batch) -> Tensor:
        """The loss of one batch; call it inside `measuring()`.

        For a batch that has been evaluated before, at other weights, this is only a forward pass.
        """
        outputs = self.forward(index, batch[0])
        if not self._loss.is_known:
            return self.evaluate_outputs(index, batch, outputs).loss
        return self._loss_value(index, batch, outputs)

    def training_loss(self, index: int, batch: Batch) -> Tensor:
        """The loss of one batch as an optimizer sees it, be it a mean or a sum; call it inside `measuring()`."""
        return self._loss_value(index, batch, self.forward(index, batch[0]))

    def raw_loss(self, outputs: Any, targets: Any, index: int = 0) -> Any:
        """What the loss returns, unchecked: maybe NaN, a sum, or not a number. Call it inside `measuring()`.

        Raises:
            InvalidProblem: The loss fails on these outputs and targets.
        """
        return self._loss.raw(index, outputs, targets)

    def loss_adds_up(self, outputs: Any, targets: Any, index: int = 0) -> bool:
        """Whether the loss is a sum over the examples and not a mean; False if that cannot be seen.

        Call it inside `measuring()`.
        """
        return self._loss.adds_up(index, outputs, targets)

    def loss_of_outputs(self, outputs: Tensor, targets: Any) -> Tensor:
        """The loss () as a function of any outputs and targets."""
        return self._loss.value(0, outputs, targets, lambda: "the loss is NaN or infinite.")

    def _loss_value(self, index: int, batch: Batch, outputs: Any) -> Tensor:
        return self._loss.value(index, outputs, batch[1], lambda: self._why_not_finite(index, batch))

    def _why_not_finite(self, index: int, batch: Batch) -> str:
        return why_not_finite(self.model, index, batch, lambda: self.forward(index, batch[0]))

    # means over all batches

    @property
    def member(self) -> Member | None:
        """This process among those that share passes over the data, if they do and this one leads."""
        member = getattr(self.source, "member", None)
        return member if member is not None and member.can_share(self) else None

    def ask_all(self, member: Member, order: Order, *args: Any, tensors: Sequence[Tensor] = ()) -> Any:
        """The answer of all processes to an order, whose cost is that of this one's share: they work side by side."""
        before = member.problem.cost
        answer = member.ask(order, *args, tensors=tensors)
        self.count_copies(member.problem.cost - before)
        return answer

    def mean_loss(self) -> Tensor:
        """L (), by forward passes without a graph; call it inside `measuring()`."""
        if (member := self.member) is not None:
            shared: Tensor = self.ask_all(member, mean_gradients, [])[0]
            return shared
        with torch.no_grad():
            mean: Tensor = self._mean_over_batches(lambda loss: [loss])[0]
        return mean

    def loss_and_gradients(self, params: Mapping[str, nn.Parameter] | None = None) -> tuple[Tensor, Gradients]:
        """L (), and its gradient with respect to some parameters; call it inside `measuring()`.

        Batches count by their weight. `.grad` is neither read nor written.

        Args:
            params: Parameters by name; None for all that are trainable. Autograd stops at the first of them.
        """
        params = self.params if params is None else params
        tensors = list(params.values())
        if (member := self.member) is not None:
            loss, gradients = self.ask_all(member, mean_gradients, list(params))
            return loss, dict(zip(params, gradients, strict=True))

        def differentiated(loss: Tensor) -> list[Any]:
            return [loss.detach(), *self.gradient(loss, tensors, allow_unused=True)]

        loss, *gradients = self._mean_over_batches(differentiated)
        return loss, dict(zip(params, gradients, strict=True))

    def _mean_over_batches(self, values_of: Callable[[Tensor], list[Any]]) -> list[Any]:
        """The mean over batches of values computed from each loss; None counts as zero, one batch is not rounded."""
        mean: list[Any] = []
        weight = 0.0
        with contextlib.closing(self.data()) as data:
            for index, batch in data:
                if self.is_one_batch:
                    return values_of(self.loss_of(index, batch))
                evaluation = self.evaluate(index, batch)
                weight += evaluation.weight
                values = values_of(evaluation.loss)
                mean = merged(mean, values, evaluation.weight / weight) if mean else values
        return mean

    def runs_on_part(self, batch: Batch) -> bool:
        """Whether the model runs on half of a batch: a graph's nodes look like examples, but belong to its edges."""
        if not share_examples(batch):
            return False
        try:
            with self.measuring(), torch.no_grad():
                self.training_loss(0, first_examples(batch, max(1, examples_in(batch) // 2)))
        except NonFinite:
            return True
        except Exception:  # the user's model may raise anything
            return False
        return True


def merged(mean: Sequence[Tensor | None], new: Sequence[Tensor | None], share: float) -> list[Tensor | None]:
    """Update a running mean with the values of a batch, whose share of all terms so far is `share`."""
    merged: list[Tensor | None] = []
    for b, n in zip(mean, new, strict=True):
        if b is None or n is None:
            merged.append(b * (1 - share) if b is not None else n * share if n is not None else None)
        else:
            merged.append(b.lerp(n, share))
    return merged
