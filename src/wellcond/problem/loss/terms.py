"""What a loss is the mean over: how many terms a batch has, and its weight in the mean over batches.

For a loss L = Σ_i a_i ℓ_i / Σ_i a_i, both follow from calling it on other outputs, without a pass of the model: if a
batch is joined with another, the gradients of each shrink by the same factor, its share of Σ a.

Example: `CrossEntropyLoss(weight=[1, 3])` on a batch A with labels (0, 0), so Σ a = 2, and a batch B with labels
(1, 1), so Σ a = 6. The gradients of A joined with B are 2/8 of those of A alone, and those of B 6/8. So B weighs three
times as much as A, although both have two terms. (A plain mean shrinks both to 1/2; a sum shrinks neither.)

    >>> labels = torch.tensor
    >>> def cross_entropy(tensors, targets):
    ...     return torch.nn.functional.cross_entropy(tensors[0], targets, weight=torch.tensor([1.0, 3.0]))
    >>> a, b = (OutputBatch(cross_entropy, [torch.zeros(2, 2)], labels(y)) for y in ([0, 0], [1, 1]))
    >>> _relative_weight(b, a, a.gradients())
    3.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wellcond.network import taps
from wellcond.problem.loss.likelihoods import CrossEntropy, Likelihood
from wellcond.problem.loss.losses import is_taken_sum
from wellcond.problem.loss.output_batches import OutputBatch, fingerprint, scaling, tolerance, with_gradients
from wellcond.problem.loss.positions import averaged_dims, growth_along, places_with_gradient


@dataclass(frozen=True)
class Terms:
    """What the loss of one batch is the mean over.

    Attributes:
        count: Number of summands: examples, or positions (tokens, pixels) if the loss averages over them.
        weight: Σ a, the weight of the batch in the mean over batches, in units in which the first weighs its count.
        dims: Dimensions of the outputs that belong to one term.
    """

    count: float
    weight: float
    dims: tuple[int, ...]


class TermCounter:
    """Counts the terms of a problem's batches; each batch is examined once."""

    def __init__(self) -> None:
        self._positions: tuple[int, ...] | None = None
        self._counts_all: bool | None = None
        self._reference: tuple[OutputBatch, float] | None = None
        self._is_sum: bool | None = None
        self._equal_labels: set[int] = set()
        self._known: dict[int, tuple[Any, Terms]] = {}

    def of_likelihood(self, likelihood: Likelihood, batch: OutputBatch, is_alone: bool) -> Terms | None:
        """The terms of a batch whose loss is a likelihood's; None if the classes turn out to have weights.

        A batch with labels of a single class does not show class weights; together with another batch it does.
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
            InvalidProblem: The loss is a sum over the batch, and sums are not taken.
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
        if self._is_sum is None:
            self._is_sum = is_taken_sum(batch, gradients, part)
        if self._is_sum:
            weight = 1.0
        elif self._reference is None and not is_alone and index == 0:
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
        """Number of positions that count. Those without a gradient do if the loss is divided by their number too."""
        every, seen = float(has_gradient.numel()), float(has_gradient.sum())
        if seen in (0, every):
            return every
        if self._counts_all is None:
            self._counts_all = _counts_all(batch, gradients, has_gradient, part, self._positions or ())
        return every if self._counts_all else seen


def of_logits(loss: Tensor, logits: Tensor | None) -> float | None:
    """The tokens that count in a cross-entropy that the model computed itself, from its gradient by the logits.

    The gradient of a token is (p − e_y)/n: its positive entries, divided by p, are 1/n.
    """
    if logits is None or logits.dim() < 2 or not (loss.requires_grad and logits.requires_grad):
        return None
    with taps.closed():
        (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True, allow_unused=True)
    if gradient is None:
        return None
    for dim in {logits.dim() - 1, 1}:
        rows, p = (t.detach().movedim(dim, -1).flatten(0, -2) for t in (gradient, logits.softmax(dim)))
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
    """The eighth of the examples with the most positions that have a gradient."""
    counts = has_gradient.flatten(1).sum(1) if has_gradient.dim() > 1 else has_gradient.long()
    return batch.taken(counts.argsort(descending=True, stable=True)[: math.ceil(batch.examples / 8)])


def _counts_all(
    batch: OutputBatch, gradients: list[Tensor], has_gradient: Tensor, part: OutputBatch, positions: tuple[int, ...]
) -> bool:
    """Whether the loss is divided by the number of all positions, including those without a gradient.

    The change of the gradients shows it, when some examples are counted twice and when sequences are cut.
    """
    answers = []

    def ask(measured: float | None, by_all: float, by_seen: float) -> None:
        if measured is not None and (math.isnan(measured) or not math.isclose(by_all, by_seen, rel_tol=1e-6)):
            answers.append(abs(measured - by_all) < 0.1 * abs(by_all - by_seen))

    seen = has_gradient.flatten(1).sum(1) if has_gradient.dim() > 1 else has_gradient.long()
    chosen = seen.sort(descending=True).values[: part.examples]
    ask(
        _relative_weight(part, batch, gradients),
        part.examples / batch.examples,
        float(chosen.sum() / seen.sum()),
    )
    for place, dim in enumerate(positions, start=1):
        size = has_gradient.shape[place]
        half = (size + 1) // 2
        left = float(has_gradient.narrow(place, 0, half).sum())
        if left:
            ask(growth_along(batch, gradients, dim, half, positions), size / half, float(seen.sum()) / left)
    return bool(answers) and all(answers)


def _relative_weight(part: OutputBatch, batch: OutputBatch, gradients: list[Tensor]) -> float | None:
    """Σ a of `part` over that of `batch`; None if the loss does not show it, as one that couples examples."""
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
    """The same for sequences of different lengths: cut both to the common length, and correct for what was cut."""
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
