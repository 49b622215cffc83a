"""Rates: stated bounds on eigenvalues and traces hold as often as is said, by an exact binomial test at 1 %."""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import wellcond as wc
from stress.models import Draw

EIGENVALUES_MAY_MISS, TRACE_MAY_MISS = 0.01, 0.05
"""|value − truth| ≤ error for all k values at once in 99 % of runs; |trace − truth| ≤ 2 · error in 95 %."""
SIGNIFICANCE = 0.01
BUDGETS = (None, None, None, 2, 3, 4, 6, 10)
"""Products per wanted eigenvalue after which it must stop; None leaves it free."""


# the test


def tail(misses: int, runs: int, rate: float) -> float:
    """P(at least this number of misses) of a binomial."""
    if misses <= 0 or rate >= 1:
        return 1.0
    if rate <= 0:
        return 0.0
    logs = [
        math.lgamma(runs + 1) - math.lgamma(i + 1) - math.lgamma(runs - i + 1)
        + i * math.log(rate) + (runs - i) * math.log1p(-rate)
        for i in range(misses, runs + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(map(math.exp, logs)))


def interval(misses: int, runs: int, confidence: float = 0.99) -> tuple[float, float]:
    """Clopper and Pearson's interval of the rate of misses."""
    outside = (1 - confidence) / 2
    low = _root(lambda rate: tail(misses, runs, rate) - outside) if misses else 0.0
    high = _root(lambda rate: outside - (1 - tail(misses + 1, runs, rate))) if misses < runs else 1.0
    return low, high


def _root(rising: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


@dataclass(frozen=True)
class Run:
    """One run: the groups it counts in, whether its bound was missed, and how often it may be.

    Attributes:
        groups: Names of rows of the table.
        missed: Whether the truth lay outside.
        may_miss: The stated share.
        command: What repeats it.
    """

    groups: tuple[str, ...]
    missed: bool
    may_miss: float
    command: str


@dataclass(frozen=True)
class Rate:
    """A row of the table."""

    group: str
    misses: int
    runs: int
    may_miss: float
    example: str

    @property
    def p_value(self) -> float:
        return tail(self.misses, self.runs, self.may_miss)

    @property
    def is_failure(self) -> bool:
        return self.p_value < SIGNIFICANCE

    def __str__(self) -> str:
        low, high = interval(self.misses, self.runs)
        word = f"FAILS, as by {self.example}" if self.is_failure else ""
        return (
            f"{self.group:38} {self.misses:5} of {self.runs:6} missed  {100 * self.misses / self.runs:6.2f} % "
            f"({100 * low:5.2f} to {100 * high:5.2f} %), "
            f"{100 * self.may_miss:g} % stated, p = {self.p_value:.2g} {word}"
        )


def rates(runs: Iterable[Run]) -> list[Rate]:
    """By group, in the order of their names."""
    by_group: dict[str, list[Run]] = {}
    for run in runs:
        for group in run.groups:
            by_group.setdefault(group, []).append(run)
    return [
        Rate(g, sum(r.missed for r in rs), len(rs), rs[0].may_miss, next((r.command for r in rs if r.missed), ""))
        for g, rs in sorted(by_group.items())
    ]


# matrices


def clusters(n: int, g: torch.Generator) -> Tensor:
    """A few multiple eigenvalues above a bulk, as where classes are alike."""
    tops = torch.linspace(5, 4, 2 + int(torch.randint(4, (), generator=g)), dtype=torch.float64)
    copies = tops.repeat_interleave(1 + int(torch.randint(4, (), generator=g)))[: n // 2]
    return torch.cat([torch.rand(n - len(copies), generator=g, dtype=torch.float64), copies])


def close_clusters(n: int, g: torch.Generator) -> Tensor:
    tops = torch.tensor([5.0, 5, 5, 4.9, 4.9, 4.8], dtype=torch.float64)
    return torch.cat([torch.rand(n - 6, generator=g, dtype=torch.float64), tops])


def hessian_like(n: int, g: torch.Generator) -> Tensor:
    tops = torch.tensor([50.0, 30, 20, 15, 12, 10, 8, 6, 4, 3], dtype=torch.float64)
    return torch.cat([0.1 * torch.randn(n - 10, generator=g, dtype=torch.float64), tops])


def wishart(n: int, g: torch.Generator) -> Tensor:
    root = torch.randn(n, n, generator=g, dtype=torch.float64)
    return torch.linalg.eigvalsh(root @ root.T / n)


SPECTRA: dict[str, Callable[[int, torch.Generator], Tensor]] = {
    "clusters": clusters,
    "close clusters": close_clusters,
    "hessian-like": hessian_like,
    "wishart": wishart,
    "logarithmic": lambda n, g: torch.logspace(0, -8, n, dtype=torch.float64),
    "linear": lambda n, g: torch.linspace(0, 1, n, dtype=torch.float64),
    "symmetric": lambda n, g: torch.linspace(-1, 1, n, dtype=torch.float64),
    "power 1": lambda n, g: 1 / torch.arange(1, n + 1, dtype=torch.float64),
    "power 2": lambda n, g: 1 / torch.arange(1, n + 1, dtype=torch.float64) ** 2,
    "identity": lambda n, g: torch.ones(n, dtype=torch.float64),
    "low rank": lambda n, g: torch.cat([torch.zeros(n - 3), torch.tensor([1.0, 1.0, 2.0])]).double(),
}


def random_matrix(draw: Draw, sizes: tuple[int, ...]) -> tuple[str, Tensor, float]:
    """Its spectrum's name, a symmetric matrix, and the factor that it was brought to."""
    name, n = draw.choice(list(SPECTRA)), draw.choice(sizes)
    g = torch.Generator().manual_seed(draw.randrange(2**31))
    basis = torch.linalg.qr(torch.randn(n, n, generator=g, dtype=torch.float64)).Q
    factor = 1.0 if draw.random() < 0.5 else 10.0 ** draw.uniform(-30, 30)
    a = factor * ((basis * SPECTRA[name](n, g)) @ basis.T)
    return name, ((a + a.T) / 2).to(torch.float64 if draw.random() < 0.6 else torch.float32), factor


def eigenvalue_run(seed: int, device: str) -> Iterator[Run]:
    draw = random.Random(seed)
    name, a, factor = random_matrix(draw, (30, 60, 120))
    k, which = draw.randint(1, 8), draw.choice(["largest", "largest", "smallest", "both"])
    tol, products = draw.choice([0.3, 0.1, 0.02, 1e-2, 1e-3, 1e-9]), draw.choice(BUDGETS)
    most = None if products is None else products * k
    result = wc.eigenvalues(a.to(device), k, which, tol, max_matvecs=most, seed=seed)  # type: ignore[arg-type]
    values = torch.linalg.eigvalsh(a.double())
    truth = {"largest": values[-k:], "smallest": values[:k], "both": torch.cat([values[:k], values[-k:]])}[which]
    command = f"python -m stress --bound {seed} --device {device}"
    state = "converged" if result.converged else "not converged"
    kind = str(a.dtype).removeprefix("torch.")
    if result.values.shape != truth.shape:
        yield Run((f"eigenvalues k = {k}, {state}",), True, EIGENVALUES_MAY_MISS, command)
        return
    off = (result.values - truth).abs()
    # the reference's own rounding
    missed = not bool((off <= 1.0001 * result.errors + 1e-14 * values.abs().max()).all())
    groups = (
        f"eigenvalues k = {k}, {state}", f"eigenvalues {which}, {state}", f"eigenvalues {kind}, {state}",
        f"eigenvalues of {name}", f"eigenvalues at {scale_name(factor)}, {kind}",
    )  # fmt: skip
    yield Run(groups, missed, EIGENVALUES_MAY_MISS, command)
    if result.converged:
        beyond = not bool((off <= 1.0001 * tol * truth.abs() + 1e-14 * values.abs().max()).all())
        yield Run((f"eigenvalues k = {k}, within tol",), beyond, EIGENVALUES_MAY_MISS, command)


def scale_name(factor: float) -> str:
    return "order 1" if factor == 1 else "1e-30 to 1e-10" if factor < 1e-10 else "1e-10 to 1e30"


def trace_run(seed: int, device: str) -> Iterator[Run]:
    draw = random.Random(seed)
    tol = draw.choice([0.1, 0.05, 0.02])
    if draw.random() < 0.6:
        name, a, factor = random_matrix(draw, (30, 120, 250))
        operator: Any = a.to(device)
        group = f"trace of {name}"
        truth, allowed = float(a.double().trace()), torch.finfo(a.dtype).eps * len(a) * float(a.double().norm())
    else:
        group, problem = random_problem(draw, device)
        kind = draw.choice([wc.GGN, wc.Hessian])
        operator = kind(problem)
        dense = operator.dense()
        truth, allowed, factor = float(dense.trace()), 1e-10 * float(dense.norm()), 1.0
        group = f"trace of a {kind.__name__}, {group}"
    result = wc.trace(operator, tol, max_matvecs=draw.choice([12, 25, 50, 100, 200]), seed=seed)
    missed = not abs(result.value - truth) <= 2 * result.error + allowed
    command = f"python -m stress --bound {seed} --device {device}"
    state = "converged" if result.converged else "not converged"
    yield Run((group, f"trace, tol {tol}, {state}", f"trace at {scale_name(factor)}"), missed, TRACE_MAY_MISS, command)


def random_problem(draw: Draw, device: str) -> tuple[str, wc.Problem]:
    """A network whose layers are tiny, narrow or ordinary."""
    name = draw.choice(["one unit", "narrow", "ordinary", "linear"])
    widths = {"one unit": [4, 1, 1, 3], "narrow": [6, 2, 4], "ordinary": [8, 8, 8, 4], "linear": [8, 4]}[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.randrange(8))
        layers: list[nn.Module] = []
        for i, o in itertools.pairwise(widths):
            layers += [nn.Linear(i, o), nn.Tanh()]
        model = nn.Sequential(*layers[:-1]).double().to(device)
        batch = (torch.randn(32, widths[0]).double() + 1).to(device), torch.randint(0, widths[-1], (32,)).to(device)
    return name, wc.Problem(model, nn.CrossEntropyLoss(), batch)


TRACES = 4
"""One in this number of runs is of a trace."""


def run_bound(seed: int, device: str) -> list[Run]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list((eigenvalue_run if seed % TRACES else trace_run)(seed, device))


def run_bounds(job: tuple[list[int], str]) -> list[Run]:
    """One part of the runs, in a process of its own."""
    torch.set_num_threads(1)
    seeds, device = job
    return [run for seed in seeds for run in run_bound(seed, device)]
