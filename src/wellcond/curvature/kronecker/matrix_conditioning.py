"""Magnitude, condition numbers and rank of one positive semi-definite matrix, or of a Kronecker product of two."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wellcond.curvature.kronecker.rows import LIMIT
from wellcond.curvature.kronecker.second_moment import SecondMoment, Side
from wellcond.curvature.spectra.condition import condition_numbers_and_ranks
from wellcond.curvature.spectra.eigenvalues import eigenvalues
from wellcond.errors import TooLarge
from wellcond.results import Row, number
from wellcond.results.quantities import MatrixQuantities

MOST_SORTED = 2**20
"""Most products that are all formed and sorted; among more, the one at a place is found by bisection."""

MOST_MATVECS = 50
"""Most products for the largest eigenvalue of a matrix whose sides are both large."""


@dataclass(frozen=True)
class Conditioning:
    """The spectrum of one positive semi-definite matrix, in the numbers that matter.

    Attributes:
        factors: Eigenvalues, (groups, d); for a Kronecker product, those of its two factors; empty if only λ_max is
            known.
        dimension: Number of eigenvalues.
        lambda_max: Largest eigenvalue, the magnitude.
        kappa: κ_p by p; nan if it is not available.
        rank: Number of eigenvalues above rounding; None if it is not available.
        trace: Sum of the eigenvalues.
        side: Whether they come from the products of `"features"` or, if there are fewer, of `"rows"`.
        note: How λ_max was estimated if the full spectrum was not computed.
    """

    factors: tuple[Tensor, ...]
    dimension: int
    lambda_max: float
    kappa: dict[float, float]
    rank: int | None
    trace: float
    side: Side = "features"
    note: str = ""

    @property
    def values(self) -> Tensor:
        """All eigenvalues, ascending.

        Raises:
            TooLarge: There are too many to compute, or too many products of a Kronecker product to list.
        """
        if not self.factors:
            raise TooLarge(f"{self.note}; the other {self.dimension - 1:,} eigenvalues are not known.")
        if 8 * self.dimension > LIMIT:
            raise TooLarge(f"a Kronecker product of {self.dimension:,} eigenvalues is too long to list; see `factors`.")
        products = self.factors[0]
        for factor in self.factors[1:]:
            products = (products.unsqueeze(-1) * factor.unsqueeze(-2)).flatten(1)
        return products.flatten().sort().values

    @classmethod
    def of(cls, values: Tensor, p: Sequence[float], rounding: torch.dtype | None = None) -> Conditioning:
        """The conditioning of a matrix with given eigenvalues.

        Args:
            values: Eigenvalues, in any order.
            p: Shares for which κ_p is computed.
            rounding: Dtype whose rounding relative to the largest eigenvalue counts as zero; None for that of `values`.
        """
        return cls._of_several(values.unsqueeze(0), p, rounding or values.dtype, ["features"])[0]

    @classmethod
    def of_moments(
        cls, moments: Sequence[SecondMoment], p: Sequence[float], rounding: torch.dtype
    ) -> list[tuple[Conditioning | None, Tensor | None]]:
        """The conditioning of every moment, and its eigenvalues, (groups, d); None if not available.

        Args:
            moments: Moments; those of one size are worked on together.
            p: Shares for which κ_p is computed.
            rounding: Dtype whose rounding relative to the largest eigenvalue counts as zero.
        """
        entries: dict[int, tuple[Conditioning | None, Tensor | None]] = {}
        sizes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, moment in enumerate(moments):
            if moment.is_known:
                sizes[moment.groups, moment.dimension].append(i)
            else:
                entries[i] = cls._of_rows(moment, p) if moment.has_rows else None, None
        for (_, dimension), places in sizes.items():
            values = torch.stack([_padded(moments[i].eigenvalues(), dimension) for i in places])
            several = cls._of_several(values.flatten(1), p, rounding, [moments[i].side for i in places])
            entries |= dict(zip(places, zip(several, values, strict=True), strict=True))
        return [entries[i] for i in range(len(moments))]

    @classmethod
    def _of_several(
        cls, values: Tensor, p: Sequence[float], rounding: torch.dtype, sides: Sequence[Side]
    ) -> list[Conditioning]:
        """The conditioning of several matrices with eigenvalues (matrices, d)."""
        values = values.sort().values
        largest = values[:, -1:]
        # the eigenvalues of a vanished gradient have no digits left in float32, but their ratios have all of them
        relative = (values / torch.where(largest > 0, largest, 1.0)).to(rounding)
        numbers = condition_numbers_and_ranks(relative, p)
        traces = values.double().sum(1).tolist()
        return [
            cls((own.unsqueeze(0),), len(own), top, kappa, rank, trace, side)
            for own, top, (kappa, rank), trace, side in zip(
                values, largest.flatten().tolist(), numbers, traces, sides, strict=True
            )
        ]

    @classmethod
    def _of_rows(cls, moment: SecondMoment, p: Sequence[float]) -> Conditioning:
        """λ_max alone, by Lanczos, for a matrix with too many rows and features."""
        operator, unit, rows = moment.rows_as_operator()
        top = eigenvalues(operator, max_matvecs=MOST_MATVECS)
        largest, error = (unit * float(end[-1]) for end in (top.values, top.errors))
        unknown = dict.fromkeys(p, math.nan)
        note = f"λ_max {number(largest)} ± {error:.1e} by Lanczos on {rows}"
        return cls((), moment.groups * moment.dimension, largest, unknown, None, moment.trace, "rows", note)

    @classmethod
    def of_product(cls, x: Tensor, g: Tensor, ranks: tuple[int, int], p: Sequence[float]) -> Conditioning:
        """The conditioning of a Kronecker product in every group: an eigenvalue is zero if that of a factor is.

        Args:
            x: Eigenvalues of the first factors, (groups, d).
            g: Eigenvalues of the second factors, (groups, e).
            ranks: Numbers of eigenvalues of each that are above rounding.
            p: Shares for which κ_p is computed.
        """
        dimension = x.numel() * g.shape[1]
        trace = float((x.sum(-1) * g.sum(-1)).sum())
        x_above, g_above = (_above_rounding(values, rank) for values, rank in zip((x, g), ranks, strict=True))
        rank = int(((x_above > 0).sum(-1) * (g_above > 0).sum(-1)).sum())
        places = {share: max(1, math.ceil(share * dimension - 1e-9)) for share in p}
        if rank == 0:
            return cls((x, g), dimension, 0.0, dict.fromkeys(p, math.inf), 0, trace)
        largest = largest_product(x_above, g_above, 1)
        kappa = {
            share: largest / largest_product(x_above, g_above, place) if place <= rank else math.inf
            for share, place in places.items()
        }
        return cls((x, g), dimension, largest, kappa, rank, trace)

    def rows(self, layer: str, names: MatrixQuantities, step: int | None = None) -> list[Row]:
        """The numbers under the names of one matrix; κ_p of shares without a name are only in `kappa`."""
        values = {
            names.lambda_max: self.lambda_max,
            names.rank: math.nan if self.rank is None else float(self.rank),
            names.dimension: float(self.dimension),
            names.trace: self.trace,
        }
        values |= {names.kappa[p]: kappa for p, kappa in self.kappa.items() if p in names.kappa}
        values = {quantity: value for quantity, value in values.items() if not math.isnan(value)}
        return [Row(step, layer, quantity, value, "") for quantity, value in values.items()]


def largest_product(x: Tensor, g: Tensor, place: int) -> float:
    """The `place`-th largest of all products x_ci · g_co of positive numbers of the same group c, zeros left out.

    Args:
        x: (groups, d), not negative.
        g: (groups, e), not negative.
        place: Rank of the product, from 1 to the number of non-zero products.

    Example:
        >>> largest_product(torch.tensor([[3.0, 2.0]]), torch.tensor([[5.0, 0.0, 1.0]]), 3)
        3.0
    """
    x, g = (values.double().sort(-1).values for values in (x, g))
    # zeros come first, and a column that is zero in all groups is dropped
    x, g = (values[:, int((values > 0).sum(-1).max()) * -1 :] for values in (x, g))
    if x.numel() * g.shape[1] <= MOST_SORTED:
        return float((x.unsqueeze(-1) * g.unsqueeze(-2)).flatten().sort(descending=True).values[place - 1])

    def count_from(bound: float) -> int:
        """Number of products of at least this size."""
        below = torch.searchsorted(g, bound / x)
        return int((g.shape[1] - below).sum())

    largest = float((x[:, -1] * g[:, -1]).max())
    smallest = float(x[x > 0].min()) * float(g[g > 0].min())
    low, high = math.log(smallest), math.log(largest)  # at least `place` products are above the one, too few the other
    while high - low > 1e-14 * max(1.0, abs(low)):
        middle = (low + high) / 2
        low, high = (middle, high) if count_from(math.exp(middle)) >= place else (low, middle)
    return math.exp(low)


def _padded(values: Tensor, dimension: int) -> Tensor:
    """(groups, d), with zeros before the non-zero eigenvalues."""
    return values if values.shape[1] == dimension else F.pad(values, (dimension - values.shape[1], 0))


def _above_rounding(values: Tensor, rank: int) -> Tensor:
    """The values with all but the `rank` largest set to zero."""
    ascending = values.flatten().sort().values
    return values * (values >= ascending[-rank]) if rank else torch.zeros_like(values)
