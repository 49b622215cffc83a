"""The loss of one batch with its graph, and the likelihood that the loss is recognised as."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wellcond.errors import InvalidProblem, NonFinite
from wellcond.network.calling import logits_of
from wellcond.problem.failures import why_loss_failed
from wellcond.problem.likelihoods import Likelihood
from wellcond.problem.losses import Loss, check_is_mean, check_targets, explains, recognise

PLAIN_ERRORS = (RuntimeError, IndexError, ValueError)
"""What torch raises when shapes, dtypes or indices do not fit; subclasses of these mean something else."""


@dataclass(frozen=True)
class Evaluation:
    """One batch's outputs and mean loss, with their graph.

    Attributes:
        index: The batch's place among the batches.
        outputs: The tensor that the loss curves in, if there is one.
        targets: The batch's targets.
        loss: The mean loss.
        examples: The size of the batch.
        terms: The number of summands in the mean, which is the batch's weight beside others.
        loss_at: The loss as a function of other outputs or labels of the same batch.
    """

    index: int
    outputs: Tensor | None
    targets: Any
    loss: Tensor
    examples: int
    terms: float
    loss_at: Loss


class RecognisedLoss:
    """A user's loss, and the likelihood that its values have shown it to be the logarithm of.

    Attributes:
        likelihood: None before the first batch, and for a loss that is none of the known ones.
        is_known: Whether a batch has been looked at.
    """

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.likelihood: Likelihood | None = None
        self.is_known = False

    def evaluate(self, index: int, raw: Any, targets: Any, why_not_finite: Callable[[], str]) -> Evaluation:
        """The loss of one batch whose model returned `raw`; the first batch shows which likelihood it is."""
        outputs = logits_of(raw)
        check_targets(self.loss, outputs, targets)
        with explained(lambda error: why_loss_failed(index, outputs, targets, error)):
            loss, loss_at = self._called(raw, outputs, targets)
            _check(loss, why_not_finite)
            if outputs is not None and outputs.dim():
                self._recognise(loss_at, outputs, targets, loss)
        examples = _batch_size(outputs, targets)
        terms = float(examples)
        if self.likelihood is not None and outputs is not None:
            terms, loss_at = self.likelihood.terms(outputs, targets), self.likelihood.mean
        return Evaluation(index, outputs, targets, loss.reshape(()), examples, terms, loss_at)

    def value(self, raw: Any, targets: Any, why_not_finite: Callable[[], str]) -> Tensor:
        """The loss (), of a batch that has been evaluated before."""
        loss, _ = self._called(raw, logits_of(raw), targets)
        _check(loss, why_not_finite)
        one_number: Tensor = loss.reshape(())
        return one_number

    def _called(self, raw: Any, outputs: Tensor | None, targets: Any) -> tuple[Any, Loss]:
        """The loss of one batch, and the loss as a function of other outputs or labels.

        Hugging Face models return an object with `.logits`; a loss may want either the object or the tensor.
        """
        if isinstance(raw, Tensor) or outputs is None:
            return self.loss(raw, targets), self.loss
        try:
            loss = self.loss(raw, targets)
        except (TypeError, AttributeError):
            return self.loss(outputs, targets), self.loss

        def at(logits: Tensor, labels: Any) -> Tensor:
            changed = copy.copy(raw)
            changed.logits = logits
            return self.loss(changed, labels)

        return loss, at

    def _recognise(self, loss_at: Loss, outputs: Tensor, targets: Any, loss: Tensor) -> None:
        """Find the likelihood by the first batch, and again if a later one shows that it is another."""
        if not self.is_known:
            check_is_mean(self.loss, loss_at, outputs, targets, loss)
        elif self.likelihood is None or explains(self.likelihood, loss, outputs, targets):
            return
        self.likelihood = recognise(self.loss, loss_at, outputs, targets)
        self.is_known = True


@contextlib.contextmanager
def explained(why: Callable[[Exception], str]) -> Iterator[None]:
    """Turn torch's plain errors into `InvalidProblem`; out of memory, or what the user's code raises, stays itself."""
    try:
        yield
    except PLAIN_ERRORS as error:
        if type(error) not in PLAIN_ERRORS:
            raise
        raise InvalidProblem(why(error)) from error


def _check(loss: Any, why_not_finite: Callable[[], str]) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
        raise InvalidProblem(
            f'the loss must be one number, a tensor, but has {found}. Write reduction="mean", without .item().'
        )
    if not torch.isfinite(loss.detach()):
        raise NonFinite(why_not_finite())
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise InvalidProblem(
            "the loss does not depend on the trainable parameters: is there a detach(), a no_grad() or an "
            "argmax in the model or the loss?"
        )


def _batch_size(outputs: Tensor | None, targets: Any) -> int:
    for tensor in (outputs, *tree_leaves(targets)):
        if isinstance(tensor, Tensor) and tensor.dim():
            return tensor.shape[0]
    return 1
