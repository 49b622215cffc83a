"""The block Lanczos process, within a limit on memory.

    A Q_i = Q_{i+1} B_{i+1} + Q_i A_i + Q_{i−1} B_iᵀ

T, the block tridiagonal matrix of the A_i and B_i, is small and lives on the CPU in float64; the basis Q lives where
the operator does, in its dtype. Reorthogonalizing twice against all of it keeps it orthogonal to rounding. The
recurrence itself only needs the last two blocks, so the oldest vectors can be dropped if memory is short.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wellcond.curvature.spectra.operators import Operator
from wellcond.errors import NonFinite

Matrix = NDArray[np.float64]


MEMORY = 2.0
"""Default GiB for the vectors of a process."""
CHUNK_BYTES = 2**24
"""Bytes by which the basis grows at a time, or a block if that is larger."""


def vectors_within(gibibytes: float, operator: Operator, width: int) -> int | None:
    """Number of vectors a process may store, without the block of `width` that it works on; None for all."""
    row = operator.shape[0] * operator.dtype.itemsize
    if gibibytes * 2**30 >= (operator.shape[0] + width) * row:
        return None
    return max(3 * width, int(gibibytes * 2**30 // row) - width)


def noise(size: int, width: int, generator: torch.Generator, like: Operator) -> Tensor:
    """(size, width) normal numbers of variance 1/size, the same in every dtype.

    Drawn in float32, five times as fast as in float64. They are also the same on every device, except for more than a
    million on a GPU, which are drawn there: a CPU takes 0.7 s for those of GPT-2.
    """
    drawn = torch.empty(width, size, dtype=like.dtype, device=like.device).T
    if like.device.type == "cuda" and size > 2**20:
        seed = int(torch.randint(2**62, (), generator=generator, device="cpu"))
        generator = torch.Generator(like.device).manual_seed(seed)
    for begin in range(0, size, 2**20):  # no second copy of the whole
        part = drawn[begin : begin + 2**20]
        rows = torch.randn(*part.shape, generator=generator, dtype=torch.float32, device=generator.device)
        part.copy_(rows / size**0.5)
    return drawn


class Lanczos:
    """A growing orthonormal basis of the Krylov space of `operator` from the columns of `start` (n, b).

    Args:
        operator: The matrix.
        start: Independent vectors.
        generator: Generator of new directions, needed if the Krylov space ends early.
        most: Most vectors that are stored, at least three blocks; None for all. Orthogonality to dropped vectors fades,
            and a Ritz value that has converged then appears again, as a copy of itself.
    """

    def __init__(self, operator: Operator, start: Tensor, generator: torch.Generator, most: int | None = None) -> None:
        self.operator = operator
        self.size = operator.shape[0]
        self.generator = generator
        self.matvecs = 0
        self.blocks: list[tuple[int, int]] = []  # rows of the basis that each Q_i takes
        self.diagonal: list[Matrix] = []  # A_i
        self.below: list[Matrix] = []  # B_{i+1}
        self._most = self.size if most is None else most
        width, row = start.shape[1], self.size * operator.dtype.itemsize
        self._chunk_rows = width * (max(1, CHUNK_BYTES // (width * row)) if most is None else 1)
        # T keeps its full precision while the basis is orthogonal to √ε (Simon 1984): long vectors are not read twice
        self._negligible = 0.1 * torch.finfo(operator.dtype).eps ** 0.5 if self.size > 2**16 else 0.0
        self._chunks: list[Tensor] = []  # of the basis, all full but the last
        self._dropped = 0
        self._count = 0
        self._scale = 0.0
        self._gain = 1.0
        self.start = self._append(start.T.to(operator.device, operator.dtype, copy=True))  # R of start = Q_1 R

    @property
    def is_whole(self) -> bool:
        """Whether all vectors of the basis are still stored."""
        return not self._dropped

    def combined(self, coordinates: Matrix) -> Tensor:
        """Vectors (n, j) with these coordinates (m, j) in the first m vectors of the basis."""
        total = torch.zeros(coordinates.shape[1], self.size, dtype=self.operator.dtype, device=self.operator.device)
        for begin, rows in self._rows(0, len(coordinates)):
            part = torch.from_numpy(coordinates[begin : begin + len(rows)]).to(rows)
            total.addmm_(part.T, rows)
        return total.T

    @property
    def is_complete(self) -> bool:
        """Whether the basis spans the whole space, so that T has exactly A's eigenvalues."""
        return len(self.diagonal) == len(self.blocks) and self._count >= self.size

    @property
    def next_width(self) -> int:
        """Number of products in the next step."""
        begin, end = self.blocks[-1]
        return end - begin

    def step(self) -> None:
        """Multiply the last block and orthogonalize the result into the next one."""
        begin, end = self.blocks[-1]
        parts = [rows for _, rows in self._rows(begin, end)]
        q = parts[0] if len(parts) == 1 else torch.cat(parts)
        w = self._multiplied(q) if self.diagonal else self._first_product(q)
        a = (w @ q.T).double().cpu().numpy()
        if not np.isfinite(a).all():
            raise NonFinite(
                f"the matrix is NaN or inf, or too large for {str(w.dtype).removeprefix('torch.')}; "
                "measure a copy: copy.deepcopy(model).double()."
            )
        self._scale = max(self._scale, float(np.linalg.norm(a)))
        w = self._orthogonal(w)
        b = self._append(w)
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

        In float32 the square of 1e-23 is zero, that of 1e20 infinite, and numbers below 1e-38 have lost their digits.
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

        In exact arithmetic that part lies in the last two blocks. Once it is removed, one pass over the whole basis,
        whose time is that of reading it, removes what rounding left. A row that still shrinks needs another pass.
        """
        # a copy, since a user's operator may return its own memory; row by row, or cublasLt fails on a single row
        w = w.clone(memory_format=torch.contiguous_format)
        self._remove(w, self.blocks[-2:][0][0], 0.0)
        for _ in range(3):
            before = w.norm(dim=1)
            self._remove(w, 0, self._negligible * float(before.min()))
            if bool((w.norm(dim=1) > 0.7 * before).all()):
                break
        return w

    def _remove(self, w: Tensor, begin: int, negligible: float) -> None:
        """Remove from `w` its part in the rows from `begin` on, unless that is negligible."""
        for _, rows in self._rows(begin, self._count):
            coefficients = w @ rows.T
            if not negligible or float(coefficients.abs().max()) > negligible:
                w.addmm_(coefficients, rows, alpha=-1)

    def _append(self, w: Tensor) -> Matrix:
        """Orthonormalize the rows of `w` into the next block; returns B with w = Bᵀ Q_next.

        A row that depends on the rows before it (an invariant subspace was reached) is replaced by a random direction
        with a zero in B, so that the process continues and sees other copies of multiple eigenvalues. When the space
        runs out, the block is narrower, and real rows come before random ones.
        """
        width = min(len(w), self.size - self._count)
        begin = self._count
        self._make_room(width)
        b = np.zeros((width, len(w)))
        tiny = 100 * torch.finfo(w.dtype).eps * self._scale
        for j in range(len(w)):
            row, new = w[j : j + 1], self._count - begin
            for _ in range(2 if new else 0):
                for at, rows in self._rows(begin, self._count):
                    coefficients = row @ rows.T
                    row.addmm_(coefficients, rows, alpha=-1)
                    b[at - begin : at - begin + len(rows), j] += coefficients[0].double().cpu().numpy()
            norm = float(row.norm())
            if norm > tiny and new < width:
                b[new, j] = norm
                place = self._next_row()
                torch.div(row, norm, out=place)
                if norm <= 1e-3 * self._scale:  # after cancellation, a small row must be orthogonalized again
                    self._orthonormalize(place)
            elif width == len(w):
                self._add_random_direction()
        while self._count < begin + width:
            self._add_random_direction()
        if width:
            self.blocks.append((begin, self._count))
        return b

    def _add_random_direction(self) -> None:
        place = self._next_row()
        place.copy_(noise(self.size, 1, self.generator, self.operator).T)
        self._orthonormalize(place)

    def _orthonormalize(self, last: Tensor) -> None:
        """Make the last row of the basis, (1, n), a unit vector orthogonal to all others."""
        for _ in range(3):
            for _, rows in self._rows(0, self._count - 1):
                last.addmm_(last @ rows.T, rows, alpha=-1)
            last /= last.norm()

    # the rows of the basis

    def _rows(self, begin: int, end: int) -> Iterator[tuple[int, Tensor]]:
        """The rows that are still stored, chunk by chunk, each with the number of its first row."""
        first = self._dropped
        for chunk in self._chunks:
            low, high = max(begin, first), min(end, first + len(chunk))
            if low < high:
                yield low, chunk[low - first : high - first]
            first += len(chunk)

    def _next_row(self) -> Tensor:
        """A new row, (1, n), not filled yet."""
        if self._count == self._dropped + sum(map(len, self._chunks)):
            rows = min(self._chunk_rows, self.size - self._count)
            empty = torch.empty(rows, self.size, dtype=self.operator.dtype, device=self.operator.device)
            self._chunks.append(empty)
        self._count += 1
        ((_, row),) = self._rows(self._count - 1, self._count)
        return row

    def _make_room(self, width: int) -> None:
        """Drop the oldest rows if a block of this width would not fit; the last block stays."""
        while self._chunks and self._count + width - self._dropped > self._most:
            if self._dropped + len(self._chunks[0]) > self.blocks[-1][0]:
                return
            self._dropped += len(self._chunks.pop(0))
