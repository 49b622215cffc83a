"""The block Lanczos process with full reorthogonalisation, and what it proves about the spectrum.

    A Q_i = Q_{i+1} B_{i+1} + Q_i A_i + Q_{i−1} B_iᵀ

T, the block tridiagonal matrix of the A_i and B_i, is small and lives on the CPU in float64; the basis Q lives where
the operator does, in its dtype. Reorthogonalising twice against the whole basis keeps it orthogonal to rounding.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wellcond.curvature.operator import LinearOperator
from wellcond.errors import NonFinite
from wellcond.network.calling import dtype_name

Matrix = NDArray[np.float64]


class Operator(Protocol):
    """What every spectral tool takes: a symmetric matrix that can be multiplied with (n, k)."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def __matmul__(self, v: Tensor, /) -> Tensor: ...


def as_operator(operator: Operator) -> Operator:
    """The operator; a tensor is checked to be a symmetric matrix first."""
    return as_symmetric(operator) if isinstance(operator, Tensor) else operator


def in_a_row(operator: Operator) -> contextlib.AbstractContextManager[Any]:
    """For many products one after the other; see `LinearOperator.in_a_row`."""
    return operator.in_a_row() if isinstance(operator, LinearOperator) else contextlib.nullcontext()


def as_symmetric(given: Tensor) -> Tensor:
    """A user's matrix, checked; of integers or half precision in float64.

    Raises:
        ValueError: It is not a real symmetric matrix.
        NonFinite: It holds NaN or inf.
    """
    if given.dim() != 2 or given.shape[0] != given.shape[1] or not given.numel() or given.is_complex():
        shape = tuple(given.shape)
        raise ValueError(f"a real square matrix is needed, not {dtype_name(given.dtype)} of shape {shape}.")
    matrix = given.detach()
    matrix = matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.double()
    off = float((matrix - matrix.T).abs().max())
    if not math.isfinite(off):
        raise NonFinite("the matrix holds NaN or inf.")
    # as coarse as the numbers came
    eps = torch.finfo(given.dtype if given.is_floating_point() else torch.float64).eps
    if off > eps**0.75 * float(matrix.abs().max()):
        raise ValueError(
            f"the matrix is not symmetric: entries differ by up to {off:.3g} from those of its transpose. "
            "Take (A + A.T) / 2 if that is what you mean, or torch.linalg.eigvals(A)."
        )
    return matrix / 2 + matrix.T / 2


