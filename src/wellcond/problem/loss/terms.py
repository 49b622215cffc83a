"""What a loss is the mean over: how many terms a batch has, and what it weighs beside others.

A loss L = Σ_i a_i ℓ_i / Σ_i a_i is found out by calling it at the level of outputs, without a pass of the model. If
some outputs are joined with others, the gradients of each part shrink to its share of Σ a; those of a sum do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond.network import taps
from wellcond.problem.loss.likelihoods import CrossEntropy, Likelihood
from wellcond.problem.loss.losses import check_is_mean
from wellcond.problem.loss.output_batches import OutputBatch, fingerprint, scaling, tolerance, with_gradients
from wellcond.problem.loss.positions import averaged_dims, growth_along, places_with_gradient


@dataclass(frozen=True)
class Terms:
    """What one batch's loss is the mean over.

    Attributes:
        count: The number of summands: examples, or positions (tokens, pixels) where the loss averages over them.
        weight: Σ a, what the batch weighs beside others, in units in which the first batch weighs its count.
        dims: The dimensions of the outputs that belong to one term.
    """

    count: float
    weight: float
    dims: tuple[int, ...]


class TermCounter:
    """Counts the terms of a problem's batches; what it takes to know them is done once for every batch."""

    def __init__(self) -> None:
        self._positions: tuple[int, ...] | None = None
        self._counts_all: bool | None = None
        self._reference: tuple[OutputBatch, float] | None = None
        self._has_first = False
        self._equal_labels: set[int] = set()
        self._known: dict[int, tuple[Any, Terms]] = {}

    def of_likelihood(self, likelihood: Likelihood, batch: OutputBatch, is_alone: bool) -> Terms | None:
        """The terms of a batch whose loss is a likelihood's; None if the classes turn out to have weights.

        A batch whose labels are all of one class does not show that; its loss beside another batch's does.
        """
        (outputs,) = batch.tensors
        count = likelihood.terms(outputs, batch.targets)
        terms = Terms(count, count, likelihood.term_dims(outputs))
        if is_alone or not isinstance(likelihood, CrossEntropy) or batch.targets.is_floating_point():
            return terms
        labels = set(batch.targets.unique().tolist()) - {likelihood.ignore_index}
        if self._reference is None:
            part = batch.taken(likelihood.counts(outputs, batch.targets).argsort(descending=True)[:1])
            self._reference = part, likelihood.terms(part.tensors[0], part.targets)
        elif not labels & self._equal_labels:
            part, unit = self._reference
            share = _relative_weight(part, *with_gradients(batch))
            if share is not None and not math.isclose(unit / share, count, rel_tol=tolerance(outputs)):
                return None
        self._equal_labels |= labels
        return terms

    def of(self, index: int, batch: OutputBatch, is_alone: bool) -> Terms:
        """The terms of a batch of any other loss.

        Raises:
            InvalidProblem: The loss is a sum over the batch.
        """
        mark = fingerprint(batch.targets)
        if index in self._known and self._known[index][0] == mark:
            return self._known[index][1]
        batch, gradients = with_gradients(batch)
        if self._positions is None:
            self._positions = averaged_dims(batch, gradients)
        has_gradient = places_with_gradient(batch, gradients, self._positions)
        part = _part(batch, has_gradient)
        count = self._count(batch, gradients, has_gradient, part)
        weight = count
        if not self._has_first:
            self._has_first = True
            check_is_mean(batch, gradients, part)
        if self._reference is None and not is_alone and index == 0:
            share = _relative_weight(part, batch, gradients)
            self._reference = None if share is None else (part, count * share)
        elif self._reference is not None:
            part, unit = self._reference
            share = _relative_weight_of_lengths(part, batch, gradients, self._positions)
            if share is not None and abs(unit / share - count) > tolerance(gradients[0]) * count:
                weight = unit / share
        terms = Terms(count, weight, _other_dims(batch, self._positions))
        self._known[index] = mark, terms
        return terms

    def _count(self, batch: OutputBatch, gradients: list[Tensor], has_gradient: Tensor, part: OutputBatch) -> float:
        """How many positions count. Those without a gradient do if the loss is divided by their number too."""
        every, seen = float(has_gradient.numel()), float(has_gradient.sum())
        if seen in (0, every):
            return every
        if self._counts_all is None:
            self._counts_all = _counts_all(batch, gradients, has_gradient, part, self._positions or ())
        return every if self._counts_all else seen


