"""Σ r rᵀ over rows r, stored on its smaller side: as rows while there are few, and as a matrix from then on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from wellcond.curvature.kronecker.rows import (
    LIMIT,
    SMALL,
    TOGETHER,
    KeptRows,
    SumOfProducts,
    Workspace,
    eigenvalues_of,
    in_streams,
    sum_of_products,
    sum_of_squares,
)
from wellcond.errors import NonFinite, TooLarge

Side = Literal["features", "rows"]
EXACT = 4096
"""Longest side of a matrix whose eigenvalues are all computed, which takes about ten seconds on one core."""


@dataclass
class SecondMoment:
    """E[r rᵀ] of rows of d features, in groups, uncentered and in float64.

    n < d rows have an n × n matrix of inner products, with the non-zero eigenvalues of the d × d matrix. If both sides
    are above `exact`, the rows are stored, or a uniform sample that fits, for the largest eigenvalue; but one-hot rows
    have a diagonal matrix.

    Attributes:
        what: Name in messages.
        layer: Layer it belongs to.
        workspace: Workspace shared with the moments of other layers.
        exact: Longest side of a matrix whose eigenvalues are all computed.
        groups: Number of matrices.
        dimension: d, the side of each matrix.
        count: Number of rows added so far.
    """

    what: str
    layer: str = ""
    workspace: Workspace = field(default_factory=Workspace, repr=False)
    exact: int = field(default_factory=lambda: EXACT)
    groups: int = 0
    dimension: int = 0
    count: int = 0
    _rows: KeptRows = field(default_factory=KeptRows, repr=False)
    _total: Tensor | None = field(default=None, repr=False)  # (groups, d, d), or (groups, d) if it is diagonal
    _values: Tensor | None = field(default=None, repr=False)  # eigenvalues, which replace rows and matrix
    _side: Side = field(default="features", repr=False)
    _squares: float | None = field(default=None, repr=False)  # Σ w‖r‖², once rows are left out
    _refusal: str = field(default="", repr=False)  # why only the trace is summed up, if that is the case

    # gathering

    def add(self, rows: Tensor, weight: float = 1.0) -> None:
        """Add weight · Σ r rᵀ.

        Args:
            rows: Rows, (groups, blocks, rows of a block, d).
            weight: Weight of every row's outer product.
        """
        self.groups, self.dimension = len(rows), rows.shape[-1]
        if not rows.numel():
            return
        if rows.dtype in (torch.float16, torch.bfloat16):
            rows = rows.float()
        new = rows.shape[1] * rows.shape[2]
        stored = self._rows.count + new
        self.count += new
        if self._squares is not None:
            self._squares += weight * sum_of_squares(rows)
        if self._refusal:
            return
        is_diagonal = self._total is not None and self._total.dim() == 2
        if not self._matrix_fits and (is_diagonal or not self._rows.count) and _is_one_hot(rows):
            squares = torch.linalg.vector_norm(rows, dim=(1, 2), dtype=torch.float64).square_().mul_(weight)
            self._total = squares if self._total is None else self._total + squares
        elif is_diagonal:
            self._squares = self._sum_of_squares + weight * sum_of_squares(rows)
            self._refuse("some of its rows have one entry and others have more. Measure batches of one sort")
        elif self._total is None and (stored < self.dimension or not self._matrix_fits):
            self._keep(rows, weight)
        elif rows.numel() <= SMALL:
            self.workspace.multiply_later(self, rows, weight)
        else:
            self.add_product(sum_of_products(rows).mul_(weight))

    def _keep(self, rows: Tensor, weight: float) -> None:
        size_of_one = self.groups * self.dimension * rows.element_size()
        most = max(LIMIT // size_of_one, 1)
        new = min(rows.shape[1] * rows.shape[2], most - self._rows.count)
        fits = self.workspace.take(new * size_of_one)
        if self._squares is None and (not fits or self.count > most):
            self._squares = self._sum_of_squares + weight * sum_of_squares(rows)
        if fits:
            self._rows.add(rows, weight, most)
        else:
            self._refuse(self._no_memory)

    def add_product(self, product: Tensor) -> None:
        """Add Σ r rᵀ, (groups, d, d); stored rows become part of the matrix."""
        if self._total is not None:
            self._total += product
        elif self._refusal or not self.workspace.take(8 * product.numel() - self._rows.itemsize):
            self._squares = self._sum_of_squares + float(_diagonal(product).sum())
            self._refuse(self._no_memory)
        else:
            self._total = product
            for weight, rows in self._rows.parts:
                self._total += sum_of_products(rows.unsqueeze(1)).mul_(weight)
            self._rows = KeptRows()

    def _refuse(self, why: str) -> None:
        """From now on only the trace is summed up."""
        self._refusal = why
        self.workspace.take(-self._rows.itemsize)
        self._rows, self._total = KeptRows(), None

    @property
    def _no_memory(self) -> str:
        return (
            f"together with the layers before it, it is above the limit of {TOGETHER / 2**30:.3g} GiB for all layers. "
            f"Measure fewer layers at a time: layers={self.layer!r}"
        )

    def scale(self, factor: float) -> None:
        """Multiply what has been added."""
        self.workspace.multiply()
        self._rows.scale(factor)
        self._total = None if self._total is None else self._total * factor
        self._squares = None if self._squares is None else self._squares * factor

    def add_diagonal(self, total: Tensor, count: int) -> None:
        """Add Σ r rᵀ of `count` rows that is known to be diagonal, (groups, d)."""
        self.groups, self.dimension = total.shape
        self.count += count
        self._total = total.double() if self._total is None else self._total + total

    @property
    def _matrix_fits(self) -> bool:
        return self.dimension <= self.exact and 8 * self.groups * self.dimension**2 <= LIMIT

    def size_of(self, count: float) -> float:
        """Bytes that would be stored of this many rows."""
        if self._total is not None and self._total.dim() == 2:
            return 8.0 * self._total.numel()
        if self._matrix_fits and count >= self.dimension:
            return 8.0 * self.groups * self.dimension**2
        rows = count * self.groups * self.dimension * 4
        return rows if self._matrix_fits else min(rows, LIMIT)

    # what it holds

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of `mean`."""
        is_diagonal = self._total is not None and self._total.dim() == 2
        return (self.groups, self.dimension) if is_diagonal else (self.groups, self.dimension, self.dimension)

    @property
    def is_known(self) -> bool:
        """Whether there are rows and all eigenvalues can be computed."""
        self.workspace.multiply()
        has_few_rows = not self._rows.is_sample and self._rows.count <= self.exact
        return self.count > 0 and not self._refusal and has_few_rows

    @property
    def has_rows(self) -> bool:
        """Whether rows are stored."""
        return self._rows.count > 0

    @property
    def why_unknown(self) -> str:
        """Why not all eigenvalues can be computed although there are rows."""
        sizes = f"{self.what} is {self.dimension:,} × {self.dimension:,}, of {self.count:,} rows"
        if self._refusal:
            return f"{sizes}: {self._refusal}"
        is_lowered = self.exact < EXACT
        cure = f"Call wc.conditioning(problem, layers={self.layer!r})" if is_lowered else "Measure fewer examples"
        return (
            f"{sizes}: both sides are above {self.exact:,}, so λ_max and the trace are available, κ and the rank are "
            f"not. {cure} to get all of them"
        )

    @property
    def side(self) -> Side:
        """Side whose matrix is decomposed."""
        self.workspace.multiply()
        return "rows" if self._rows.count else self._side

    @property
    def trace(self) -> float:
        """The sum of all groups' traces."""
        return self._sum_of_squares / max(self.count, 1)

    @property
    def _sum_of_squares(self) -> float:
        if self._squares is not None:
            return self._squares
        self.workspace.multiply()
        if self._values is not None:
            return float(self._values.sum()) * self.count
        if self._total is not None:
            return float(_diagonal(self._total).sum())
        return sum(weight * sum_of_squares(rows) for weight, rows in self._rows.parts)

    @property
    def mean(self) -> Tensor | None:
        """E[r rᵀ]: (groups, d, d), or (groups, d) if it is diagonal; None without rows.

        Raises:
            TooLarge: It takes more memory than `LIMIT`.
        """
        self.workspace.multiply()
        if not self.count:
            return None
        if self._total is not None:
            return self._total / self.count
        if not self.is_known or 8 * self.groups * self.dimension**2 > LIMIT:
            raise TooLarge(
                f"{self.what} is {self.dimension:,} × {self.dimension:,}, above the limit of {LIMIT / 2**30:.3g} GiB. "
                "wellcond.conditioning gives its eigenvalues if there are fewer rows."
            )
        parts = [sum_of_products(rows.double().unsqueeze(1)) * weight for weight, rows in self._rows.parts]
        return torch.stack(parts).sum(0) / self.count

    def eigenvalues(self) -> Tensor:
        """(groups, k) with k ≤ d, on the CPU; the others are zero.

        Raises:
            NonFinite: A row is NaN or infinite.
        """
        if self._values is None:
            compute_eigenvalues([self])
        assert self._values is not None
        return self._values

    def rows_as_operator(self) -> tuple[SumOfProducts, float, str]:
        """A matrix that is never formed, the factor of its eigenvalues, and the rows it is made of, in words.

        Raises:
            NonFinite: A row is NaN or infinite.
        """
        if not all(bool(torch.isfinite(rows).all()) for _, rows in self._rows.parts):
            raise NonFinite(f"{self.what} is not available: its rows hold NaN or inf.")
        operator = SumOfProducts(self._rows.parts)
        stored, total = self._rows.count, self.count
        rows = f"a sample of {stored:,} of {total:,} rows" if stored < total else "all rows"
        return operator, operator.unit / stored, rows

    @property
    def _device(self) -> torch.device:
        return self._rows.parts[0][1].device if self._total is None else self._total.device

    @property
    def _matrix_size(self) -> int:
        return self.groups * self._rows.count**2 if self._total is None else self._total.numel()

    def _matrix(self) -> Tensor:
        """The smaller one of Σ r rᵀ and ⟨r, s⟩, (groups, n, n), or the diagonal, (groups, d)."""
        return self._rows.inner_products() if self._total is None else self._total

    def _reduce_to(self, values: Tensor) -> None:
        self._values, self._side = values / self.count, self.side
        is_matrix = self._total is not None and self._total.dim() == 3
        self.workspace.take(-(8 * self.groups * self.dimension**2 if is_matrix else self._rows.itemsize))
        self._rows, self._total = KeptRows(), None


