"""The spectrum of a local Hessian whose weights are random: the Marchenko-Pastur law (zhang2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from wellcond.curvature.spectra.exact import Spectrum
from wellcond.results import Result, Row
from wellcond.results.quantities import MASS_AT_ZERO, MEAN, SUPPORT_HIGH, SUPPORT_LOW
from wellcond.results.rendering import rendered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = TypeVar("Value", float, Tensor)
"""A number or a tensor; the result has the same type, in float64."""
Eigenvalues = Spectrum | Tensor | Sequence[float]

BISECTIONS = 100
"""Enough to halve [0, π] down to neighboring float64 numbers wherever the answer is above 1e-14."""
SERIES = 100
"""Terms of Kolmogorov's series; the remainder is below 1e-80 wherever it is evaluated."""


@dataclass(frozen=True)
class MarchenkoPastur(Result):
    """The limiting law of the eigenvalues of WᵀW/n, W of n rows and n/c columns, independent entries of variance σ².

    A share `mass_at_zero` of the eigenvalues is 0; the others have a density on `support` = [c₋, c₊].

    Attributes:
        c: Rows over columns.
        sigma: Standard deviation of the entries.
    """

    c: float
    sigma: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.c < math.inf:
            raise ValueError(f"c is {self.c}; it is the ratio of rows to columns, above 0 and finite.")
        if not 0 < self.sigma < math.inf:
            raise ValueError(f"sigma is {self.sigma}; it is a standard deviation, above 0 and finite.")

    @classmethod
    def of_unit_rows(cls, c: float) -> MarchenkoPastur:
        """The law of Σ_i w_i w_iᵀ/‖w_i‖² (zhang2018, eq. 19): WᵀW after BatchNorm, if its inputs are white.

        Rows of length 1 have entries of variance 1/columns, so WᵀW has the law with σ² = c: support (1 ∓ √c)², mean c.

        Example:
            >>> MarchenkoPastur.of_unit_rows(4.0).support
            (1.0, 9.0)
        """
        return cls(c).scaled(c)

    def scaled(self, factor: float) -> MarchenkoPastur:
        """The law of the eigenvalues times `factor`: that of WᵀW itself is `.scaled(n)`."""
        if not 0 < factor < math.inf:
            raise ValueError(f"factor is {factor}; pass a number above 0 and finite.")
        return MarchenkoPastur(self.c, self.sigma * math.sqrt(factor))

    @property
    def support(self) -> tuple[float, float]:
        """c₋ and c₊ = σ²(1 ∓ √c)²/c, the ends of the interval of the eigenvalues other than 0."""
        scale, root = self.sigma**2 / self.c, math.sqrt(self.c)
        return scale * (1 - root) ** 2, scale * (1 + root) ** 2

    @property
    def mass_at_zero(self) -> float:
        """The share of eigenvalues that are 0 because W has fewer rows than columns: max(0, 1 − c)."""
        return max(0.0, 1 - self.c)

    @property
    def mean(self) -> float:
        """σ²."""
        return self.sigma**2

    def moment(self, order: int) -> float:
        """The mean of λ^k over all eigenvalues: σ^2k Σ_r C(k, r) C(k−1, r) c^−r / (r + 1), r < k (Narayana)."""
        if order < 0:
            raise ValueError(f"order is {order}; a moment has an order of 0 or more.")
        if order == 0:
            return 1.0
        terms = (math.comb(order, r) * math.comb(order - 1, r) / (r + 1) * self.c**-r for r in range(order))
        return self.sigma ** (2 * order) * math.fsum(terms)

    def density(self, x: Value) -> Value:
        """c √((c₊ − x)(x − c₋)) / (2πσ²x) on the support, 0 outside; its integral is 1 − `mass_at_zero`."""
        low, high = self.support
        t = _float64(x)
        inside = self.c / (2 * math.pi * self.sigma**2) * ((high - t) / t).sqrt() * ((t - low) / t).sqrt()
        density = torch.where((t <= low) | (t >= high), 0.0, inside)
        return _as_type_of(x, torch.where((t == 0) & (self.c == 1), math.inf, density))  # it ends in 1/√x there

    def cdf(self, x: Value) -> Value:
        """The share of eigenvalues up to x, including zeros; a closed form, exact to rounding.

        With x = c₋ + (c₊ − c₋) sin²(θ/2), θ from 0 to π, and ρ = max(√c, 1/√c),

            F = max(0, 1 − c) + (1/π) [ min(1, c) θ + √c sin θ − |1 − c| arctan(sin θ / (ρ − cos θ)) ].
        """
        low, high = self.support
        t = _float64(x)
        theta = 2 * torch.atan2((t - low).clamp(min=0).sqrt(), (high - t).clamp(min=0).sqrt())
        return _as_type_of(x, torch.where(t < 0, 0.0, self._share_below(theta)))

    def quantile(self, q: Value) -> Value:
        """The eigenvalue below which a share q of them lies: the inverse of `cdf`, by bisection in θ."""
        low, high = self.support
        t = _float64(q)
        if not bool(((t >= 0) & (t <= 1)).all()):
            raise ValueError(f"q is {q}; it is a share of the eigenvalues, from 0 to 1.")
        below, above = torch.zeros_like(t), torch.full_like(t, math.pi)
        for _ in range(BISECTIONS):
            middle = (below + above) / 2
            is_below = self._share_below(middle) < t
            below, above = torch.where(is_below, middle, below), torch.where(is_below, above, middle)
        eigenvalue = torch.where(t < 1, low + (high - low) * (above / 2).sin() ** 2, high)
        return _as_type_of(q, torch.where(t <= self.mass_at_zero, low if self.c >= 1 else 0.0, eigenvalue))

    def distance(self, values: Eigenvalues) -> float:
        """Kolmogorov's distance sup |F_n − F| between a measured spectrum and the law.

        Args:
            values: All eigenvalues, in the dtype in which they were computed: those that are 0 to rounding count as 0
                (`zeros_of_rounding`).

        Returns:
            The distance, to be compared with `critical_value(len(values))`.

        Raises:
            ValueError: The values are not a vector of finite numbers.

        Example:
            >>> law = marchenko_pastur(2.0)
            >>> round(law.distance([law.quantile(0.3)]), 9)      # steps from 0 to 1 where the law is at 0.3
            0.7
        """
        measured = zeros_of_rounding(values)
        # the supremum lies next to a step of F_n; the law itself may jump at 0
        after = self.cdf(measured)
        before = torch.where(measured <= 0, 0.0, after)
        n = len(measured)
        steps_before, steps = (torch.searchsorted(measured, measured, right=r).double() / n for r in (False, True))
        return float(torch.maximum((steps - after).abs(), (steps_before - before).abs()).max())

    @staticmethod
    def critical_value(n: int, level: float = 0.01) -> float:
        """The distance that n independent draws exceed with probability `level`.

        It is x/√n with 2 Σ_k (−1)^{k−1} e^{−2k²x²} = level, k from 1: the limit, slightly above that of any finite n.
        Eigenvalues repel each other, so a spectrum that has the law lies far below this value. One above it does not
        have the law; one below it may still have another.

        Args:
            n: The number of draws.
            level: The probability.

        Raises:
            ValueError: n is below 1, or the level is not between 0 and 1.

        Example:
            >>> round(MarchenkoPastur.critical_value(100), 5)
            0.16276
        """
        if n < 1:
            raise ValueError(f"n is {n}; a spectrum has at least one eigenvalue.")
        if not 0 < level < 1:
            raise ValueError(f"level is {level}; it is a probability, above 0 and below 1.")
        below, above = 0.1, 40.0  # where all but 1e-50 and less than 1e-1000 of the probability is exceeded
        for _ in range(BISECTIONS):
            x = (below + above) / 2
            exceeded = 2 * math.fsum((-1) ** (k - 1) * math.exp(-2 * k * k * x * x) for k in range(1, SERIES))
            below, above = (x, above) if exceeded > level else (below, x)
        return above / math.sqrt(n)

    def rows(self, step: int | None = None) -> list[Row]:
        low, high = self.support
        numbers = {SUPPORT_LOW: low, SUPPORT_HIGH: high, MASS_AT_ZERO: self.mass_at_zero, MEAN: self.mean}
        return [Row(step, "", quantity, value, "") for quantity, value in numbers.items()]

    def figure(self, values: Eigenvalues | None = None) -> Figure:
        """The density of the law, over the histogram of a measured spectrum if there is one.

        Args:
            values: All eigenvalues, as for `distance`.
        """
        figure: Figure = rendered("figure", self, values=values)
        return figure

    def __str__(self) -> str:
        low, high = self.support
        zeros = f"{self.mass_at_zero:.3g} of the eigenvalues at 0, the others" if self.mass_at_zero else "eigenvalues"
        return f"Marchenko-Pastur law, c = {self.c:.4g}, σ = {self.sigma:.4g}: {zeros} from {low:.4g} to {high:.4g}"

    def _share_below(self, theta: Tensor) -> Tensor:
        root = math.sqrt(self.c)
        # ρ − cos θ without cancellation; at c = 1 and θ = 0 it is 0, and the angle is multiplied by 0
        width = max(root, 1 / root) - 1 + 2 * (theta / 2).sin() ** 2
        bulk = min(1.0, self.c) * theta + root * theta.sin() - abs(1 - self.c) * torch.atan2(theta.sin(), width)
        return (self.mass_at_zero + bulk / math.pi).clamp(max=1)