class Lanczos:
    """A growing orthonormal basis of the Krylov space of `operator` from the columns of `start` (n, b)."""

    def __init__(self, operator: Operator, start: Tensor, generator: torch.Generator) -> None:
        self.operator = operator
        self.size = operator.shape[0]
        self.generator = generator
        self.matvecs = 0
        self.blocks: list[tuple[int, int]] = []  # rows of the basis that each Q_i takes
        self.diagonal: list[Matrix] = []  # A_i
        self.below: list[Matrix] = []  # B_{i+1}
        self._basis = torch.empty(0, self.size, dtype=operator.dtype, device=operator.device)
        self._count = 0
        self._scale = 0.0
        self._gain = 1.0
        self.start = self._append(start.T.to(operator.device, operator.dtype))  # R of start = Q_1 R

    @property
    def basis(self) -> Tensor:
        """(m, n), orthonormal rows, without the block that has not been multiplied yet."""
        return self._basis[: self.blocks[len(self.diagonal) - 1][1]]

    @property
    def is_complete(self) -> bool:
        """Whether the basis spans the whole space, so that T has exactly A's eigenvalues."""
        return len(self.diagonal) == len(self.blocks) and self._count >= self.size

    @property
    def next_width(self) -> int:
        """Products that the next step takes."""
        begin, end = self.blocks[-1]
        return end - begin

    def step(self) -> None:
        """Multiply the last block and orthogonalise the result into the next one."""
        begin, end = self.blocks[-1]
        q = self._basis[begin:end]
        w = self._multiplied(q) if self.diagonal else self._first_product(q)
        a = (w @ q.T).double().cpu().numpy()
        if not np.isfinite(a).all():
            raise NonFinite(
                f"the matrix is NaN or inf, or too large for {str(w.dtype).removeprefix('torch.')}; "
                "measure a copy: copy.deepcopy(model).double()."
            )
        self._scale = max(self._scale, float(np.linalg.norm(a)))
        b = self._append(self._orthogonal(w))
        self._scale = max(self._scale, float(np.linalg.norm(b)))
        self.diagonal.append((a + a.T) / (2 * self._gain))
        self.below.append(b / self._gain)

    def projected(self) -> Matrix:
        """T, (m, m)."""
        m = sum(len(a) for a in self.diagonal)
        t = np.zeros((m, m))
        row = 0
        for i, a in enumerate(self.diagonal):
            end = row + len(a)
            t[row:end, row:end] = a
            if i + 1 < len(self.diagonal):
                b = self.below[i]
                t[end : end + len(b), row:end] = b
                t[row:end, end : end + len(b)] = b.T
            row = end
        return t

    def residuals(self, vectors: Matrix) -> Matrix:
        """‖A y − θ y‖ of the Ritz pairs whose coordinates in the basis are the columns of `vectors`."""
        b = self.below[-1]
        return np.asarray(np.linalg.norm(b @ vectors[-b.shape[1] :], axis=0))

    def _multiplied(self, q: Tensor) -> Tensor:
        """A q times the gain."""
        self.matvecs += len(q)
        return (self.operator @ (q.T * self._gain if self._gain != 1 else q.T)).T

    def _first_product(self, q: Tensor) -> Tensor:
        """A q with the gain, a power of two, that brings it to order one.

        In float32 the squares of 1e-23 are zero, those of 1e20 infinite, and what is below 1e-38 has lost its digits.
        """
        w = self._multiplied(q)
        largest = float(w.abs().max())
        if largest in (0.0, math.inf):  # it may have left the range of its dtype
            self._gain = 2.0**60 if largest == 0 else 2.0**-60
            w = self._multiplied(q)
            largest = float(w.abs().max())
        if 0 < largest <= 1e-8 or 1e8 <= largest < math.inf:
            self._gain = min(max(self._gain / 2.0 ** round(math.log2(largest)), 2.0**-100), 2.0**100)
            w = self._multiplied(q)
        return w

    def _orthogonal(self, w: Tensor) -> Tensor:
        """`w` minus its part in the basis.

        In exact arithmetic that part lies in the last two blocks; once it is gone, one pass over the whole basis, which
        is as long as the memory it reads, removes what rounding left. A row that still shrinks needs another.
        """
        recent = self._basis[self.blocks[-2:][0][0] : self._count]
        w = w - (w @ recent.T) @ recent
        for _ in range(3):
            before = w.norm(dim=1)
            w = w - (w @ self._basis[: self._count].T) @ self._basis[: self._count]
            if bool((w.norm(dim=1) > 0.7 * before).all()):
                break
        return w

    def _append(self, w: Tensor) -> Matrix:
        """Orthonormalise the rows of `w` into the next block; returns B with w = Bᵀ Q_next.

        A row that depends on what is there (an invariant subspace was reached) is replaced by a random direction
        with a zero in B, so that the process goes on and sees other copies of multiple eigenvalues. When the space
        runs out, the block is narrower, and real rows go before random ones.
        """
        width = min(len(w), self.size - self._count)
        self._reserve(self._count + width)
        begin = self._count
        b = np.zeros((width, len(w)))
        tiny = 100 * torch.finfo(w.dtype).eps * self._scale
        for j, row in enumerate(w):
            new = self._basis[begin : self._count]
            for _ in range(2 if len(new) else 0):
                coefficients = new @ row
                row = row - coefficients @ new
                b[: len(new), j] += coefficients.double().cpu().numpy()
            norm = float(row.norm())
            if norm > tiny and len(new) < width:
                b[len(new), j] = norm
                # what cancellation left of a small row must be made orthogonal once more
                self._push(row / norm if norm > 1e-3 * self._scale else self._orthonormal(row / norm))
            elif width == len(w):
                self._push(self._random_direction())
        while self._count < begin + width:
            self._push(self._random_direction())
        if width:
            self.blocks.append((begin, self._count))
        return b

    def _push(self, row: Tensor) -> None:
        self._basis[self._count] = row
        self._count += 1

    def _random_direction(self) -> Tensor:
        drawn = torch.randn(self.size, generator=self.generator, dtype=torch.float64, device="cpu")
        return self._orthonormal(drawn.to(self._basis))

    def _orthonormal(self, row: Tensor) -> Tensor:
        known = self._basis[: self._count]
        for _ in range(3):
            row = row - (known @ row) @ known
            row = row / row.norm()
        return row

    def _reserve(self, rows: int) -> None:
        if rows > len(self._basis):
            grown = self._basis.new_empty(min(self.size, max(rows, 2 * len(self._basis), 16)), self.size)
            grown[: self._count] = self._basis[: self._count]
            self._basis = grown
