"""Moments and histograms of units, gathered from a stream of their outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

WIDENED = 0.1
"""Share by which the range of the first outputs is widened at both ends, for later ones."""

BLOCK = 2**17
"""Values that a CPU works on at once: they and their intermediate results fit its cache."""


@dataclass(frozen=True)
class Histogram:
    """Number of values in each bin; NaN is not counted.

    Attributes:
        counts: Values in each bin, (bins,).
        edges: Edges of the bins, (bins + 1,); the last bin includes its upper edge, as in NumPy.
        below: Number of values below all bins, including infinite ones.
        above: Number of values above all bins.
    """

    counts: Tensor
    edges: Tensor
    below: int
    above: int

    @staticmethod
    def of(counts: Tensor, edges: Tensor) -> Histogram:
        """The histogram from counts (1 + bins + 1,), including those below and above."""
        return Histogram(counts[1:-1], edges, int(counts[0]), int(counts[-1]))

    @property
    def density(self) -> Tensor:
        """Density (bins,), which integrates to the share of the values inside the bins."""
        total = max(int(self.counts.sum()) + self.below + self.above, 1)
        return self.counts / (total * self.edges.diff())


@dataclass(frozen=True)
class LayerActivations:
    """The outputs of one layer, over examples and positions. Tensors are on the CPU.

    Attributes:
        name: Name of the layer.
        mean: Mean of every unit, (units,), float64.
        variance: Variance of every unit, (units,), float64, divided by the number of samples.
        edges: Edges of the bins, (bins + 1,).
        counts: Values below, in and above the bins, (units, 1 + bins + 1).
        samples: Number of values per unit.
        not_finite: Number of NaN or infinite values of all units.
    """

    name: str
    mean: Tensor
    variance: Tensor
    edges: Tensor
    counts: Tensor
    samples: int
    not_finite: int

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.mean)

    @property
    def histogram(self) -> Histogram:
        """The histogram of all units together."""
        return Histogram.of(self.counts.sum(0), self.edges)

    def unit_histogram(self, unit: int) -> Histogram:
        """The histogram of one unit, over the same edges."""
        if not 0 <= unit < self.units:
            raise ValueError(f"unit is {unit}; {self.name!r} has units 0 to {self.units - 1}.")
        return Histogram.of(self.counts[unit], self.edges)


class UnitStatistics:
    """Mean, variance and histogram of every unit, in double precision, without storing outputs.

    Moments are merged as in Chan, Golub and LeVeque, which never subtracts large sums.

    Args:
        bins: Number of bins.
        edges: Edges (bins + 1,), at equal distances; None chooses them by the first outputs.

    Attributes:
        samples: Number of values per unit.
        not_finite: Number of NaN or infinite values of all units.
        mean: Mean of every unit, (units,).
        counts: Values below, in and above the bins, (units, 1 + bins + 1).

    Example:
        >>> statistics = UnitStatistics(bins=2, edges=torch.tensor([0.0, 1.0, 2.0]))
        >>> statistics.add(torch.tensor([[[0.5, 2.0]]]))  # one unit, two values
        >>> statistics.add(torch.tensor([[[3.5]]]))
        >>> statistics.mean, statistics.variance, statistics.counts
        (tensor([2.], dtype=torch.float64), tensor([1.5000], dtype=torch.float64), tensor([[0, 1, 1, 1]]))
    """

    def __init__(self, bins: int, edges: Tensor | None = None) -> None:
        self.bins = bins
        self.edges = edges
        self.samples = self.not_finite = 0
        self.mean = self._squares = torch.empty(0, device="cpu")
        self.counts = torch.empty(0, dtype=torch.long, device="cpu")

    @property
    def variance(self) -> Tensor:
        """Variance of every unit, (units,), divided by the number of values."""
        return self._squares / self.samples

    def add(self, values: Tensor) -> None:
        """Count more outputs.

        Args:
            values: Outputs, (outer, units, inner); a unit's values are those at all outer and inner places.
        """
        values = values.detach()
        if not values.numel():
            return
        if self.edges is None:
            self.edges = _edges_around(values, self.bins)
        self.edges = self.edges.to(values.device, torch.float64)
        at_once = BLOCK // values[0].numel() if values.device.type == "cpu" else len(values)
        for block in torch.split(values, max(at_once, 1)):
            self._add(block.double())

    def of_layer(self, name: str) -> LayerActivations:
        """The statistics so far, as those of a layer with this name."""
        assert self.edges is not None
        edges, counts = self.edges.cpu(), self.counts.cpu()
        moments = self.mean.cpu(), self.variance.cpu()
        return LayerActivations(name, *moments, edges, counts, self.samples, self.not_finite)

    def _add(self, values: Tensor) -> None:
        samples = values.shape[0] * values.shape[2]
        mean = values.mean((0, 2))
        squares = (values - mean[:, None]).square_().sum((0, 2))
        is_finite = bool(torch.isfinite(mean).all())  # a value that is not would show in it
        if not is_finite:
            self.not_finite += int((~torch.isfinite(values)).sum())
        assert self.edges is not None
        counts = _counted(values, self.edges, is_finite)
        if not self.samples:
            self.mean, self._squares, self.counts = mean, squares, counts
        else:
            total = self.samples + samples
            delta = mean - self.mean
            self.mean = self.mean + delta * (samples / total)
            self._squares = self._squares + squares + delta.square() * (self.samples * samples / total)
            self.counts = self.counts + counts
        self.samples += samples


def _counted(values: Tensor, edges: Tensor, is_finite: bool) -> Tensor:
    """Counts (units, 1 + bins + 1). The bins have equal widths, so a value's bin is computed, not searched for."""
    units, bins = values.shape[1], len(edges) - 1
    # the upper end of every place; the last bin includes it
    end = torch.nextafter(edges[-1:], edges.new_tensor(math.inf))
    upper = torch.cat([edges[:-1], end, edges.new_tensor([math.nan])])
    # a quarter of a bin too low: the right place or the one below it, however the edges were rounded
    place = (values - edges[0]).mul_(bins / float(edges[-1] - edges[0])).add_(0.75).floor_().clamp_(0, bins + 1)
    if not is_finite:
        place.nan_to_num_(0.0)
    place = place.int()
    place += values >= upper.index_select(0, place.flatten()).view_as(values)
    place += torch.arange(0, units * (bins + 2), bins + 2, device=values.device, dtype=place.dtype)[:, None]
    known = place.flatten() if is_finite else place[~values.isnan()]
    return torch.bincount(known, minlength=units * (bins + 2)).reshape(units, bins + 2)


def _edges_around(values: Tensor, bins: int) -> Tensor:
    low, high = map(float, values.aminmax())
    if not math.isfinite(high - low):
        known = values[values.isfinite()]
        low, high = map(float, known.aminmax()) if known.numel() else (0.0, 0.0)
    margin = WIDENED * (high - low) or max(0.5, 1e-6 * abs(low))
    return torch.linspace(low - margin, high + margin, bins + 1, dtype=torch.float64, device="cpu")
