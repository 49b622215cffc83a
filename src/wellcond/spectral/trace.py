"""The trace with an error bar: layer by layer for curvature matrices, by Hutch++ for any other operator."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.curvature.over_parameters import CurvatureOperator
from wellcond.network.arithmetic import own_arithmetic
from wellcond.results import Progress, Result, Row, quantities
from wellcond.spectral.lanczos import Operator

MIN_PROBES = 8
"""Fewest probes whose spread is worth calling an error bar."""
PILOT = 4
"""Probes of every stratum before the rest are shared out by their spread."""
STRATA_OF_A_SIZE = 8
"""The last so many modules are a stratum each, before them pairs, then fours, …: probing the end is nearly free."""


@dataclass(frozen=True)
class Trace(Result):
    """An estimate of a trace.

    Attributes:
        value: The estimate.
        error: Its standard error.
        matvecs: Products it took.
        converged: Whether the error is at most `tol` · |value|.
    """

    value: float
    error: float
    matvecs: int
    converged: bool

    def rows(self, step: int | None = None) -> list[Row]:
        return [
            Row(step, "", quantities.TRACE, self.value, ""),
            Row(step, "", quantities.TRACE_ERROR, self.error, ""),
            Row(step, "", quantities.CONVERGED, float(self.converged), ""),
            Row(step, "", quantities.MATVECS, float(self.matvecs), "products"),
        ]

    def __str__(self) -> str:
        word = "" if self.converged else "; the asked tolerance was not reached"
        return f"trace {self.value:.6g} ± {self.error:.2g} (standard error), {self.matvecs} products{word}"


@own_arithmetic()
def trace(
    operator: Operator,
    tol: float = 0.05,
    *,
    max_matvecs: int = 2000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Trace:
    """tr A of a symmetric operator, to a relative standard error of `tol`.

    The base is Hutchinson's estimator, tr A = E[zᵀAz] with z uniform on {−1, 1}ⁿ; its noise is the mass of A off the
    diagonal. Two ways to have less of it, both unbiased and with an error bar from independent probes:

    Curvature matrices are summed layer by layer, tr A = Σ_l tr A_ll (stratified sampling). The blocks between layers,
    most of the noise and none of the trace, never enter; layers with more spread get more probes (Neyman's allocation);
    and the layers that have most of it are the last ones, whose blocks cost next to nothing.

    Other operators are deflated first (Hutch++, Meyer, Musco, Musco and Woodruff 2021): exactly on the range of A times
    eight random vectors, by probes on the rest.

    Args:
        operator: Any operator of this library, or a symmetric tensor.
        tol: Relative standard error.
        max_matvecs: Give up after so many products and return what there is.
        seed: Of the probes.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The estimate and its standard error, also if `tol` was not reached.

    Example:
        >>> trace(torch.diag(torch.tensor([4.0, 2.0, 1.0]))).value
        7.0
    """
    generator = torch.Generator().manual_seed(seed)
    if isinstance(operator, CurvatureOperator):
        return _stratified(operator, tol, max_matvecs, generator, progress)
    return _hutch_plus_plus(operator, tol, max_matvecs, generator, progress)


def _stratified(
    operator: CurvatureOperator, tol: float, max_matvecs: int, generator: torch.Generator, progress: Progress | None
) -> Trace:
    """Σ_l mean(z_lᵀ A_ll z_l), with variance Σ_l s_l²/m_l for m_l probes of spread s_l.

    At a cost of c_l per probe, the least total cost has m_l ∝ s_l/√c_l.
    """
    strata = _strata(operator.names)
    # a block's product differentiates through what lies behind its first parameter
    roots = [math.sqrt(1 - stratum[0] / len(operator.names)) for stratum in strata]
    sizes = [sum(operator.params[operator.names[i]].numel() for i in stratum) for stratum in strata]
    samples: list[list[float]] = [[] for _ in strata]
    wanted = [max(PILOT, MIN_PROBES // len(strata))] * len(strata)
    while True:
        chosen = [i for i, count in enumerate(wanted) if count > 0]
        probes = [_random_signs(sizes[i], wanted[i], operator, generator) for i in chosen]
        products = operator.block_products([(strata[i], z) for i, z in zip(chosen, probes, strict=True)])
        for i, z, az in zip(chosen, probes, products, strict=True):
            samples[i] += (z * az).sum(0, dtype=torch.float64).tolist()
        value = sum(map(statistics.fmean, samples))
        spreads = [statistics.stdev(s) for s in samples]
        error = math.sqrt(sum(s**2 / len(drawn) for s, drawn in zip(spreads, samples, strict=True)))
        spent = sum(map(len, samples))
        converged = error <= tol * abs(value)
        if progress is not None:
            progress("trace", min(spent / max_matvecs, 1.0))
        if converged or spent >= max_matvecs:
            return Trace(value, error, spent, converged)
        target = max(tol * abs(value), 1e-300)
        budget = sum(s * root for s, root in zip(spreads, roots, strict=True)) / target**2
        shares = [s / root * budget for s, root in zip(spreads, roots, strict=True)]
        wanted = [
            min(max(0, math.ceil(share) - len(drawn)), len(drawn), max_matvecs - spent)  # at most doubled at a time
            for share, drawn in zip(shares, samples, strict=True)
        ]
        if not any(wanted):
            wanted = [int(s == max(spreads)) for s in spreads]


def _strata(names: tuple[str, ...]) -> list[list[int]]:
    """Positions of the parameters, by the module that owns them, the early ones of a deep network merged."""
    modules: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        modules.setdefault(name.rpartition(".")[0], []).append(i)
    left, strata, size = list(modules.values()), [], 1
    while left:
        for _ in range(STRATA_OF_A_SIZE):
            if left:
                strata.append([i for module in left[-size:] for i in module])
                del left[-size:]
        size *= 2
    return strata[::-1]


def _hutch_plus_plus(
    operator: Operator, tol: float, max_matvecs: int, generator: torch.Generator, progress: Progress | None
) -> Trace:
    """tr A = tr(QᵀAQ) + E[ωᵀ(I − QQᵀ) A (I − QQᵀ)ω]; the basis Q never sees the probes ω."""
    n, sketch = operator.shape[0], 8
    if n <= 2 * sketch + MIN_PROBES:  # no dearer than an estimate
        products = operator @ torch.eye(n, dtype=operator.dtype, device=operator.device)
        return Trace(float(products.diagonal().double().sum()), 0.0, n, True)
    q = torch.linalg.qr(operator @ _random_signs(n, sketch, operator, generator)).Q
    inside = float((q * (operator @ q)).sum(dtype=torch.float64))
    estimates: list[float] = []
    while True:
        probes = _random_signs(n, MIN_PROBES, operator, generator)
        probes = probes - q @ (q.T @ probes)
        estimates += (probes * (operator @ probes)).sum(0, dtype=torch.float64).tolist()
        value = inside + statistics.fmean(estimates)
        error = statistics.stdev(estimates) / len(estimates) ** 0.5
        spent = 2 * sketch + len(estimates)
        converged = error <= tol * abs(value)
        if progress is not None:
            progress("trace", min(spent / max_matvecs, 1.0))
        if converged or spent >= max_matvecs:
            return Trace(value, error, spent, converged)


def _random_signs(n: int, count: int, operator: Operator, generator: torch.Generator) -> Tensor:
    signs = torch.randint(0, 2, (n, count), generator=generator, dtype=torch.int8) * 2 - 1
    return signs.to(operator.device, operator.dtype)
