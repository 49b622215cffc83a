"""The trace, by Hutch++: better than Hutchinson's estimator, with an error bar."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.results import Row
from wellcond.spectral.lanczos import Operator

MIN_PROBES = 8
"""Fewest probes whose spread is worth calling an error bar."""


@dataclass(frozen=True)
class Trace:
    """An estimate of a trace. error: its standard error. converged: error ≤ tol · |value|."""

    value: float
    error: float
    matvecs: int
    converged: bool

    def rows(self) -> list[Row]:
        return [
            Row(None, "", "trace", self.value, ""),
            Row(None, "", "trace_error", self.error, ""),
            Row(None, "", "matvecs", float(self.matvecs), "products"),
        ]

    def __str__(self) -> str:
        word = "" if self.converged else "; the asked tolerance was not reached"
        return f"trace {self.value:.6g} ± {self.error:.2g} (standard error), {self.matvecs} products{word}"


def trace(
    operator: Operator, tol: float = 0.05, *, sketch: int = 8, max_matvecs: int = 2000, seed: int = 0
) -> Trace:
    """tr A of a symmetric operator, to a relative standard error of `tol`.

    Hutch++ (Meyer, Musco, Musco, Woodruff 2021) with an error bar: with Q an orthonormal basis of A applied to
    `sketch` random vectors,

        tr A = tr(QᵀAQ) + E[ωᵀ(I − QQᵀ) A (I − QQᵀ)ω],   ω uniform on {−1, 1}ⁿ.

    The first part is exact and takes the few large eigenvalues, as networks have, out of the variance; the second is
    Hutchinson's estimator on what is left, drawn until the standard error of its independent probes is met. The
    basis never sees those probes, so the estimate is unbiased and its error bar honest.

    Costs 2·sketch products plus one a probe, eight probes at least. sketch=0 is Hutchinson's estimator.

    >>> trace(torch.diag(torch.tensor([4.0, 2.0, 1.0]))).value
    7.0
    """
    n = operator.shape[0]
    generator = torch.Generator().manual_seed(seed)
    if n <= 2 * sketch + MIN_PROBES:  # no dearer than an estimate
        products = operator @ torch.eye(n, dtype=operator.dtype, device=operator.device)
        return Trace(float(products.diagonal().double().sum()), 0.0, n, True)

    def random_signs(count: int) -> Tensor:
        signs = torch.randint(0, 2, (n, count), generator=generator, dtype=torch.int8) * 2 - 1
        return signs.to(operator.device, operator.dtype)

    q = torch.linalg.qr(operator @ random_signs(sketch)).Q
    inside = float((q * (operator @ q)).sum(dtype=torch.float64))
    spent = 2 * sketch
    estimates: list[float] = []
    while True:
        probes = random_signs(min(MIN_PROBES, max_matvecs - spent) if estimates else MIN_PROBES)
        probes = probes - q @ (q.T @ probes)
        estimates += (probes * (operator @ probes)).sum(0, dtype=torch.float64).tolist()
        spent += probes.shape[1]
        value = inside + statistics.fmean(estimates)
        error = statistics.stdev(estimates) / len(estimates) ** 0.5
        converged = error <= tol * abs(value)
        if converged or spent >= max_matvecs:
            return Trace(value, error, spent, converged)
