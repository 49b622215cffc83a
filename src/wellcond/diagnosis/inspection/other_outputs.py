"""The loss of other outputs than the network's own: uninformed, correct, or in another shape."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond.diagnosis.inspection.data import wide, wide_dtype
from wellcond.problem.loss.loss_graph import LossKind

WRONG_CLASS, WRONG_CLASSES = 0.01, 0.1
"""Odds of every wrong class in correct logits, and of all of them at most; smoothed labels punish smaller ones."""
CORRECT_LOGIT = 20.0
"""|logit| of a correct binary answer."""
SMALL_RATE = 0.1
"""What stands in for a count of 0 where its logarithm is taken."""
FLAT_PROBABILITY = 1e-3
"""Distance of a saturated probability from 0 or 1."""


@dataclass(frozen=True)
class OtherOutputs:
    """The loss of other outputs of one batch; None where it refuses them.

    Attributes:
        loss_of: The loss as a function of outputs and targets; it may raise.
        outputs: The network's own outputs, without a graph.
        targets: Targets of the batch.
        target: The same as one tensor, if that is what the loss compares outputs with.
        kind: What the loss takes outputs for.
        class_dim: Dimension of the classes.
        tail: Last operations that made the outputs.
    """

    loss_of: Callable[[Tensor, Any], Tensor]
    outputs: Tensor
    targets: Any
    target: Tensor | None
    kind: LossKind
    class_dim: int | None
    tail: tuple[str, ...]

    def at(self, outputs: Tensor) -> float | None:
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the loss has already warned about the model's own outputs
                value = float(self.loss_of(outputs, self.targets))
        except Exception:  # the user's loss may refuse other outputs in any way
            return None
        return value if math.isfinite(value) else None

    def uninformed(self) -> float | None:
        """Class frequencies as logits, or the mean of the targets."""
        p = self._frequencies()
        if p is not None and self.class_dim is not None:
            shape = [1] * self.outputs.dim()
            shape[self.class_dim] = len(p)
            logits = p.clamp_min(1e-12).log().to(self.outputs.dtype).view(shape)
            return self.at(logits.expand_as(self.outputs))
        target = self._paired()
        if target is None:
            return None
        mean = target.mean(0, keepdim=True)
        if self.kind == "bce-logits":
            mean = torch.logit(mean.clamp(1e-6, 1 - 1e-6))
        return self.at(mean.expand_as(self.outputs).to(self.outputs.dtype).contiguous())

    def uniform(self) -> float | None:
        """All classes alike: equal logits, or log-probabilities of −log C."""
        if self.kind not in ("cross-entropy", "nll", "bce-logits"):
            return None
        classes = 1 if self.class_dim is None or self.kind != "nll" else self.outputs.shape[self.class_dim]
        return self.at(torch.full_like(self.outputs, -math.log(classes)))

    def at_targets(self, target: Tensor | None) -> float | None:
        """Outputs that equal the targets as they are in the batch."""
        if target is None or target.numel() != self.outputs.numel():
            return None
        return self.at(target.detach().reshape(self.outputs.shape).to(self.outputs.dtype))

    def at_logarithms(self) -> float | None:
        """Outputs that equal the logarithms of the targets, of which none is negative."""
        target = self._paired()
        if target is None or bool((target < 0).any()):
            return None
        return self.at(target.clamp_min(SMALL_RATE).log().to(self.outputs.dtype))

    def flattened_perfect(self) -> float | None:
        """The loss of correct outputs, if labels of the other order than the outputs are flattened as they lie."""
        return self._perfect(self._one_hot(as_they_lie=True)) if self._is_turned else None

    def perfect(self) -> float | None:
        """The loss of correct outputs."""
        return self._perfect(self._one_hot())

    def _perfect(self, hot: Tensor | None) -> float | None:
        if hot is not None and self.class_dim is not None:
            odds = min(WRONG_CLASS, WRONG_CLASSES / max(hot.shape[self.class_dim] - 1, 1))
            return self.at(hot.clamp_min(odds).log().to(self.outputs.dtype))
        target = self._paired()
        return None if target is None else self.at(self._correct(target))

    def _correct(self, target: Tensor) -> Tensor:
        """Outputs that are right: of soft labels, such as 0.9, their own log-odds."""
        if self.kind != "bce-logits":
            return target.to(self.outputs.dtype)
        odds = target.double().clamp(0, 1).logit().clamp(-CORRECT_LOGIT, CORRECT_LOGIT)
        is_hard = (target <= 0) | (target >= 1)  # labels that are no probabilities keep their side and size
        return torch.where(is_hard, (target - 0.5) * 2 * CORRECT_LOGIT, odds).to(self.outputs.dtype)

    def reshaped(self) -> float | None:
        """The loss of [N, 1] outputs in the shape [N] of the targets; it differs if the loss broadcasts."""
        target = self._of_other_shape()
        return None if target is None else self.at(self.outputs.reshape(target.shape))

    def reshaped_perfect(self) -> float | None:
        """The same of correct outputs; no larger than in the outputs' own shape if the loss broadcasts there."""
        target = self._of_other_shape()
        return None if target is None else self.at(self._correct(target.double()))

    def _of_other_shape(self) -> Tensor | None:
        target = self.target
        if target is None or target.shape == self.outputs.shape or target.numel() != self.outputs.numel():
            return None
        return target.detach()

    def probabilities(self) -> Tensor | None:
        """(…, classes) of a classifier."""
        if self.class_dim is not None:
            rows = wide(self.outputs).movedim(self.class_dim, -1)
            return rows.softmax(-1)  # log-probabilities give the probabilities themselves
        if self.kind in ("bce", "bce-logits"):
            p = wide(self.outputs).sigmoid() if self.kind == "bce-logits" else wide(self.outputs)
            return p.flatten(1) if p.dim() > 1 else p[:, None]
        return None

    def saturated(self) -> float | None:
        p = self.probabilities()
        if self.tail[:1] in (("Sigmoid",), ("Softmax",)):
            p = wide(self.outputs).flatten(1) if self.outputs.dim() > 1 else wide(self.outputs)[:, None]
        if p is None:
            return None
        are_flat = (p < FLAT_PROBABILITY) | (p > 1 - FLAT_PROBABILITY)
        if p.shape[-1] > 1 and self.class_dim is not None:  # of ten thousand classes that are alike, each has little
            are_flat = p.amax(-1, keepdim=True) > 1 - FLAT_PROBABILITY
        return float(are_flat.all(-1).double().mean())

    def accuracy(self) -> float | None:
        p, hot = self.probabilities(), self._one_hot()
        if p is not None and hot is not None and self.class_dim is not None:
            counts = hot.sum(self.class_dim) > 0
            right = p.argmax(-1) == hot.movedim(self.class_dim, -1).argmax(-1)
            return float(right[counts].double().mean())
        target = self._paired()
        if p is not None and target is not None and self.class_dim is None:
            return float(((p > 0.5) == (target.reshape(p.shape) > 0.5)).double().mean())
        return None

    @property
    def _is_turned(self) -> bool:
        """Whether labels are (examples, steps), and outputs (steps, examples, classes)."""
        if self.target is None or self.class_dim is None or self.target.dim() != 2 or self.outputs.dim() != 3:
            return False
        steps, examples, _ = self.outputs.movedim(self.class_dim, -1).shape
        return steps != examples and self.target.shape == (examples, steps)

    def _one_hot(self, *, as_they_lie: bool = False) -> Tensor | None:
        """One-hot labels in the shape of the outputs, or in the order of their numbers; zero where one is ignored."""
        if self.class_dim is None or self.target is None:
            return None
        if self.target.shape == self.outputs.shape:
            return wide(self.target)
        shape = self.outputs.movedim(self.class_dim, -1).shape
        if self.target.is_floating_point() or self.target.numel() != math.prod(shape[:-1]):
            return None
        target = self.target.T if self._is_turned and not as_they_lie else self.target
        index = target.reshape(shape[:-1]).long()
        valid = (index >= 0) & (index < shape[-1])
        hot = torch.zeros(shape, dtype=wide_dtype(self.outputs), device=index.device)
        hot.scatter_(-1, index.clamp(0, shape[-1] - 1)[..., None], valid.to(hot)[..., None])
        return hot.movedim(-1, self.class_dim)

    def _frequencies(self) -> Tensor | None:
        hot = self._one_hot()
        if hot is None or self.class_dim is None:
            return None
        counts = hot.movedim(self.class_dim, -1).flatten(0, -2).sum(0)
        return counts / counts.sum() if float(counts.sum()) > 0 else None

    def _paired(self) -> Tensor | None:
        """The targets in the shape of the outputs, if the sizes agree."""
        if self.class_dim is not None or self.target is None or self.target.numel() != self.outputs.numel():
            return None
        return wide(self.target.detach().reshape(self.outputs.shape))
