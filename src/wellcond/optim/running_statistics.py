"""Algorithms 2 and 3 of lange2022, with steps 1 to 3 for all layers at once: few operations, at any depth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from wellcond.optim.input_statistics import InputStatistics
from wellcond.optim.preconditioned_layer import PreconditionedLayer


class RunningStatistics:
    """Running μ and σ² of what the layers of one device and dtype receive, and the scales that follow from them.

    Every layer has its slice of flat vectors over all columns. Only the maximum of σ² is taken over the columns of
    one layer, and of one group of a grouped convolution.

    Args:
        layers: Layers of one device and dtype; they get their `mean` and `variance` from here.
    """

    def __init__(self, layers: Sequence[PreconditionedLayer]) -> None:
        self.layers = layers
        self._columns = [layer.columns for layer in layers]
        dtype = torch.promote_types(layers[0].weight.dtype, torch.float32)
        start = torch.tensor([[0.0], [1.0]], dtype=dtype, device="cpu").repeat(1, sum(self._columns))
        self._place(start, layers[0].weight.device)

    def _place(self, moments: Tensor, device: torch.device) -> None:
        """Keep everything on a device: the moments, which column belongs to which layer, and space for the scales."""
        self._moments = moments.to(device)  # (2, columns)
        self._mean, self._variance = self._moments
        for layer, mean, variance in zip(
            self.layers, *(torch.split(m, self._columns) for m in self._moments), strict=True
        ):
            layer.mean, layer.variance = mean, variance
        # the group that each column belongs to, counted over all layers, and space for the largest σ² of each group
        groups = [layer.columns // layer.groups for layer in self.layers for _ in range(layer.groups)]
        sizes = torch.tensor(groups, device=device)
        self._group = torch.arange(len(sizes), device=device).repeat_interleave(sizes)
        self._largest = self._moments.new_empty(len(sizes))
        self._settings: list[float] = []  # ε₂ and the layers' q²
        # the column of each entry of the rows of all weights, an input channel's; None if every entry is a column
        columns = torch.tensor(self._columns, device=device)
        repeats = torch.tensor([layer.repeats for layer in self.layers], device=device).repeat_interleave(columns)
        entries = torch.arange(len(repeats), device=device).repeat_interleave(repeats)
        self._column = entries if len(entries) > len(repeats) else None
        # μ and 1/(q² σ̃²) of each entry, and of each layer
        self._scales = self._moments.new_empty(len(entries))
        self._means = self._moments[0] if self._column is None else torch.empty_like(self._scales)
        shapes = [(layer.groups, 1, layer.fan_in) for layer in self.layers]
        lengths = [groups * fan_in for groups, _, fan_in in shapes]
        means, scales = torch.split(self._means, lengths), torch.split(self._scales, lengths)
        self._views = [(m.view(shape), s.view(shape)) for m, s, shape in zip(means, scales, shapes, strict=True)]

    def precondition(self, batches: Sequence[InputStatistics | None], rho: float, eps1: float, eps2: float) -> None:
        """All steps, for the layers that have a batch; the others keep their statistics and their gradients."""
        if all(batch is None for batch in batches):
            return
        self._update(batches, rho)
        self._rescale(eps1, eps2)
        for layer, batch, (mean, scale) in zip(self.layers, batches, self._views, strict=True):
            if batch is not None:
                layer.precondition_gradients(mean, scale)

    def _update(self, batches: Sequence[InputStatistics | None], rho: float) -> None:
        """Steps 1 and 2: μ ← ρμ + (1−ρ)μ_H and σ² likewise."""
        like = next(batch.mean for batch in batches if batch is not None)
        if like.device != self._moments.device or like.dtype != self._moments.dtype:  # the model has moved
            self._place(self._moments.to(torch.promote_types(like.dtype, self._moments.dtype)), like.device)
        paired = list(zip(self.layers, batches, strict=True))
        means = [layer.mean if batch is None else batch.mean for layer, batch in paired]
        variances = [_variance(layer, batch) for layer, batch in paired]
        batch_moments = torch.cat(means + variances).view(2, -1).to(self._moments.dtype)
        if None in batches:
            used = self._of_columns([float(batch is not None) for batch in batches])
            self._moments.lerp_(batch_moments, used.mul_(1 - rho))
        else:
            self._moments.lerp_(batch_moments, 1 - rho)

    def _rescale(self, eps1: float, eps2: float) -> None:
        """Step 3: 1/(q² σ̃²) with σ̃² = σ² + ε₁ max σ² + ε₂, and μ, of every entry of the weights' rows."""
        settings = [eps2, *(layer.q2 for layer in self.layers)]
        if settings != self._settings:  # batches of equal size share these vectors
            self._settings, self._q2 = settings, self._of_columns(settings[1:])
            self._q2_eps2 = self._q2 * eps2
        largest = self._largest.zero_().scatter_reduce_(0, self._group, self._variance, "amax")
        damped = torch.add(self._variance, largest.index_select(0, self._group), alpha=eps1)
        scale = torch.addcmul(self._q2_eps2, damped, self._q2, out=self._scales if self._column is None else damped)
        scale.reciprocal_()
        if self._column is not None:
            torch.index_select(self._mean, 0, self._column, out=self._means)
            torch.index_select(scale, 0, self._column, out=self._scales)

    def _of_columns(self, values: Sequence[float]) -> Tensor:
        """One value per layer, given to each of its columns."""
        columns = torch.tensor(self._columns, device="cpu")
        vector = torch.tensor(values, dtype=self._moments.dtype, device="cpu").repeat_interleave(columns)
        return vector.to(self._moments.device)


def _variance(layer: PreconditionedLayer, batch: InputStatistics | None) -> Tensor:
    """σ_H². For a single row, the squared distance from the running mean before this step."""
    if batch is None:
        return layer.variance
    return (batch.mean - layer.mean) ** 2 if batch.rows == 1 else batch.variance