def of_logits(loss: Tensor, logits: Tensor | None) -> float | None:
    """The tokens that count in a cross-entropy that the model computed itself, from its gradient by the logits.

    The gradient of a token is (p − e_y)/n: what it has above zero, beside p, is 1/n.
    """
    if logits is None or logits.dim() < 2 or not (loss.requires_grad and logits.requires_grad):
        return None
    with taps.closed():
        (found,) = torch.autograd.grad(loss, logits, retain_graph=True, allow_unused=True)
    if found is None:
        return None
    for dim in {logits.dim() - 1, 1}:
        rows, p = (t.detach().movedim(dim, -1).flatten(0, -2) for t in (found, logits.softmax(dim)))
        counts = rows.any(-1)
        n = int(counts.sum())
        is_label = rows < 0
        others = torch.where(is_label, 0.0, p)
        expected = torch.where(counts[:, None], others / max(n, 1), 0.0)
        is_one_label = bool((is_label.sum(-1) == counts).all())
        if n and is_one_label and torch.allclose(rows.clamp_min(0), expected, rtol=1e-3, atol=1e-6 / n):
            return float(n)
    return None


def _part(batch: OutputBatch, has_gradient: Tensor) -> OutputBatch:
    """An eighth of the examples, those with the most positions that have a gradient."""
    counts = has_gradient.flatten(1).sum(1) if has_gradient.dim() > 1 else has_gradient.long()
    return batch.taken(counts.argsort(descending=True, stable=True)[: math.ceil(batch.examples / 8)])


def _counts_all(
    batch: OutputBatch, gradients: list[Tensor], has_gradient: Tensor, part: OutputBatch, positions: tuple[int, ...]
) -> bool:
    """Whether the loss is divided by the number of all positions, those that have no gradient among them.

    Told by how gradients change when some examples are counted twice, and when sequences are cut.
    """
    answers = []

    def ask(found: float | None, by_all: float, by_seen: float) -> None:
        if found is not None and (math.isnan(found) or not math.isclose(by_all, by_seen, rel_tol=1e-6)):
            answers.append(abs(found - by_all) < 0.1 * abs(by_all - by_seen))

    seen = has_gradient.flatten(1).sum(1) if has_gradient.dim() > 1 else has_gradient.long()
    chosen = seen.sort(descending=True).values[: part.examples]
    ask(
        _relative_weight(part, batch, gradients),
        part.examples / batch.examples,
        float(chosen.sum() / seen.sum()),
    )
    for place, dim in enumerate(positions, start=1):
        size = has_gradient.shape[place]
        kept = (size + 1) // 2
        left = float(has_gradient.narrow(place, 0, kept).sum())
        if left:
            ask(growth_along(batch, gradients, dim, kept, positions), size / kept, float(seen.sum()) / left)
    return bool(answers) and all(answers)


def _relative_weight(part: OutputBatch, batch: OutputBatch, gradients: list[Tensor]) -> float | None:
    """What `part` weighs beside `batch`; None where the loss does not tell, as one that couples examples."""
    try:
        own = part.gradients()
        first, second = batch.split(batch.joined(part).gradients())
    except Exception:  # a user's loss that takes no other batch may raise anything
        return None
    share, share_of_part = scaling(first, gradients), scaling(second, own)
    if share is None or share_of_part is None or not math.isclose(share + share_of_part, 1, rel_tol=1e-3):
        return None
    return share_of_part / share if share > 0 and share_of_part > 0 else None


def _relative_weight_of_lengths(
    part: OutputBatch, batch: OutputBatch, gradients: list[Tensor], positions: tuple[int, ...]
) -> float | None:
    """The same where sequences may differ in length: of as much of them as both have, times what both are more."""
    longer = 1.0
    for dim in positions:
        size = min(part.tensors[0].shape[dim], batch.tensors[0].shape[dim])
        if part.tensors[0].shape[dim] > size:
            longer *= growth_along(part, part.gradients(), dim, size, positions) or math.nan
            part = part.shortened(dim, size, positions)
        elif batch.tensors[0].shape[dim] > size:
            longer /= growth_along(batch, gradients, dim, size, positions) or math.nan
            batch = batch.shortened(dim, size, positions)
            gradients = batch.gradients()
    share = _relative_weight(part, batch, gradients)
    return None if share is None or math.isnan(longer) else share * longer


def _other_dims(batch: OutputBatch, positions: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(d for d in range(1, batch.tensors[0].dim()) if d not in positions)
