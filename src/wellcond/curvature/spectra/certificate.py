"""How far beyond its Ritz values a Lanczos process can have missed an eigenvalue, and with which probability."""

from __future__ import annotations

import math

import numpy as np

from wellcond.curvature.spectra.lanczos import Lanczos, Matrix


class Certificate:
    """Bounds on the probability that an eigenvalue is there and the process has not seen it.

    Let A e = μe, and write e in the basis of the process: y in the basis K, z in the block that comes next. The rows of
    A K = K T + Q B Eᵀ say (T − μ) y + E Bᵀ z = 0, so all of e that the process can see follows from z:

        y = −(T − μ)⁻¹ E Bᵀ z,      ‖y‖² + ‖z‖² ≤ 1.

    So the start saw at most σ(μ) of e: the largest first block of y, over all z, in the coordinates of the start. σ
    falls exponentially outside the Ritz values, while a random start almost never has so little of a fixed vector.
    This says where the largest eigenvalue can be (van Dorsselaer, Hochstenbach and van der Vorst, 2000, for one start).
    If i ≥ 2 eigenvalues are at least μ but only i − 1 Ritz values are, the start has at most σ of some direction among
    their eigenvectors; a search for matrices that break this reaches σ and does not exceed it. With b Gaussian starts
    the smallest singular value of i × b of their entries is at most σ with probability

        P ≤ K σ^d,   d = b − i + 1,   K = √π 2^{1−d/2} Γ((b+1)/2) / (d Γ(i/2) Γ(d/2) Γ((d+1)/2))    (Edelman 1988),

    and K = i (i/2)^{d/2} / Γ(d/2 + 1) where the noise is added to something else: one of its i rows is within √i σ of
    the span of the others, and no shift makes that more probable.

    Args:
        process: The process after some steps.
        ritz: Eigenvalues of its T, (m,).
        vectors: Eigenvectors of T as columns, (m, m).
        is_shifted: Whether the start holds more than noise. The noise has a variance of one over the size.
    """

    def __init__(self, process: Lanczos, ritz: Matrix, vectors: Matrix, *, is_shifted: bool) -> None:
        below = process.below[-1]
        self.scale = float(np.abs(ritz).max()) or 1.0
        self._ritz = ritz / self.scale
        self._first = process.start.T @ vectors[: len(process.start)]
        self._last = vectors[-below.shape[1] :].T @ below.T / self.scale
        # ‖y‖² + ‖z‖² ≤ 1 for an orthonormal basis, and at most the number of unit vectors for any other
        self._norm = 1.0 if process.is_whole else math.sqrt(len(ritz) + 1)
        self._size = process.size
        self._is_shifted = is_shifted

    def probability(self, values: Matrix, rank: int) -> Matrix:
        """Bounds on the probability that `rank` eigenvalues are at least as far out as each value.

        Args:
            values: Values (g,), each beyond all Ritz values but the outermost `rank` − 1; for rank 1, beyond all.
            rank: Number of eigenvalues, at most the number of starts of the process.
        """
        starts = len(self._first)
        d = starts - rank + 1
        if self._is_shifted:
            log_k = math.log(rank) + d / 2 * math.log(rank / 2) - math.lgamma(d / 2 + 1)
        else:
            log_k = math.log(math.pi) / 2 + (1 - d / 2) * math.log(2) + math.lgamma((starts + 1) / 2) - math.log(d)
            log_k -= math.lgamma(rank / 2) + math.lgamma(d / 2) + math.lgamma((d + 1) / 2)
        sigma = np.maximum(self._seen_at_most(values), 1e-150) * math.sqrt(self._size) * self._norm
        return np.asarray(np.exp(np.minimum(0.0, log_k + d * np.log(sigma))))

    def _seen_at_most(self, values: Matrix) -> Matrix:
        """σ(μ), (g,)."""
        if not self._last.size:  # the basis spans the whole space
            return np.zeros(len(values))
        gap = self._ritz - values[:, None] / self.scale
        inverse = 1 / np.where(np.abs(gap) < 1e-100, 1e-100, gap)
        seen = (self._first * inverse[:, None, :]) @ self._last  # the first block of y by z, (g, starts, next)
        inside = self._last * inverse[:, :, None]  # y by z, in the eigenvectors of T
        root = np.linalg.cholesky(np.eye(inside.shape[2]) + inside.mT @ inside)  # ‖y‖² + ‖z‖²
        by_whole = np.linalg.solve(root, seen.mT)  # the first block of y by a unit vector (y, z)
        return np.asarray(np.sqrt(np.maximum(np.linalg.eigvalsh(by_whole.mT @ by_whole)[:, -1], 0.0)))