def compute_eigenvalues(moments: Iterable[SecondMoment], report: Callable[[str], None] = lambda what: None) -> None:
    """Reduce moments to their eigenvalues, small ones of equal sizes together; `report` gets each one's name.

    Raises:
        NonFinite: A row is NaN or infinite.
    """
    alike: dict[object, list[tuple[SecondMoment, Tensor]]] = defaultdict(list)
    on_gpu: dict[torch.device, list[SecondMoment]] = defaultdict(list)
    for moment in (moment for moment in moments if moment.is_known and moment._values is None):
        report(moment.what)
        if moment._matrix_size <= SMALL and (matrix := moment._matrix()).dim() == 3:
            alike[matrix.shape, matrix.device].append((moment, matrix))
        elif moment._device.type == "cuda":
            on_gpu[moment._device].append(moment)
        else:
            moment._reduce_to(eigenvalues_of(moment._matrix().unsqueeze(0), [moment.what])[0])
    for group in alike.values():
        spectra = eigenvalues_of(torch.stack([matrix for _, matrix in group]), [moment.what for moment, _ in group])
        for (moment, _), values in zip(group, spectra, strict=True):
            moment._reduce_to(values)
    for device, large in on_gpu.items():
        each = in_streams(lambda m: eigenvalues_of(m._matrix().unsqueeze(0), [m.what])[0], large, device)
        for moment, values in zip(large, each, strict=True):
            moment._reduce_to(values)


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix if matrix.dim() == 2 else matrix.diagonal(dim1=-2, dim2=-1)


def _is_one_hot(rows: Tensor) -> bool:
    """Whether every row has exactly one non-zero entry; for most layers the first row decides that they do not."""
    return int(rows[0, 0, 0].count_nonzero()) == 1 and bool((rows.count_nonzero(-1) == 1).all())
