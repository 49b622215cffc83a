"""What inputs and targets are: scale, range and spread of every feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from wellcond.network.calling import tensors_in

MOST_VALUES = 2**21
"""Of one tensor that are looked at; of larger batches fewer examples are."""


@dataclass(frozen=True)
class TensorFacts:
    """One tensor of the inputs or targets, over the examples that were looked at.

    Attributes:
        name: As one writes it behind the batch: `inputs`, `inputs[1]`, `targets`.
        shape: Of one batch.
        dtype: Of the tensor.
        examples: How many were seen.
        feature_dim: The dimension that counts features: 1 for images, the last one for features and tokens.
        rms: √(mean x²) of all that is finite.
        mean: Of all.
        std: Of all.
        low: The smallest.
        high: The largest.
        feature_mean: (features,), empty for class indices and tokens.
        feature_std: (features,).
        feature_low: (features,).
        feature_high: (features,).
        not_finite: How many values are NaN or infinite.
        is_index: Whether it holds whole numbers of an integer type: classes or tokens.
        is_whole: Whether all values are whole numbers.
        is_binary: Whether all values are 0 or 1.
        is_one_hot: Whether every row, over the features, has one 1 and else 0.
        is_same_within_batches: Whether all examples of every batch are the same.
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

    @property
    def features(self) -> int:
        """How many features there are; 0 for class indices and tokens."""
        return len(self.feature_mean)

    @property
    def feature_rms(self) -> Tensor:
        """(features,), √(mean x²)."""
        return (self.feature_mean.square() + self.feature_std.square()).sqrt()

    @property
    def constant(self) -> Tensor:
        """Indices of the features that never vary."""
        return (self.feature_low == self.feature_high).nonzero().flatten()


def facts_of(batches: list[Any], name: str, channels_first: bool) -> list[TensorFacts]:
    """Facts about every tensor with examples in front, over some batches.

    Args:
        batches: Inputs of some batches, or targets; those of one form.
        name: `inputs` or `targets`.
        channels_first: Whether (N, a, b) is (examples, channels, positions), and not (examples, tokens, features).
    """
    by_place = zip(*(tensors_in(batch) for batch in batches), strict=False)
    tensors = [[t for t in at if t.dim()] for at in by_place]
    return [
        _facts(at, f"{name}{place}", channels_first)
        for place, at in zip(_places(batches[0], len(tensors)), tensors, strict=True)
        if at
    ]


def _places(batch: Any, count: int) -> list[str]:
    """How one writes each tensor of a batch behind its name: nothing, `[1]` or `['price']`."""
    if isinstance(batch, Tensor) or count == 1:
        return [""] * count
    places = [keystr(path) for path, leaf in tree_flatten_with_path(batch)[0] if isinstance(leaf, Tensor)]
    return places if len(places) == count else [f"[{i}]" for i in range(count)]


def _facts(tensors: list[Tensor], name: str, channels_first: bool) -> TensorFacts:
    first = tensors[0]
    examples = sum(len(t) for t in tensors)
    kept = max(1, MOST_VALUES * len(first) // max(1, first.numel() * len(tensors)))
    tensors = [t[:kept] for t in tensors]
    is_index = not first.is_floating_point() and first.dtype != torch.bool
    dim = 0 if first.dim() == 1 else 1 if first.dim() > 3 or (first.dim() == 3 and channels_first) else first.dim() - 1
    same = all(bool((t == t[:1]).all()) for t in tensors) and first.shape[0] > 1
    rows = torch.cat([_rows(t, dim) for t in tensors])
    is_finite = rows.isfinite()
    not_finite = int((~is_finite).sum())
    known = rows[is_finite.all(1)] if not_finite else rows
    if not known.numel():
        known = rows.nan_to_num(0.0, 0.0, 0.0)
    low, high = known.amin(0), known.amax(0)
    mean, std = known.mean(0), known.std(0, correction=0)
    is_whole = bool((known == known.round()).all())
    is_binary = is_whole and float(low.min()) >= 0 and float(high.max()) <= 1
    one_hot = is_binary and rows.shape[1] > 1 and bool((known.sum(1) == 1).all())
    none = torch.empty(0, dtype=torch.float64)
    return TensorFacts(
        name=name,
        shape=tuple(first.shape),
        dtype=first.dtype,
        examples=examples,
        feature_dim=dim,
        rms=float(known.square().mean().sqrt()),
        mean=float(known.mean()),
        std=float(known.std(correction=0)),
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
    )


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """(values of one feature, features), in float64."""
    tensor = tensor.detach()
    if tensor.dim() == 1:
        return tensor.double().unsqueeze(1)
    return tensor.movedim(dim, -1).reshape(-1, tensor.shape[dim]).double()
