"""Largest stable learning rates, as measured: of the whole, of parameter groups, of batches."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from wellcond.results import Row, number, text_table


@dataclass(frozen=True)
class Limit:
    """numerator / λ_max, and what is known of it: λ_max is within `lambda_error` of the truth.

    converged: whether λ_max is as exact as was asked for. matvecs: products with the Hessian.

    >>> limit = Limit(numerator=2.0, lambda_max=5.0, lambda_error=1.0, converged=True, matvecs=3)
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
        """inf if λ_max is not positive: the quadratic model sets no limit."""
        return self._over(self.lambda_max)

    @property
    def low(self) -> float:
        return self._over(self.lambda_max + self.lambda_error)

    @property
    def high(self) -> float:
        """inf if λ_max might not be positive."""
        return self._over(self.lambda_max - self.lambda_error)

    @property
    def error(self) -> float:
        """How far the truth can be from `value`, which is further upwards than downwards."""
        if self.high == math.inf:
            return 0.0 if self.low == math.inf else math.inf
        return self.high - self.value

    def _over(self, curvature: float) -> float:
        return self.numerator / curvature if curvature > 0 else math.inf


@dataclass(frozen=True)
class GroupLimit:
    """One parameter group. together: the limit of its lr if those of all groups grow in proportion.

    alone: of its lr if no other group moved; None where it was not measured. parameters: how many numbers it holds.
    """

    index: int
    lr: float
    momentum: float
    parameters: int
    together: float
    alone: Limit | None


@dataclass(frozen=True)
class MaxLearningRate:
    """The largest stable learning rate in the quadratic model of the loss; `float(...)` gives it.

    limit: the value, its interval and the eigenvalue it comes from. matrix: what λ_max is of.
    optimizer, lr: the optimizer's name and its largest lr now, or None. With several groups, `value` is for the largest
        lr, and the others stay in proportion.
    momentum: μ or β₁, of that group. groups: those that move; () without an optimizer. batches: () if not asked for.
    evaluations: forward+backward passes, one u each.
    """

    limit: Limit
    matrix: str
    momentum: float
    optimizer: str | None
    lr: float | None
    groups: tuple[GroupLimit, ...]
    batches: tuple[Limit, ...]
    batchnorm: str
    evaluations: int
    notes: tuple[str, ...]

    @property
    def value(self) -> float:
        return self.limit.value

    @property
    def low(self) -> float:
        return self.limit.low

    @property
    def high(self) -> float:
        return self.limit.high

    @property
    def error(self) -> float:
        return self.limit.error

    @property
    def lambda_max(self) -> float:
        return self.limit.lambda_max

    @property
    def converged(self) -> bool:
        return self.limit.converged

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
        return min(b.value for b in self.batches) if self.batches else None

    @property
    def median_of_batches(self) -> float | None:
        return statistics.median(b.value for b in self.batches) if self.batches else None

    @property
    def matvecs(self) -> int:
        """Products with the Hessian of all batches, those with blocks of it included."""
        return self.limit.matvecs + sum(g.alone.matvecs for g in self.groups if g.alone is not None)

    @property
    def cost(self) -> float:
        """In u, of which a product takes about two; with the Hessian of one batch, its share of them."""
        of_batches = sum(b.matvecs for b in self.batches) / max(len(self.batches), 1)
        return self.evaluations + 2 * (self.matvecs + of_batches)

    def rows(self, step: int | None = None) -> list[Row]:
        """step: the training step that this was measured at."""
        named = {"max_lr": self.value, "max_lr_low": self.low, "max_lr_high": self.high, "lr": self.lr}
        for group in self.groups if len(self.groups) > 1 else ():
            named[f"max_lr_of_group[{group.index}]"] = group.together
            if group.alone is not None:
                named[f"max_lr_of_group_alone[{group.index}]"] = group.alone.value
        named |= {f"max_lr_of_batch[{i}]": b.value for i, b in enumerate(self.batches)}
        named |= {"max_lr_of_batches_min": self.smallest_of_batches, "max_lr_of_batches_median": self.median_of_batches}
        return [
            *(Row(step, "", quantity, value, "lr") for quantity, value in named.items() if value is not None),
            Row(step, "", "lambda_max", self.lambda_max, ""),
            Row(step, "", "momentum", self.momentum, ""),
            Row(step, "", "matvecs", float(self.matvecs), "products"),
            Row(step, "", "cost", self.cost, "u"),
        ]

    def __str__(self) -> str:
        lines = [
            f"largest stable learning rate: {number(self.value)}, between {number(self.low)} and {number(self.high)}"
        ]
        lines.append(
            f"{number(self.limit.numerator)}/λ_max with momentum {self.momentum:g}; λ_max of {self.matrix} is "
            f"{number(self.lambda_max)} ± {self.limit.lambda_error:.1g}"
        )
        if self.lr and self.factor is not None:
            verdict = "within the limit" if self.factor > 1 else "beyond the limit"
            lines.append(
                f"{self.optimizer} has lr {number(self.lr)}, {verdict}, which is {number(self.factor)} times it"
            )
        if len(self.groups) > 1:
            lines.append(self._table_of_groups())
        products = f"{self.matvecs} products with the Hessian"
        if self.batches:
            least, median = number(self.smallest_of_batches or 0.0), number(self.median_of_batches or 0.0)
            lines.append(f"on single batches ({len(self.batches)}): {least} at the least, {median} at the median")
            products += f" and {sum(b.matvecs for b in self.batches)} with those of single batches"
        lines.append(
            f"batchnorm={self.batchnorm!r}; {products}, cost {number(self.cost)} u (u: a forward+backward pass)"
        )
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def _table_of_groups(self) -> str:
        body = [
            [
                str(g.index),
                str(g.parameters),
                number(g.lr),
                number(g.together),
                "not measured" if g.alone is None else number(g.alone.value),
            ]
            for g in self.groups
        ]
        return text_table(["group", "parameters", "lr", "limit, all in proportion", "limit, alone"], body)
