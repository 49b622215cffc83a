"""Moments and histograms of units, gathered from a stream of their outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

WIDENED = 0.1
"""The range of the first outputs is widened by this share of itself at both ends, for those still to come."""

BLOCK = 2**17
"""Values that are worked on at once by a CPU: they and what is made of them fit its cache."""


@dataclass(frozen=True)
class Histogram:
    """How many values lie in each bin; NaN is counted nowhere.

    Attributes:
        counts: (bins,).
        edges: (bins + 1,); the last bin includes its upper edge, as in NumPy.
        below: How many values lie below all bins, infinite ones included.
        above: How many lie above them.
    """

    counts: Tensor
    edges: Tensor
    below: int
    above: int

    @staticmethod
    def of(counts: Tensor, edges: Tensor) -> Histogram:
        """From counts of shape (1 + bins + 1,), with what lies below and above."""
        return Histogram(counts[1:-1], edges, int(counts[0]), int(counts[-1]))

    @property
    def density(self) -> Tensor:
        """(bins,), which integrates to the share of the values that lie inside."""
        total = max(int(self.counts.sum()) + self.below + self.above, 1)
        return self.counts / (total * self.edges.diff())


@dataclass(frozen=True)
class LayerActivations:
    """The outputs of one layer, over examples and positions. Tensors are on the CPU.

    Attributes:
        name: The layer's name.
        mean: (units,), float64.
        variance: (units,), float64, divided by the number of samples.
        edges: (bins + 1,).
        counts: (units, 1 + bins + 1), the values below, in and above the bins.
        samples: Values per unit.
        not_finite: How many values of all units are NaN or infinite.
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
        """How many units there are."""
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
    """Mean, variance and histogram of every unit, in double precision, without keeping any output.

    Moments are merged as in Chan, Golub and LeVeque: no difference of large sums is ever taken.

    Args:
        bins: How many.
        edges: (bins + 1,), at equal distances; None places them by the first outputs.

    Attributes:
        samples: Values per unit.
        not_finite: How many values of all units are NaN or infinite.
        mean: (units,).
        counts: (units, 1 + bins + 1), the values below, in and above the bins.

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
        """(units,), about the unit's mean and divided by the number of values."""
        return self._squares / self.samples

    def add(self, values: Tensor) -> None:
        """Count more outputs.

        Args:
            values: (outer, units, inner), where a unit's values are those of all outer and inner places.
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
        """What has been gathered, as the outputs of a layer of this name."""
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
    """(units, 1 + bins + 1). The bins have equal widths, so a value's bin is computed and not searched for."""
    units, bins = values.shape[1], len(edges) - 1
    # the upper end of every place; the last bin holds its own
    end = torch.nextafter(edges[-1:], edges.new_tensor(math.inf))
    upper = torch.cat([edges[:-1], end, edges.new_tensor([math.nan])])
    # a quarter of a bin too low: the right place, or the one below it, whatever rounding has done to the edges
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
