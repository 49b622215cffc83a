"""Moments and histograms of units, gathered from a stream of their outputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

WIDENED = 0.1
"""The range of the first outputs is widened by this share of itself at both ends, for those still to come."""


@dataclass(frozen=True)
class Histogram:
    """counts: (bins,). edges: (bins + 1,), of which the last bin includes its upper one, as in NumPy.

    below, above: how many values lie outside, infinite ones included; NaN is counted nowhere.
    """

    counts: Tensor
    edges: Tensor
    below: int
    above: int

    @staticmethod
    def of(counts: Tensor, edges: Tensor) -> Histogram:
        """counts: (1 + bins + 1,), with what lies below and above."""
        return Histogram(counts[1:-1], edges, int(counts[0]), int(counts[-1]))

    @property
    def density(self) -> Tensor:
        """(bins,), which integrates to the share of the values that lie inside."""
        total = max(int(self.counts.sum()) + self.below + self.above, 1)
        return self.counts / (total * self.edges.diff())


class UnitStatistics:
    """Mean, variance and histogram of every unit, in double precision, without keeping any output.

    Moments are merged as in Chan, Golub and LeVeque: no difference of large sums is ever taken.

    edges: (bins + 1,); None places `bins` of them by the first outputs.

    >>> statistics = UnitStatistics(bins=2, edges=torch.tensor([0.0, 1.0, 2.0]))
    >>> statistics.add(torch.tensor([[0.5, 2.0]]))  # one unit, two values
    >>> statistics.add(torch.tensor([[3.5]]))
    >>> statistics.mean, statistics.variance, statistics.counts
    (tensor([2.], dtype=torch.float64), tensor([1.5000], dtype=torch.float64), tensor([[0, 1, 1, 1]]))
    """

    def __init__(self, bins: int, edges: Tensor | None = None) -> None:
        self.bins = bins
        self.edges = edges
        self.samples = 0
        """Values a unit."""
        self.not_finite = 0
        """Values, of all units, that are NaN or infinite."""
        self.mean = self._squares = torch.empty(0)
        self.counts = torch.empty(0, dtype=torch.long)
        """(units, 1 + bins + 1): values below, in and above the bins."""

    @property
    def variance(self) -> Tensor:
        """(units,), about the unit's mean and divided by the number of values."""
        return self._squares / self.samples

    def add(self, values: Tensor) -> None:
        """values: (units, samples)."""
        values = values.detach().double().contiguous()
        samples = values.shape[1]
        if not samples:
            return
        mean = values.mean(1)
        squares = (values - mean[:, None]).square_().sum(1)
        counts = self._counted(values)
        if not self.samples:
            self.mean, self._squares, self.counts = mean, squares, counts
        else:
            total = self.samples + samples
            delta = mean - self.mean
            self.mean = self.mean + delta * (samples / total)
            self._squares = self._squares + squares + delta.square() * (self.samples * samples / total)
            self.counts = self.counts + counts
        self.samples += samples
        self.not_finite += int((~torch.isfinite(values)).sum())

    def _counted(self, values: Tensor) -> Tensor:
        if self.edges is None:
            self.edges = _edges_around(values, self.bins)
        edges = self.edges = self.edges.to(values)
        units, places = values.shape[0], len(edges) + 1
        place = torch.bucketize(values, edges, right=True)
        place -= (values == edges[-1]).to(place.dtype)
        place += places * torch.arange(units, device=values.device)[:, None]
        place = place[~values.isnan()]
        return torch.bincount(place, minlength=units * places).reshape(units, places)


def _edges_around(values: Tensor, bins: int) -> Tensor:
    known = values[values.isfinite()]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    margin = WIDENED * (high - low) or 0.5
    return torch.linspace(low - margin, high + margin, bins + 1, dtype=torch.float64)
