"""Σ r rᵀ over rows r, kept on its smaller side: as the rows while they are few, and as a matrix from then on."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from wellcond.errors import NonFinite, TooLarge

Side = Literal["features", "rows"]
LIMIT = 2**30
"""Bytes that a matrix, or the rows that it is made of, may take."""
AT_ONCE = 2**25
"""Entries of the rows that are turned into float64 at a time."""


@dataclass
class SecondMoment:
    """E[r rᵀ] of rows of d features, in groups, uncentred and in float64.

    n < d rows have n inner products with each other, whose matrix has the non-zero eigenvalues of the d × d one.

    Attributes:
        what: Its name in messages.
        groups: How many matrices there are.
        dimension: d, of each.
        count: How many rows were seen.
    """

    what: str
    groups: int = 0
    dimension: int = 0
    count: int = 0
    _rows: list[tuple[float, Tensor]] = field(default_factory=list, repr=False)  # weight, (groups, n, d)
    _total: Tensor | None = field(default=None, repr=False)  # (groups, d, d), or (groups, d) if it is diagonal
    _trace_alone: float | None = None  # where neither side fits

    # gathering

    def add(self, rows: Tensor, weight: float = 1.0) -> None:
        """Add weight · Σ r rᵀ.

        Args:
            rows: (groups, blocks, rows of a block, d).
            weight: Of every row's outer product.
        """
        self.groups, self.dimension = len(rows), rows.shape[-1]
        if not rows.numel():
            return
        if rows.dtype in (torch.float16, torch.bfloat16):
            rows = rows.float()
        new = rows.shape[1] * rows.shape[2]
        self.count += new
        if self._total is None and self._trace_alone is None:
            kept = new + sum(old.shape[1] for _, old in self._rows)
            if kept < self.dimension and self._fits(kept * self.dimension):
                # a copy: the network may write over its activations
                self._rows.append((weight, rows.clone(memory_format=torch.contiguous_format).flatten(1, 2)))
                return
            self._leave_rows()
        if self._trace_alone is not None:
            self._trace_alone += weight * _sum_of_squares(rows)
        else:
            total = _sum_of_products(rows).mul_(weight)
            self._total = total if self._total is None else self._total.add_(total)

    def _leave_rows(self) -> None:
        """From now on the matrix is summed up; where that is too large as well, its trace alone."""
        rows, self._rows = self._rows, []
        if not self._fits(self.dimension**2):
            self._trace_alone = sum(weight * _sum_of_squares(some) for weight, some in rows)
        elif rows:
            self._total = _added(_sum_of_products(some.unsqueeze(1)).mul_(weight) for weight, some in rows)

    def scale(self, factor: float) -> None:
        """Multiply what has been added."""
        self._rows = [(weight * factor, rows) for weight, rows in self._rows]
        self._total = None if self._total is None else self._total * factor
        self._trace_alone = None if self._trace_alone is None else self._trace_alone * factor

    def add_diagonal(self, total: Tensor, count: int) -> None:
        """Add Σ r rᵀ of `count` rows that is known to be diagonal, (groups, d)."""
        self.groups, self.dimension = total.shape
        self.count += count
        self._total = total.double() if self._total is None else self._total + total

    def _fits(self, entries: int) -> bool:
        return 8 * self.groups * entries <= LIMIT

    # what it holds

    @property
    def shape(self) -> tuple[int, ...]:
        """That of `mean`."""
        is_diagonal = self._total is not None and self._total.dim() == 2
        return (self.groups, self.dimension) if is_diagonal else (self.groups, self.dimension, self.dimension)

    @property
    def is_known(self) -> bool:
        """Whether rows were seen and one of the sides fits."""
        return self.count > 0 and self._trace_alone is None

    @property
    def why_unknown(self) -> str:
        """Why there are no eigenvalues although rows were seen."""
        return (
            f"{self.what} is {self.dimension:,} × {self.dimension:,}, of {self.count:,} rows: both sides are above the "
            f"limit of {LIMIT >> 30} GiB. Measure fewer examples."
        )

    @property
    def side(self) -> Side:
        """What the matrix is made of whose eigenvalues are computed."""
        return "rows" if self._rows else "features"

    @property
    def trace(self) -> float:
        """The sum of all groups' traces."""
        if self._trace_alone is not None:
            return self._trace_alone / self.count
        if self._total is None:
            return sum(weight * _sum_of_squares(rows) for weight, rows in self._rows) / max(self.count, 1)
        return float(_diagonal(self._total).sum()) / self.count

    @property
    def mean(self) -> Tensor | None:
        """E[r rᵀ] written out: (groups, d, d), or (groups, d) where it is diagonal; None if no row was seen.

        Raises:
            TooLarge: It takes more memory than `LIMIT`.
        """
        if not self.count:
            return None
        if self._total is not None:
            return self._total / self.count
        if not self.is_known or not self._fits(self.dimension**2):
            raise TooLarge(
                f"{self.what} is {self.dimension:,} × {self.dimension:,}, above the limit of {LIMIT >> 30} GiB. "
                "wellcond.conditioning gives its eigenvalues where there are fewer rows."
            )
        return _added(_sum_of_products(rows.double().unsqueeze(1)) * weight for weight, rows in self._rows) / self.count

    def eigenvalues(self) -> Tensor:
        """(groups, k) with k ≤ d, on the CPU; the others are zero.

        Raises:
            NonFinite: A row is NaN or infinite.
        """
        matrix = self._total if self._total is not None else self._inner_products()
        largest = float(_diagonal(matrix).abs().max())
        if not math.isfinite(largest):
            raise NonFinite(f"{self.what} cannot be had: its rows hold NaN or inf.")
        if matrix.dim() == 2 or largest == 0:
            return (_diagonal(matrix) / self.count).cpu()
        relative: Tensor = torch.linalg.eigvalsh(matrix / largest)
        return (relative * (largest / self.count)).cpu()

    def _inner_products(self) -> Tensor:
        """⟨r, s⟩ of all rows, (groups, n, n)."""
        groups, _, d = self._rows[0][1].shape
        count = sum(rows.shape[1] for _, rows in self._rows)
        products = torch.zeros(groups, count, count, dtype=torch.float64, device=self._rows[0][1].device)
        width = max(AT_ONCE // (groups * count), 1)
        for start in range(0, d, width):
            parts = [rows[..., start : start + width].double() * math.sqrt(w) for w, rows in self._rows]
            rows = torch.cat(parts, 1)
            products += rows @ rows.mT
        return products


def _sum_of_products(rows: Tensor) -> Tensor:
    """Σ r rᵀ of (groups, blocks, n, d) in float64; computed there too where squares leave the range of float32."""
    if rows.shape[2] < rows.shape[3]:  # a sum of every block's products would be larger than the rows
        rows = rows.flatten(1, 2).unsqueeze(1)
    total = (rows.mT @ rows).sum(1)
    largest = total.diagonal(dim1=-2, dim2=-1).amax(-1)
    if rows.dtype != torch.float64 and not bool(((largest > 1e-25) & (largest < 1e25)).all()):
        return _sum_of_products(rows.double())
    return total.double()


def _added(sums: Iterable[Tensor]) -> Tensor:
    return functools.reduce(Tensor.add_, sums)


def _sum_of_squares(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows, dtype=torch.float64)) ** 2


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix if matrix.dim() == 2 else matrix.diagonal(dim1=-2, dim2=-1)
