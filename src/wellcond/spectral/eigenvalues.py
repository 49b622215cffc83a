"""Extreme eigenvalues by block Lanczos, with bounds on their true error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from wellcond.curvature.operator import LinearOperator
from wellcond.errors import Interrupted
from wellcond.network.arithmetic import own_arithmetic
from wellcond.results import Progress, Result, Row, quantities
from wellcond.spectral.allowance import Allowance
from wellcond.spectral.certificate import Certificate
from wellcond.spectral.lanczos import MEMORY, Lanczos, Matrix, Operator, as_operator, in_a_row, noise, vectors_within

Which = Literal["largest", "smallest", "both"]


@dataclass(frozen=True)
class Eigenvalues(Result):
    """Some eigenvalues, ascending, and how far each can be from the truth.

    Attributes:
        values: (k,), ascending.
        errors: (k,). |value − eigenvalue| is at most this, for all k at once with a probability of 99 % over the random
            start: the residual ‖Av − λv‖, and the distance within which an eigenvalue further out could still hide.
        vectors: (n, k), the eigenvectors as columns; too large for JSON, which leaves them out. (n, 0) where they would
            have taken more than `memory`.
        matvecs: Products it took.
        converged: Whether every error is within `tol` times its eigenvalue.
        status: The same in words, with the cure if it has not.
        tol: The relative error that was asked for.
        which: The end of the spectrum that was asked for.
    """

    values: Tensor
    errors: Tensor
    vectors: Tensor = field(repr=False)
    matvecs: int
    converged: bool
    status: str
    tol: float
    which: Which

    def rows(self, step: int | None = None) -> list[Row]:
        named: dict[str, float] = {}
        if self.which in ("smallest", "both"):
            named[quantities.LAMBDA_MIN] = float(self.values[0])
            named[quantities.LAMBDA_MIN_ERROR] = float(self.errors[0])
        if self.which in ("largest", "both"):
            named[quantities.LAMBDA_MAX] = float(self.values[-1])
            named[quantities.LAMBDA_MAX_ERROR] = float(self.errors[-1])
        named[quantities.CONVERGED] = float(self.converged)
        rows = [Row(step, "", quantity, value, "") for quantity, value in named.items()]
        return [*rows, Row(step, "", quantities.MATVECS, float(self.matvecs), "products")]

    def __str__(self) -> str:
        pairs = zip(self.values.tolist(), self.errors.tolist(), strict=True)
        lines = [f"{value: .6e} ± {error:.1e}" for value, error in pairs]
        return "\n".join([*lines, f"{self.matvecs} matrix-vector products; {self.status}"])


@own_arithmetic()
def eigenvalues(
    operator: Operator,
    k: int = 1,
    which: Which = "largest",
    tol: float = 1e-3,
    confidence: float | None = 0.99,
    *,
    max_matvecs: int | None = None,
    budget: float | None = None,
    memory: float = MEMORY,
    start: Tensor | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Eigenvalues:
    """The k largest, smallest, or both ends of the (signed) spectrum of a symmetric operator.

    Block Lanczos with k starting vectors, so that eigenvalues of multiplicity up to k are all seen. It stops when
    every wanted eigenvalue is known to a *relative error* of `tol`: the residual is below it, and an eigenvalue
    further out than that would have shown itself with 99 % probability over the random start, whatever the matrix.
    It never stops because two estimates agree.

    Args:
        operator: Any operator of this library, or a symmetric tensor.
        k: How many, at each end that is asked for.
        which: `"largest"`, `"smallest"` or `"both"`.
        tol: Relative error.
        confidence: Probability, over the random start, with which the errors hold for the worst possible matrix. None
            asks for no such certificate: it stops when the estimated error, residual²/gap, is within `tol`, and the
            status says that larger eigenvalues may hide.
        max_matvecs: Give up after so many products and return what there is; by default n, at most 300 (or 20 k).
        budget: Seconds. A product that would end later is not begun, the first one excepted.
        memory: GiB for its vectors, beside what a product takes. Of a network so large that they do not fit, a single
            eigenvalue is found from the last few of them, without an eigenvector; several stop when it is full.
        start: (n,) or (n, j) approximate eigenvectors to start from, such as `.vectors` of an earlier call. They save
            the products that sharpen what is known already, not those that make sure nothing larger is hidden.
        seed: Of the random start.
        progress: Called as (what is being done, share of all work done).

    Returns:
        Values and error bounds, also if they have not converged.

    Raises:
        Interrupted: On Ctrl-C, with what was known as `.result`.

    Example:
        >>> s = eigenvalues(torch.diag(torch.tensor([-3.0, 0.0, 1.0, 2.0])), which="both")
        >>> s.values.round(decimals=4).tolist(), s.converged
        ([-3.0, 2.0], True)
    """
    operator = as_operator(operator)
    n = operator.shape[0]
    if operator.shape != (n, n):
        raise ValueError(f"a square matrix is needed, not {tuple(operator.shape)}.")
    if which not in ("largest", "smallest", "both"):
        raise ValueError(f'which is {which!r}; write "largest", "smallest" or "both".')
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}, but the matrix has {n} eigenvalues.")
    if not tol > 0:
        raise ValueError(f"tol is {tol}; it is a relative error and must be positive.")
    if which == "both":
        k = min(k, (n + 1) // 2)
    wanted = min(2 * k, n) if which == "both" else k
    if confidence is not None and not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it is a probability between 0 and 1, or None.")
    products = max_matvecs if max_matvecs is not None else (n if n <= 2000 else max(300, 20 * k))
    most = vectors_within(memory, operator, k)
    if k > 1 and most is not None:  # copies of Ritz values would pass for eigenvalues
        products = min(products, most)
    allowance = Allowance(products, budget)

    generator = torch.Generator().manual_seed(seed)
    if start is None and confidence is None and which != "smallest" and isinstance(operator, LinearOperator):
        start = operator.likely_start()
    process = Lanczos(operator, _start(operator, k, start, generator), generator, most)
    known: _Ritz | None = None
    try:
        with in_a_row(operator):
            while True:
                process.step()
                allowance.charge(process.matvecs - allowance.spent)
                m = sum(len(a) for a in process.diagonal)
                exhausted = process.is_complete or process.next_width > allowance.affordable
                # a look costs O(m³): look at every step while that is nothing beside a product
                if m < wanted or (m > 64 and (m // k) % (m // 64 + 1) and not exhausted):
                    continue
                known = _Ritz(process, k, which, tol, confidence, is_warm=start is not None)
                if progress is not None:
                    progress("eigenvalues", allowance.share)
                if known.converged or exhausted:
                    return known.result(allowance.why_stopped)
    except KeyboardInterrupt as interrupt:
        if known is None:
            raise
        raise Interrupted(known.result(f"interrupted after {known.matvecs} products")) from interrupt


class _Ritz:
    """The wanted Ritz pairs of a Lanczos process, and whether they have converged."""

    def __init__(
        self, process: Lanczos, k: int, which: Which, tol: float, confidence: float | None, *, is_warm: bool
    ) -> None:
        self.process, self.which, self.tol, self.confidence = process, which, tol, confidence
        self.matvecs = process.matvecs
        self.all, vectors = np.linalg.eigh(process.projected())
        m = len(self.all)
        low = [(i, -1, i + 1) for i in range(k)] if which in ("smallest", "both") else []
        high = [(m - 1 - i, 1, i + 1) for i in range(k)] if which in ("largest", "both") else []
        # index → (outwards, how many are at least as far out); the middle one of an odd few is at both ends
        self.ends = {i: (outward, rank) for i, outward, rank in low + high}
        self.chosen = sorted(self.ends)
        self.values = self.all[self.chosen]
        self.coordinates = vectors[:, self.chosen]
        # what rounding in the operator's dtype leaves of the largest eigenvalue
        rounding = 20 * torch.finfo(process.operator.dtype).eps * float(np.abs(self.all).max())
        self.residuals = process.residuals(self.coordinates) + rounding
        self.certificate = Certificate(process, self.all, vectors, is_shifted=is_warm)

    @property
    def converged(self) -> bool:
        """Residuals first: they cost nothing. Then: could an eigenvalue hide further out?"""
        likely = self.residuals if self.confidence is not None else self._likely_errors()
        if not float((likely / np.maximum(np.abs(self.values), 1e-300)).max()) <= self.tol:
            return False
        return self.confidence is None or float(self._odds_within_tol().sum()) <= 1 - self.confidence

    def _likely_errors(self) -> Matrix:
        """residual²/gap (Kato 1949), with the distance to the nearest other Ritz value as the gap."""
        apart = np.abs(self.values[:, None] - self.all)
        apart[np.arange(len(self.chosen)), self.chosen] = np.inf
        gaps = apart.min(1)
        return self.residuals * np.minimum(1.0, self.residuals / gaps) if len(self.all) > 1 else self.residuals

    def _odds_within_tol(self) -> Matrix:
        """Of every value that was asked for. Only for the outermost do all places further out have to be looked at."""
        odds = []
        for i in self.chosen:
            places = self._distances(self.tol * abs(self.all[i]))
            odds.append(self._odds(i, places if self.ends[i][1] == 1 else places[:1])[0])
        return np.array(odds)

    def _distances(self, nearest: float) -> Matrix:
        scale = self.certificate.scale
        return np.geomspace(max(nearest, 1e-16 * scale), max(1e3 * scale, nearest), 100)

    def _odds(self, i: int, distances: Matrix) -> Matrix:
        """How probable it is that the eigenvalue in the place of Ritz value i lies further out than each distance.

        The outermost one may be wherever the certificate allows it; the next ones lie before the first place where
        the certificate excludes that so many are there.
        """
        outward, rank = self.ends[i]
        odds = self.certificate.probability(self.all[i] + outward * distances, rank)
        return np.maximum.accumulate(odds[::-1])[::-1] if rank == 1 else np.minimum.accumulate(odds)

    def _hiding_distance(self, i: int, nearest: float, share: float) -> float:
        """Beyond which the odds of a hidden eigenvalue are below their share; found to a half."""
        distances = self._distances(nearest)
        odds = self._odds(i, distances)
        return float(distances[np.argmax(odds <= share)]) if odds[-1] <= share else float("inf")

    def result(self, why_stopped: str) -> Eigenvalues:
        converged = self.converged
        errors = self.residuals if self.confidence is None else self._certified(1 - self.confidence, converged)
        return Eigenvalues(
            torch.from_numpy(self.values.copy()),
            torch.from_numpy(errors),
            self.process.combined(self.coordinates if self.process.is_whole else self.coordinates[:, :0]),
            self.matvecs,
            converged,
            self._status(converged, why_stopped),
            self.tol,
            self.which,
        )

    def _certified(self, odds_to_fail: float, converged: bool) -> Matrix:
        """Distances that all eigenvalues are within, except with these odds."""
        shares = np.full(len(self.chosen), odds_to_fail / len(self.chosen))
        if converged:  # what it took to converge, and an equal part of the rest
            odds = self._odds_within_tol()
            shares = odds + (odds_to_fail - odds.sum()) / len(self.chosen)
        each = zip(self.chosen, self.residuals.tolist(), shares.tolist(), strict=True)
        errors = np.array([self._hiding_distance(*one) for one in each])
        if converged:  # the search is coarser than the test that was passed
            errors = np.minimum(errors, self.tol * np.abs(self.values))
        return errors

    def _status(self, converged: bool, why_stopped: str) -> str:
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
                f"{self.tol:g}; the eigenvalue is zero or nearly so beside the largest"
            )
        return (
            f"{why_stopped}: not converged to {self.tol:g}. The errors say what is known so far; "
            "raise max_matvecs, budget or tol"
        )


def _start(operator: Operator, k: int, given: Tensor | None, generator: torch.Generator) -> Tensor:
    """(n, k) starting vectors: what is given, with as much noise, since everything needs an honest chance to be seen."""
    block = noise(operator.shape[0], k, generator, operator)
    if given is not None:
        warm = given.detach().to(block).reshape(len(block), -1)[:, -k:]
        block[:, : warm.shape[1]] += warm / warm.norm(dim=0).clamp_min(1e-30)
    return block
