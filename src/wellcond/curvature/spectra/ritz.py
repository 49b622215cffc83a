"""What a Lanczos process knows about the requested eigenvalues, with which error, and whether that is enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from wellcond.curvature.spectra.certificate import Certificate
from wellcond.curvature.spectra.lanczos import Lanczos, Matrix

Which = Literal["largest", "smallest", "both"]


class Ritz:
    """The requested Ritz pairs of a Lanczos process, and whether they have converged."""

    def __init__(
        self,
        process: Lanczos,
        k: int,
        which: Which,
        tol: float,
        confidence: float | None,
        earlier: Sequence[Matrix],
        *,
        is_warm: bool,
    ) -> None:
        self.process, self.which, self.tol, self.confidence = process, which, tol, confidence
        self.matvecs = process.matvecs
        self.all, vectors = np.linalg.eigh(process.projected())
        m = len(self.all)
        low = [(i, -1, i + 1) for i in range(k)] if which in ("smallest", "both") else []
        high = [(m - 1 - i, 1, i + 1) for i in range(k)] if which in ("largest", "both") else []
        # index → (sign outwards, number at least as far out); the middle one of an odd number belongs to both ends
        self.ends = {i: (outward, rank) for i, outward, rank in low + high}
        self.chosen = sorted(self.ends)
        self.values = self.all[self.chosen]
        self.coordinates = vectors[:, self.chosen]
        # the rounding of the largest eigenvalue in the operator's dtype
        rounding = 20 * torch.finfo(process.operator.dtype).eps * float(np.abs(self.all).max())
        self.residuals = process.residuals(self.coordinates) + rounding
        self.likely_errors = self.residuals if confidence is not None else self._likely_errors(earlier)
        self.certificate = Certificate(process, self.all, vectors, is_shifted=is_warm)

    @property
    def converged(self) -> bool:
        """Whether the residuals are small, which costs nothing to check, and no eigenvalue can hide further out."""
        if not float((self.likely_errors / np.maximum(np.abs(self.values), 1e-300)).max()) <= self.tol:
            return False
        return self.confidence is None or float(self._odds_within_tol().sum()) <= 1 - self.confidence

    def _likely_errors(self, earlier: Sequence[Matrix]) -> Matrix:
        """residual²/gap (Kato 1949) or the change by the last two steps, whichever is larger.

        The gap is the distance to the nearest other Ritz value. In the first steps neither is reliable alone.
        """
        if self.process.is_complete:
            return self.residuals
        if len(earlier) < 2:
            return np.full(len(self.chosen), np.inf)
        apart = np.abs(self.values[:, None] - self.all)
        apart[np.arange(len(self.chosen)), self.chosen] = np.inf
        squares = self.residuals * np.minimum(1.0, self.residuals / np.maximum(apart.min(1), 1e-300))
        return np.asarray(np.maximum(squares, np.abs(self.values - earlier[0])))

    def _odds_within_tol(self) -> Matrix:
        """For every requested value, the odds of an error above `tol`. Only the outermost needs all places outside."""
        odds = []
        for i in self.chosen:
            places = self._distances(self.tol * abs(self.all[i]))
            odds.append(self._odds(i, places if self.ends[i][1] == 1 else places[:1])[0])
        return np.array(odds)

    def _distances(self, nearest: float) -> Matrix:
        scale = self.certificate.scale
        return np.geomspace(max(nearest, 1e-16 * scale), max(1e3 * scale, nearest), 100)

    def _odds(self, i: int, distances: Matrix) -> Matrix:
        """Probability that the eigenvalue at Ritz value i lies further out than each distance.

        The outermost one may be wherever the certificate allows it; the next ones lie before the first place where
        the certificate excludes that many eigenvalues.
        """
        outward, rank = self.ends[i]
        odds = self.certificate.probability(self.all[i] + outward * distances, rank)
        return np.maximum.accumulate(odds[::-1])[::-1] if rank == 1 else np.minimum.accumulate(odds)

    def _hiding_distance(self, i: int, nearest: float, share: float) -> float:
        """Distance beyond which the odds of a hidden eigenvalue are below their share; accurate to a half."""
        distances = self._distances(nearest)
        odds = self._odds(i, distances)
        return float(distances[np.argmax(odds <= share)]) if odds[-1] <= share else float("inf")

    @property
    def errors(self) -> Matrix:
        """How far each value can be from the truth."""
        return self.residuals if self.confidence is None else self._certified(1 - self.confidence, self.converged)

    def vectors(self) -> Tensor:
        """Ritz vectors (n, k); (n, 0) if the process has dropped some of its own."""
        return self.process.combined(self.coordinates if self.process.is_whole else self.coordinates[:, :0])

    def _certified(self, odds_to_fail: float, converged: bool) -> Matrix:
        """Distances within which all eigenvalues lie, except with these odds."""
        shares = np.full(len(self.chosen), odds_to_fail / len(self.chosen))
        if converged:  # the odds that it took to converge, and an equal part of the rest
            odds = self._odds_within_tol()
            shares = odds + (odds_to_fail - odds.sum()) / len(self.chosen)
        each = zip(self.chosen, self.residuals.tolist(), shares.tolist(), strict=True)
        errors = np.array([self._hiding_distance(*one) for one in each])
        if converged:  # the search is coarser than the test that was passed
            errors = np.minimum(errors, self.tol * np.abs(self.values))
        return errors

    def status(self, why_stopped: str) -> str:
        """The outcome in words, with advice if it has not converged."""
        converged = self.converged
        if converged and self.confidence is None:
            return (
                f"stopped on the residual, at an estimated relative error of {self.tol:g}; the errors are residuals, "
                "within which some eigenvalue lies: larger ones may hide"
            )
        if converged:
            return f"converged to a relative error of {self.tol:g}"
        if self.process.is_complete:
            return (
                f"not converged: in {self.process.operator.dtype} rounding alone exceeds a relative error of "
                f"{self.tol:g}; the eigenvalue is zero or nearly zero compared with the largest"
            )
        return (
            f"{why_stopped}: not converged to {self.tol:g}. The errors say what is known so far; "
            "raise max_matvecs, budget or tol"
        )
