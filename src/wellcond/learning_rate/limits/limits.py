"""Largest stable learning rates: the heavy-ball formula, and limits measured with their errors."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from wellcond.results import Cost, Result, Row, number, quantities, text_table


@overload
def heavy_ball_limit(lambda_max: float, momentum: float) -> float: ...
@overload
def heavy_ball_limit(lambda_max: Tensor, momentum: float) -> Tensor: ...
def heavy_ball_limit(lambda_max: float | Tensor, momentum: float) -> float | Tensor:
    """The largest learning rate at which gradient descent with momentum is stable on a quadratic.

        η = 2(1+μ) / λ_max

    Args:
        lambda_max: Largest eigenvalue of the Hessian, or a tensor of such values.
        momentum: μ of the heavy ball, v ← μv + g, θ ← θ − ηv.

    Returns:
        The limit, a float or tensor like `lambda_max`; infinity if `lambda_max` is not positive.

    Example:
        >>> heavy_ball_limit(5.0, momentum=0.9), heavy_ball_limit(-1.0, momentum=0.9)
        (0.76, inf)
    """
    if isinstance(lambda_max, Tensor):
        return torch.where(lambda_max <= 0, math.inf, 2 * (1 + momentum) / lambda_max)
    return math.inf if lambda_max <= 0 else 2 * (1 + momentum) / lambda_max


@dataclass(frozen=True)
class RateLimit:
    """A limit numerator / λ_max on a learning rate, and how well λ_max is known.

    Attributes:
        numerator: 2(1+μ) for gradient descent with momentum μ.
        lambda_max: Largest eigenvalue.
        lambda_error: Bound on the distance of `lambda_max` from the true one.
        converged: Whether `lambda_max` has the requested accuracy.
        matvecs: Number of products with the Hessian.

    Example:
        >>> limit = RateLimit(numerator=2.0, lambda_max=5.0, lambda_error=1.0, converged=True, matvecs=3)
        >>> limit.value, limit.low, limit.high
        (0.4, 0.3333333333333333, 0.5)
    """

    numerator: float
    lambda_max: float
    lambda_error: float
    converged: bool
    matvecs: int

    @property
    def value(self) -> float:
        """The limit; infinity if λ_max is not positive, where the quadratic model sets none."""
        return self._over(self.lambda_max)

    @property
    def low(self) -> float:
        """The smallest it can be."""
        return self._over(self.lambda_max + self.lambda_error)

    @property
    def high(self) -> float:
        """The largest it can be; infinity if λ_max might not be positive."""
        return self._over(self.lambda_max - self.lambda_error)

    @property
    def error(self) -> float:
        """Bound on the distance of the truth from `value`, which is larger upwards than downwards."""
        if self.high == math.inf:
            return 0.0 if self.low == math.inf else math.inf
        return self.high - self.value

    def _over(self, curvature: float) -> float:
        return self.numerator / curvature if curvature > 0 else math.inf


@dataclass(frozen=True)
class GroupLimit:
    """The limits of one parameter group.

    Attributes:
        index: Position in the optimizer.
        lr: Current learning rate.
        momentum: μ or β₁.
        parameters: Number of entries of all its parameters.
        proportional: Limit of its lr if the lrs of all groups grow in proportion.
        separate: Limit of its lr if no other group moved; None if it was not measured.
    """

    index: int
    lr: float
    momentum: float
    parameters: int
    proportional: float
    separate: RateLimit | None


@dataclass(frozen=True)
class MaxLearningRate(RateLimit, Result):
    """The largest stable learning rate in the quadratic model of the loss; `float(...)` gives it.

    With several parameter groups it is the limit of the largest lr, while the others stay in proportion. `matvecs` are
    the products with the Hessian of all batches and with blocks of it; those of single batches are in `cost`.

    Attributes:
        matrix: Matrix that λ_max belongs to, in words.
        momentum: μ or β₁ of the group with the largest lr.
        optimizer: Name of the optimizer, or None.
        lr: Largest current lr of the optimizer, or None.
        groups: One entry per parameter group that moves; empty without an optimizer.
        batches: Limits on single batches; empty without `each_batch`.
        batchnorm: Statistics that BatchNorm used.
        cost: Passes over the data and products.
        notes: Remarks on the numbers.
        status: Accuracy of λ_max, in words.
    """

    matrix: str
    momentum: float
    optimizer: str | None
    lr: float | None
    groups: tuple[GroupLimit, ...]
    batches: tuple[RateLimit, ...]
    batchnorm: str
    cost: Cost
    notes: tuple[str, ...]
    status: str = ""

    def __float__(self) -> float:
        return self.value

    @property
    def factor(self) -> float | None:
        """How many times larger all lrs of the optimizer could be; below 1 they are too large."""
        if self.lr is None:
            return None
        return self.value / self.lr if self.lr else math.inf

    @property
    def smallest_of_batches(self) -> float | None:
        """The smallest limit on a single batch."""
        return min(b.value for b in self.batches) if self.batches else None

    @property
    def median_of_batches(self) -> float | None:
        """The median of the limits on single batches."""
        return statistics.median(b.value for b in self.batches) if self.batches else None

    def rows(self, step: int | None = None) -> list[Row]:
        rates = {
            quantities.MAX_LR: self.value,
            quantities.MAX_LR_LOW: self.low,
            quantities.MAX_LR_HIGH: self.high,
            quantities.LR: self.lr,
            quantities.BATCH_MAX_LR_LEAST: self.smallest_of_batches,
            quantities.BATCH_MAX_LR_MEDIAN: self.median_of_batches,
        }
        return [
            *(Row(step, "", quantity, value, "lr") for quantity, value in rates.items() if value is not None),
            Row(step, "", quantities.LAMBDA_MAX, self.lambda_max, ""),
            Row(step, "", quantities.MOMENTUM, self.momentum, ""),
            Row(step, "", quantities.MATVECS, float(self.matvecs), "products"),
            Row(step, "", quantities.COST, self.cost.u, "u"),
        ]

    def __str__(self) -> str:
        averaging = "β₁" if "Adam" in (self.optimizer or "") else "momentum"
        lines = [
            f"largest stable learning rate: {number(self.value)}, between {number(self.low)} and {number(self.high)}",
            f"{number(self.numerator)}/λ_max with {averaging} {self.momentum:g}; λ_max of {self.matrix} is "
            f"{number(self.lambda_max)} ± {self.lambda_error:.1g}",
        ]
        if self.lr and self.factor is not None:
            verdict = "within" if self.factor > 1 else "beyond"
            lines.append(
                f"{self.optimizer} has lr {number(self.lr)}, {verdict} the limit, which is {number(self.factor)} "
                f"times the lr{'' if self.factor > 1 else '; it may still train, as the loss is not quadratic'}"
            )
        if len(self.groups) > 1:
            lines.append(self._table_of_groups())
        if self.smallest_of_batches is not None and self.median_of_batches is not None:
            lines.append(
                f"on single batches ({len(self.batches)}): smallest {number(self.smallest_of_batches)}, "
                f"median {number(self.median_of_batches)}"
            )
        lines.append(f"batchnorm={self.batchnorm!r}; {self.cost}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _table_of_groups(self) -> str:
        body = [
            [
                str(g.index),
                str(g.parameters),
                number(g.lr),
                number(g.proportional),
                "not measured" if g.separate is None else number(g.separate.value),
            ]
            for g in self.groups
        ]
        return text_table(["group", "parameters", "lr", "limit, all in proportion", "limit, others at rest"], body)
