"""Extreme eigenvalues by block Lanczos, with bounds on their true error."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from wellcond.network.arithmetic import own_arithmetic
from wellcond.results import Progress, Result, Row, quantities
from wellcond.spectral.lanczos import Lanczos, Operator

CONFIDENCE = 0.99
"""Probability, over the random start, with which the bounds hold for the worst possible matrix."""

Which = Literal["largest", "smallest", "both"]


@dataclass(frozen=True)
class Eigenvalues(Result):
    """Some eigenvalues, ascending, and how far each can be from the truth.

    Attributes:
        values: (k,), ascending.
        errors: (k,). |value − eigenvalue| is at most this: the residual ‖Av − λv‖, and the distance at which an
            eigenvalue further out could still hide from the random start, with a probability below 1 %.
        vectors: (n, k), the eigenvectors as columns; too large for JSON, which leaves them out.
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
    *,
    max_matvecs: int | None = None,
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
        max_matvecs: Give up after so many products and return what there is; by default n, at most 300 (or 20 k).
        start: (n,) or (n, j) approximate eigenvectors to start from, such as `.vectors` of an earlier call. They save
            the products that sharpen what is known already, not those that make sure nothing larger is hidden.
        seed: Of the random start.
        progress: Called as (what is being done, share of all work done).

    Returns:
        Values and error bounds, also if they have not converged.

    Example:
        >>> s = eigenvalues(torch.diag(torch.tensor([-3.0, 0.0, 1.0, 2.0])), which="both")
        >>> s.values.round(decimals=4).tolist(), s.converged
        ([-3.0, 2.0], True)
    """
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
    budget = max_matvecs if max_matvecs is not None else (n if n <= 2000 else max(300, 20 * k))

    generator = torch.Generator().manual_seed(seed)
    block, variance = _start(n, k, start, generator)
    process = Lanczos(operator, block, generator)
    while True:
        process.step()
        m = sum(len(a) for a in process.diagonal)
        exhausted = process.is_complete or process.matvecs + process.next_width > budget
        # a look costs O(m³): look at every step while that is nothing beside a product
        if m < k or (m > 64 and (m // k) % (m // 64 + 1) and not exhausted):
            continue
        ritz = _Ritz(process, k, which, tol, variance)
        if progress is not None:
            progress("eigenvalues", min(process.matvecs / budget, 1.0))
        if ritz.converged or exhausted:
            return ritz.result()


class _Ritz:
    """The wanted Ritz pairs of a Lanczos process, and whether they have converged."""

    def __init__(self, process: Lanczos, k: int, which: Which, tol: float, variance: float) -> None:
        self.process, self.which, self.tol, self.variance = process, which, tol, variance
        self.all, vectors = np.linalg.eigh(process.projected())
        m = len(self.all)
        low = list(range(min(k, m))) if which in ("smallest", "both") else []
        high = list(range(max(m - k, 0), m)) if which in ("largest", "both") else []
        self.innermost = [(i, -1.0) for i in low[-1:]] + [(i, 1.0) for i in high[:1]]
        self.outward = dict.fromkeys(low, -1.0) | dict.fromkeys(high, 1.0)
        self.chosen = sorted(self.outward)
        self.values = self.all[self.chosen]
        self.coordinates = vectors[:, self.chosen]
        # what rounding in the operator's dtype leaves of the largest eigenvalue
        rounding = 10 * torch.finfo(process.operator.dtype).eps * float(np.abs(self.all).max())
        self.residuals = process.residuals(self.coordinates) + rounding

    @property
    def converged(self) -> bool:
        """Residuals first: they cost nothing. Then: could an eigenvalue hide beyond the innermost wanted one?"""
        if not float((self.residuals / np.maximum(np.abs(self.values), 1e-300)).max()) <= self.tol:
            return False
        return not any(self._may_hide(i, sign, self.tol * abs(self.all[i])) for i, sign in self.innermost)

    def _may_hide(self, i: int, outward: float, distance: float) -> bool:
        beyond = float(self.all[i]) + outward * float(distance)
        return self.process.hidden_probability(beyond, self.variance) > 1 - CONFIDENCE

    def hiding_distance(self, i: int, at_least: float) -> float:
        """How far beyond Ritz value i an unseen eigenvalue could be; found to a factor of 1.5."""
        scale = max(float(np.abs(self.all).max()), 1e-140)  # a matrix of zeros has no scale of its own
        distance = max(at_least, 1e-16 * scale)
        while self._may_hide(i, self.outward[i], distance):
            distance *= 1.5
            if distance > 1e3 * scale:
                return float("inf")
        return distance

    def result(self) -> Eigenvalues:
        converged = self.converged
        pairs = zip(self.chosen, self.residuals.tolist(), strict=True)
        errors = np.array([self.hiding_distance(i, residual) for i, residual in pairs])
        if converged:  # the search is coarser than the test that was passed
            errors = np.minimum(errors, self.tol * np.abs(self.values))
        basis = self.process.basis
        return Eigenvalues(
            torch.from_numpy(self.values.copy()),
            torch.from_numpy(errors),
            basis.T @ torch.from_numpy(self.coordinates).to(basis),
            self.process.matvecs,
            converged,
            self._status(converged),
            self.tol,
            self.which,
        )

    def _status(self, converged: bool) -> str:
        if converged:
            return f"converged to a relative error of {self.tol:g}"
        if self.process.is_complete:
            return (
                f"not converged: in {self.process.operator.dtype} rounding alone exceeds a relative error of "
                f"{self.tol:g}; the eigenvalue is zero or nearly so beside the largest"
            )
        return (
            f"not converged to {self.tol:g} after {self.process.matvecs} products; "
            "the errors say what is known so far. Raise max_matvecs or tol"
        )


def _start(n: int, k: int, start: Tensor | None, generator: torch.Generator) -> tuple[Tensor, float]:
    """(n, k) starting vectors and the variance of the random part of each entry.

    Warm directions are mixed half and half with noise: the bound needs an honest chance of seeing everything.
    """
    noise = torch.randn(n, k, generator=generator, dtype=torch.float64) / n**0.5
    if start is None:
        return noise, 1 / n
    warm = start.detach().double().cpu().reshape(n, -1)[:, -k:]
    noise[:, : warm.shape[1]] += warm / warm.norm(dim=0).clamp_min(1e-300)
    return noise, 1 / (2 * n)
