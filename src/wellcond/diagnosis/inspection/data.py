"""Scale, range and spread of every tensor of the inputs and targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from wellcond.network.calling import tensors_in
from wellcond.network.layers import feature_dim

MOST_VALUES = 2**21
"""Values read per tensor; a larger batch is cut to fewer examples."""
LARGE_RMS = 4.0
"""RMS of inputs above which training is slower. Initializations are made for E x² = 1. The curvature of the first layer
grows with E x², so at 4 its largest stable rate is a sixteenth. Pixels in [0, 1] have 0.1 to 0.6, standardized data 1,
raw pixels about 130."""
DOMINATES = 100.0
"""RMS of the largest feature over that of the median one; the scales alone then give Σx a κ of 10⁴ or more."""
UNEVEN_RMS = 2.0
"""RMS of a whole table above which one dominant feature counts: below, the largest feature is of ordinary size."""
SMALL_REACH = 0.05
"""Largest |x| below which biases outweigh the inputs."""
MOST_WIDE = 2**24
"""Numbers that are computed with in float64. The logits of a vocabulary for thousands of tokens are more, and would
take several times the memory of a training step."""


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype that a tensor's numbers are computed with in: float64, or float32 if they are very many."""
    is_small = tensor.numel() <= MOST_WIDE
    return torch.float64 if is_small or tensor.dtype == torch.float64 else torch.float32


def wide(tensor: Tensor) -> Tensor:
    """A tensor in its `wide_dtype`."""
    return tensor.to(wide_dtype(tensor))


