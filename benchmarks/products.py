"""Products, the trace, Kronecker factors and the layer table, compared with the peers, in units of forward+backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import wellcond as wc
from benchmarks import peers
from benchmarks.networks import Network
from benchmarks.timing import Clock, interleaved, peak_memory

STANDARD_ERROR = 0.05
PROBES = 8
"""Probes for the variance of a peer's trace."""


def products(network: Network, device: str, rounds: int) -> dict[str, Any]:
    """Costs on one network, all timed in turn; u is the median forward+backward of the same run."""
    clock, problem, for_peers = Clock(device), network.problem(), network.for_peers()
    tools, missing = peers.on(device)
    v = torch.randn(problem.size, generator=torch.Generator().manual_seed(1)).to(device)
    hessian, ggn = wc.Hessian(problem), wc.GGN(problem)
    tasks: dict[str, Callable[[], object]] = {
        "u": for_peers.forward_and_backward,
        "wellcond Hessian @ v": lambda: hessian @ v,
        "wellcond GGN @ v": lambda: ggn @ v,
        "wellcond kronecker_factors": lambda: wc.kronecker_factors(problem),
        "wellcond conditioning": lambda: wc.conditioning(problem),
        "wellcond neurons": lambda: wc.neurons(problem),
    }
    for tool in tools:
        product = tool.hvp(for_peers)
        tasks[f"{tool.name} Hessian @ v"] = lambda product=product: product(v)
    if tools:
        factors, failed = peers.kronecker_factors(for_peers)
        tasks |= factors
        missing = missing | failed
    seconds = interleaved(clock, tasks, rounds, limit_s=20)
    unit = seconds.pop("u")
    costs = {name: value / unit for name, value in seconds.items()}
    print(f"  {network.name}: u = {1e3 * unit:.1f} ms", flush=True)
    for name, cost in costs.items():
        print(f"    {name:34s} {cost:7.2f} u")
    result = {
        "network": network.name,
        "parameters": problem.size,
        "missing": missing,
        "u_seconds": unit,
        "cost_u": costs,
        "peak_memory_GiB": {
            "forward+backward": peak_memory(for_peers.forward_and_backward, device),
            "Hessian product": peak_memory(lambda: wc.Hessian(problem) @ v, device),
            "conditioning": peak_memory(lambda: wc.conditioning(problem), device),
        },
    }
    if network.batchnorm == "running":
        result["trace"] = _trace(problem, clock, unit, costs)
    return result


def _trace(problem: wc.Problem, clock: Clock, unit: float, costs: dict[str, float]) -> dict[str, Any]:
    """Cost of a standard error of 5 %; the peers use Hutchinson's estimator, whose variance says how many products."""
    hessian = wc.Hessian(problem)
    seconds, result = clock(lambda: wc.trace(hessian, STANDARD_ERROR))
    z = torch.randint(0, 2, (problem.size, PROBES), generator=torch.Generator().manual_seed(3)).to(problem.device)
    z = (2 * z - 1).to(problem.dtype)
    samples = (z * (hessian @ z)).sum(0).double()
    probes = float(samples.var()) / (STANDARD_ERROR * result.value) ** 2
    of_peers = {
        name.removesuffix(" Hessian @ v"): probes * cost
        for name, cost in costs.items()
        if name.endswith(" Hessian @ v") and not name.startswith("wellcond")
    }
    return {"value": result.value, "probes_of_peers": probes, "cost_u": {"wellcond": seconds / unit, **of_peers}}