def marchenko_pastur(c: float, sigma: float = 1.0) -> MarchenkoPastur:
    """The limiting law of the eigenvalues of WᵀW/n_b for random weights W, n_b × n_{b−1} (zhang2018, eqs. 10, 11).

    W has independent entries of mean 0 and variance σ², and c = n_b/n_{b−1}; the sizes go to infinity. Then

        dν = max(0, 1 − c) δ₀ + c √((c₊ − λ)(λ − c₋)) / (2πσ²λ) dλ,    c± = σ²(1 ± √c)²/c.

    Three matrices have three laws:

    - WᵀW/n_b: `marchenko_pastur(c, sigma)`.
    - H_z = WᵀW of a linear layer: `marchenko_pastur(c, sigma).scaled(n_b)`. The source prints the law above for this
      matrix, which is n_b times too small.
    - H_z of a linear layer and BatchNorm with white inputs: `MarchenkoPastur.of_unit_rows(c)`, whatever σ is.

    Args:
        c: Rows over columns.
        sigma: Standard deviation of the entries.

    Returns:
        The law.

    Raises:
        ValueError: c or sigma is not above 0 and finite.

    Example:
        >>> law = marchenko_pastur(0.25, sigma=2.0)
        >>> law.support, law.mass_at_zero, law.mean
        ((4.0, 36.0), 0.75, 4.0)
        >>> law.cdf(0.0), law.cdf(36.0)
        (0.75, 1.0)
        >>> law.quantile(torch.tensor([0.5, 0.75, 1.0])).tolist()
        [0.0, 0.0, 36.0]
    """
    return MarchenkoPastur(float(c), float(sigma))


def zeros_of_rounding(values: Eigenvalues) -> Tensor:
    """The eigenvalues, ascending in float64, with exactly 0 for those that are 0 to rounding.

    These are all of size up to n·ε·max|λ|, with ε of the dtype of `values`: the level of `numerical_rank`.
    """
    measured = values.values if isinstance(values, Spectrum) else values
    vector = measured.detach() if isinstance(measured, Tensor) else _float64_vector(measured)
    if vector.dim() != 1 or not len(vector) or not bool(torch.isfinite(vector).all()):
        raise ValueError(f"values must be a vector of finite eigenvalues, not {tuple(vector.shape)} with {vector}.")
    noise = len(vector) * torch.finfo(vector.dtype).eps * vector.abs().max()
    return torch.where(vector.abs() <= noise, 0.0, vector).double().sort().values


def _float64_vector(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _float64(value: Value) -> Tensor:
    return value.double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")


def _as_type_of(argument: Value, result: Tensor) -> Value:
    return result if isinstance(argument, Tensor) else float(result)
