"""What the top eigenvalue of the Hessian costs at a true error of 1e-3, compared with the peers; how often it fails."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import wellcond as wc
from benchmarks import peers
from benchmarks.networks import Network
from benchmarks.timing import Clock
from wellcond_papers.models import mlp

TRUE_ERROR = 1e-3
CERTIFICATE, RESIDUAL = "wellcond, error certified", "wellcond"
SETTINGS = (
    (CERTIFICATE, 0.99, TRUE_ERROR),
    (CERTIFICATE, 0.99, 0.1),
    (RESIDUAL, None, TRUE_ERROR),
    (RESIDUAL, None, 0.01),
)
"""Confidence and tolerance: the requested error, and a looser one, which may reach it too."""


class Recorded(wc.Hessian):
    """Keeps what it multiplied, so that an oracle can say after which product the answer was there."""

    def __init__(self, problem: wc.Problem) -> None:
        super().__init__(problem)
        self.pairs: list[tuple[Tensor, Tensor]] = []

    def __matmul__(self, v: Tensor) -> Tensor:
        product = super().__matmul__(v)
        self.pairs.append((v.detach().clone(), product.detach().clone()))
        return product

    def first_within(self, exact: float, error: float) -> int | None:
        """The first product after which the largest Ritz value is that close."""
        basis, image = (
            torch.cat([pair[i].reshape(len(pair[i]), -1) for pair in self.pairs], 1).double() for i in (0, 1)
        )
        orthonormal, r = torch.linalg.qr(basis)
        projected = torch.linalg.solve_triangular(r.T, (orthonormal.T @ image).T, upper=False).T
        for m in range(1, len(projected) + 1):
            ritz = torch.linalg.eigvalsh((projected[:m, :m] + projected[:m, :m].T) / 2)[-1]
            if abs(float(ritz) / exact - 1) < error:
                return m
        return None


def top_eigenvalue(network: Network, instance: int, device: str) -> list[dict[str, Any]]:
    """Every tool at every setting: what was asked, the true error, the cost. Set-up is part of the cost.

    u is timed before every run, and a cost is in units of the median of them all.
    """
    clock, for_peers = Clock(device), network.for_peers()
    tools, _ = peers.on(device)
    units: list[float] = []

    def timed(tool: str, asked: float, run: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
        units.append(clock(for_peers.forward_and_backward)[0])
        seconds, result = clock(run)
        return {"tool": tool, "instance": instance, "asked": asked, "seconds": seconds}, result

    recorded = Recorded(network.problem())
    top = wc.eigenvalues(recorded, tol=TRUE_ERROR, confidence=None)
    double = wc.Hessian(network.to(torch.float64).problem())
    close = wc.eigenvalues(double, tol=1e-5, confidence=None, start=top.vectors.double(), max_matvecs=40)
    exact = float(close.values[-1])
    ours = []
    for tool, confidence, tol in SETTINGS:

        def run(confidence: float | None = confidence, tol: float = tol) -> Any:
            return wc.eigenvalues(wc.Hessian(network.problem()), tol=tol, confidence=confidence)

        ours.append(timed(tool, tol, run))
    rows = []
    for row, top in ours:
        row |= {"true_error": abs(float(top.values[-1]) / exact - 1), "products": top.matvecs}
        if row["tool"] == CERTIFICATE:
            row["stated_error"] = float(top.errors[-1]) / exact
        rows.append(row)
    for tool in tools:
        for setting in tool.settings:
            row, value = timed(tool.name, setting, lambda tool=tool, setting=setting: tool.top(for_peers, setting))
            rows.append(row | {"true_error": abs(value / exact - 1)})
            if rows[-1]["true_error"] < TRUE_ERROR:
                break  # tighter settings cost more
    unit, oracle = statistics.median(units), recorded.first_within(exact, TRUE_ERROR)
    print(f"  {network.name}, seed {instance}: u = {1e3 * unit:.0f} ms, an oracle takes {oracle} products", flush=True)
    for row in rows:
        row["cost_u"] = row["seconds"] / unit
        asked = f"{row['tool']} asked {row['asked']:g}"
        products = f"{row['products']:3d} products" if "products" in row else ""
        print(f"    {asked:44s} {row['cost_u']:7.1f} u  error {row['true_error']:.1e}  {products}", flush=True)
    return [*rows, {"tool": "oracle", "instance": instance, "products": oracle}]


def false_stops(networks: int) -> list[dict[str, Any]]:
    """How often a `converged` value is further from the truth than requested, on small networks.

    Every second network has been trained for some steps. The truth comes from dense Hessians in float64 by torch.func.
    """
    counts: dict[tuple[float | None, float], list[tuple[bool, int]]] = {}
    for seed in range(networks):
        problem = _small(seed)
        exact = float(torch.linalg.eigvalsh(dense_hessian(problem))[-1])
        for confidence in (None, 0.99):
            for tol in (0.1, 0.01, 1e-3):
                top = wc.eigenvalues(wc.Hessian(problem), tol=tol, confidence=confidence, seed=seed)
                is_false = top.converged and abs(float(top.values[-1]) - exact) > tol * abs(exact)
                counts.setdefault((confidence, tol), []).append((is_false, top.matvecs))
    rows = [
        {"confidence": confidence, "asked": tol, "runs": len(runs), "false_stops": sum(false for false, _ in runs),
         "median_products": statistics.median(products for _, products in runs)}
        for (confidence, tol), runs in counts.items()
    ]  # fmt: skip
    for row in rows:
        asked = f"confidence {row['confidence']}, asked {row['asked']:g}"
        print(f"  {asked}: {row['false_stops']} false stops of {row['runs']}")
    return rows


def _small(seed: int) -> wc.Problem:
    generator = torch.Generator().manual_seed(seed)
    model = mlp([10, 16, 16, 4], init=("default", "he", "lecun")[seed % 3], seed=seed).double()
    x = torch.randn(64, 10, generator=generator).double()
    y = torch.randint(0, 4, (64,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(50 * (seed % 2)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return wc.Problem(model, nn.CrossEntropyLoss(), (x, y))


def dense_hessian(problem: wc.Problem) -> Tensor:
    (x, y), names = problem.batches[0], list(problem.params)
    params = [p.detach() for p in problem.params.values()]

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split([p.numel() for p in params])
        named = {name: part.view_as(p) for name, part, p in zip(names, parts, params, strict=True)}
        return problem.loss(functional_call(problem.model, named, (x,)), y)

    return torch.func.hessian(loss)(torch.cat([p.flatten() for p in params]))