@dataclass(frozen=True)
class TensorFacts:
    """One tensor of the inputs, targets or outputs, over the examples that were read.

    Attributes:
        name: Expression for it: `inputs`, `inputs[1]`, `targets`.
        shape: Shape in one batch.
        dtype: Its dtype.
        examples: Number of examples read.
        feature_dim: Dimension that counts features: 1 for images, the last one for tables and tokens.
        rms: √(mean x²) of the finite values.
        mean: Mean of the finite values.
        std: Standard deviation of the finite values.
        low: Smallest finite value.
        high: Largest finite value.
        feature_mean: (features,), mean of each; empty for class indices and tokens.
        feature_std: (features,), standard deviation of each.
        feature_low: (features,), smallest value of each.
        feature_high: (features,), largest value of each.
        not_finite: Number of values that are NaN or infinite.
        is_index: Whether it has an integer type: classes or tokens.
        is_whole: Whether all values are whole numbers.
        is_binary: Whether all values are 0 or 1.
        is_one_hot: Whether every row over the features has a single 1 and is 0 elsewhere.
        is_same_within_batches: Whether all examples of every batch are the same.
        purity: Share of the commonest label in a batch, the mean over batches; NaN unless each example has one label.
        grouping: χ² of labels by batches, in its standard deviations from what a shuffle gives; NaN where `purity` is.
        is_ordered: Whether one number per example never falls, or never rises, over several batches.
        least_label: Smallest index that is not negative: losses leave out −100, or −1; NaN for numbers.
        may_be_lengths: Whether it may count entries of others: in every batch its largest value is the size of a
            dimension of another tensor there, or its sum the length of one.
        is_of_epoch: Whether all of an epoch was read.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    examples: int
    feature_dim: int
    rms: float
    mean: float
    std: float
    low: float
    high: float
    feature_mean: Tensor
    feature_std: Tensor
    feature_low: Tensor
    feature_high: Tensor
    not_finite: int
    is_index: bool
    is_whole: bool
    is_binary: bool
    is_one_hot: bool
    is_same_within_batches: bool
    purity: float = math.nan
    grouping: float = math.nan
    is_ordered: bool = False
    least_label: float = math.nan
    may_be_lengths: bool = False
    is_of_epoch: bool = False

    @property
    def is_constant(self) -> bool:
        """Whether all entries are the same, but for negative indices, which losses leave out."""
        return self.high in (self.low, self.least_label)

    @property
    def features(self) -> int:
        """Number of features; 0 for class indices and tokens."""
        return len(self.feature_mean)

    @property
    def feature_rms(self) -> Tensor:
        """(features,), √(mean x²)."""
        return (self.feature_mean.square() + self.feature_std.square()).sqrt()

    @property
    def constant(self) -> Tensor:
        """Indices of the features that never vary."""
        return (self.feature_low == self.feature_high).nonzero().flatten()

    @property
    def reach(self) -> float:
        """Largest |x|."""
        return max(abs(self.low), abs(self.high))

    @property
    def is_table(self) -> bool:
        """Whether it is (examples, features), with two features or more."""
        return len(self.shape) == 2 and self.features > 1

    @property
    def dominance(self) -> float:
        """RMS of the largest feature over that of the median one, in a table; 1 for others."""
        if not self.is_table:
            return 1.0
        largest, median = float(self.feature_rms.max()), float(self.feature_rms.median())
        return largest / median if median > 0 else torch.inf

    @property
    def is_uneven(self) -> bool:
        """Whether one feature of a table dominates the others."""
        return self.dominance > DOMINATES and self.rms > UNEVEN_RMS

    @property
    def has_scale(self) -> bool:
        """Whether it holds numbers whose scale matters: not class indices, tokens, or zeros and ones."""
        return not self.is_index and bool(self.features) and not self.is_binary and not self.is_one_hot


def is_badly_scaled(fact: TensorFacts) -> bool:
    """Whether a tensor of inputs is too large, uneven, or too small for weights that are made for E x² = 1."""
    return is_too_large(fact) or is_too_small(fact)


def is_too_large(fact: TensorFacts) -> bool:
    """Whether the inputs, or one feature of a table, are far larger than 1."""
    return fact.has_scale and (fact.rms > LARGE_RMS or fact.is_uneven)


def is_too_small(fact: TensorFacts) -> bool:
    """Whether the inputs are so small that biases outweigh them."""
    return fact.has_scale and not is_too_large(fact) and 0 < fact.reach < SMALL_REACH


def facts_of(
    batches: list[Any], name: str, channels_first: bool, *, whole: Sequence[Any] | None = None
) -> list[TensorFacts]:
    """Facts about every tensor that is described, over several batches.

    Args:
        batches: The inputs, or the targets, of each batch; all of the same structure.
        name: `inputs`, `targets` or `outputs`.
        channels_first: Whether (N, a, b) is (examples, channels, positions), and not (examples, tokens, features).
        whole: The batches with all that is in them; None: nothing else is.
    """
    by_place = zip(*(tensors_in(batch) for batch in batches), strict=False)
    tensors = [[t for t in at if is_described(t)] for at in by_place]
    return [
        replace(_facts(at, f"{name}{place}", channels_first), may_be_lengths=_may_be_lengths(at, whole or batches))
        for place, at in zip(_places(batches[0], len(tensors)), tensors, strict=True)
        if at
    ]


def is_described(tensor: Tensor) -> bool:
    """Whether a tensor has examples in front; a sparse one is a graph or a table of counts, and has no scale."""
    return tensor.dim() > 0 and tensor.layout is torch.strided


def _places(batch: Any, count: int) -> list[str]:
    """What one writes after the name for each tensor of a batch: nothing, `[1]` or `['price']`."""
    if isinstance(batch, Tensor) or count == 1:
        return [""] * count
    places = [keystr(path) for path, leaf in tree_flatten_with_path(batch)[0] if isinstance(leaf, Tensor)]
    return places if len(places) == count else [f"[{i}]" for i in range(count)]


def _facts(tensors: list[Tensor], name: str, channels_first: bool) -> TensorFacts:
    first = tensors[0]
    examples = sum(len(t) for t in tensors)
    examples_read = max(1, MOST_VALUES * len(first) // max(1, first.numel() * len(tensors)))
    tensors = [t[:examples_read] for t in tensors]
    is_index = not first.is_floating_point() and first.dtype != torch.bool
    dim = feature_dim(first, channels_first=channels_first)
    same = all(bool((t == t[:1]).all()) for t in tensors) and first.shape[0] > 1
    by_feature = [_rows(t, dim) for t in tensors]
    if len({each.shape[1] for each in by_feature}) > 1:  # sequences of other lengths in every batch
        by_feature = [each.reshape(-1, 1) for each in by_feature]
    rows = torch.cat(by_feature)
    is_finite = rows.isfinite()
    not_finite = int((~is_finite).sum())
    finite = rows[is_finite.all(1)] if not_finite else rows
    if not finite.numel():
        finite = rows.nan_to_num(0.0, 0.0, 0.0)
    low, high = finite.amin(0), finite.amax(0)
    mean, std = finite.mean(0), finite.std(0, correction=0)
    is_whole = bool((finite == finite.round()).all())
    is_binary = is_whole and float(low.min()) >= 0 and float(high.max()) <= 1
    one_hot = is_binary and rows.shape[1] > 1 and bool((finite.sum(1) == 1).all())
    none = torch.empty(0, dtype=torch.float64)
    per_example = [t.detach().reshape(-1).double() for t in tensors] if first[0].numel() == 1 else []
    purity, grouping = _grouped(per_example) if is_index and len(per_example) > 1 else (math.nan, math.nan)
    return TensorFacts(
        name=name,
        shape=tuple(first.shape),
        dtype=first.dtype,
        examples=examples,
        feature_dim=dim,
        rms=float(finite.square().mean().sqrt()),
        mean=float(finite.mean()),
        std=float(finite.std(correction=0)),
        low=float(low.min()),
        high=float(high.max()),
        feature_mean=none if is_index else mean.cpu(),
        feature_std=none if is_index else std.cpu(),
        feature_low=none if is_index else low.cpu(),
        feature_high=none if is_index else high.cpu(),
        not_finite=not_finite,
        is_index=is_index,
        is_whole=is_whole,
        is_binary=is_binary,
        is_one_hot=one_hot,
        is_same_within_batches=same,
        purity=purity,
        grouping=grouping,
        is_ordered=len(per_example) > 1 and _is_monotone(torch.cat(per_example)),
        least_label=float(finite[finite >= 0].min()) if is_index and bool((finite >= 0).any()) else math.nan,
    )


def _may_be_lengths(tensors: list[Tensor], whole: Sequence[Any]) -> bool:
    """Whether a number per example may count entries: of rows that are padded, or of rows that are joined to one."""
    if any(t.dim() != 1 or t.is_floating_point() or t.is_complex() or not len(t) for t in tensors):
        return False
    return all(
        any(
            int(t.max()) in other.shape[1:] or (other is not t and other.shape[:1] == (int(t.sum()),))
            for other in others
        )
        for t, others in zip(tensors, map(tensors_in, whole), strict=False)
    )


def _grouped(batches: list[Tensor]) -> tuple[float, float]:
    """How pure the batches are, and how far their labels are from a random draw of all labels."""
    labels, index = torch.unique(torch.cat(batches), return_inverse=True)
    sizes = [len(batch) for batch in batches]
    counts = torch.stack([part.bincount(minlength=len(labels)) for part in index.split(sizes)]).double()
    expected = counts.sum(1, keepdim=True) * counts.sum(0) / counts.sum()
    freedom = (len(batches) - 1) * (len(labels) - 1)
    statistic = float(((counts - expected).square() / expected).sum())
    purity = float((counts.amax(1) / counts.sum(1)).mean())
    return purity, (statistic - freedom) / math.sqrt(2 * freedom) if freedom else 0.0


def _is_monotone(numbers: Tensor) -> bool:
    steps = numbers.diff()
    return bool((steps >= 0).all()) or bool((steps <= 0).all())


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """(values of one feature, features), in their `wide_dtype`."""
    tensor = tensor.detach()
    if tensor.dim() == 1:
        return wide(tensor).unsqueeze(1)
    return wide(tensor.movedim(dim, -1).reshape(-1, tensor.shape[dim]))
