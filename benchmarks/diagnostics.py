"""Products, the top eigenvalue, the trace and the layer table, beside the peers, in units of forward+backward."""

from __future__ import annotations

import statistics
from typing import Any

import torch

import wellcond as wc
from benchmarks import peers
from benchmarks.networks import Network
from benchmarks.timing import Clock, interleaved, peak_memory
from wellcond.spectral.eigenvalues import Eigenvalues
from wellcond.spectral.trace import Trace

TRUE_ERROR = 1e-3
STANDARD_ERROR = 0.05


def diagnostics(instances: list[Network], device: str, rounds: int) -> dict[str, Any]:
    """All measurements of one network; costs in u, the median forward+backward of the same run.

    Args:
        instances: The network at several seeds. How many products the top eigenvalue takes depends on how close the
            next ones are, so it is measured on all of them; the rest on the first.
        device: Where the networks are.
        rounds: Of every timing.
    """
    clock = Clock(device)
    tools, missing = peers.installed() if device == "cpu" else ([], {"all peers": "timed on the CPU"})
    network = instances[0]
    problem = network.problem()
    results: dict[str, Any] = {"network": network.name, "parameters": problem.size, "missing": missing}
    results["peak_memory_GiB"] = {
        "forward+backward": peak_memory(network.forward_and_backward, device),
        "Hessian product": peak_memory(lambda: wc.Hessian(problem) @ torch.ones(problem.size, device=device), device),
        "top eigenvalue": peak_memory(lambda: wc.eigenvalues(wc.Hessian(problem), tol=0.1), device),
        "conditioning": peak_memory(lambda: wc.conditioning(problem), device),
    }
    results |= _products(network, problem, tools, clock, rounds)
    unit = results["u_seconds"]
    results["top_eigenvalue"] = [
        {"instance": i, **row}
        for i, instance in enumerate(instances)
        for row in _top_eigenvalue(instance, tools, clock, unit)
    ]
    results["trace"] = _trace(network, tools, clock, unit)
    return results


def _products(network: Network, problem: wc.Problem, tools: list[Any], clock: Clock, rounds: int) -> dict[str, Any]:
    v = torch.randn(problem.size, generator=torch.Generator().manual_seed(1)).to(network.x.device)
    hessian, ggn = wc.Hessian(problem), wc.GGN(problem)
    tasks = {
        "u": network.forward_and_backward,
        "wellcond Hessian @ v": lambda: hessian @ v,
        "wellcond GGN @ v": lambda: ggn @ v,
        "wellcond kronecker_factors": lambda: wc.kronecker_factors(problem),
        "wellcond conditioning": lambda: wc.conditioning(problem),
        "wellcond neurons": lambda: wc.neurons(problem),
    }
    for tool in tools:
        product = tool.hvp(network)
        tasks[f"{tool.name} Hessian @ v"] = lambda product=product: product(v)
    tasks |= _kronecker_peers(network) if tools else {}
    seconds = interleaved(clock, tasks, rounds)
    unit = seconds.pop("u")
    return {"u_seconds": unit, "cost_u": {name: value / unit for name, value in seconds.items()}}


def _kronecker_peers(network: Network) -> dict[str, Any]:
    """Kronecker factors by the peers, with one sampled label per example."""
    from curvlinops import FisherType, KFACLinearOperator

    layers = [m for m in network.model.modules() if isinstance(m, (torch.nn.Linear, torch.nn.Conv2d))]
    weights = [p for layer in layers for p in layer.parameters()]

    def curvlinops() -> object:
        operator = KFACLinearOperator(
            network.model, network.loss, weights, [(network.x, network.y)],
            fisher_type=FisherType.MC, mc_samples=1, check_deterministic=False,
        )  # fmt: skip
        return operator @ torch.ones(sum(p.numel() for p in weights))

    try:
        curvlinops()
    except Exception as error:
        print(f"curvlinops KFAC left out: {type(error).__name__}: {error}")
        return {}
    return {"curvlinops KFAC": curvlinops}


def _top_eigenvalue(network: Network, tools: list[Any], clock: Clock, unit: float) -> list[dict[str, Any]]:
    """Every tool at every setting: what was asked, the true error, the cost. Set-up is part of the cost."""
    double = network.to(torch.float64)
    reference = wc.eigenvalues(wc.Hessian(double.problem()), tol=1e-7, max_matvecs=400)
    exact = float(reference.values[-1])

    def wellcond(tol: float) -> Eigenvalues:
        return wc.eigenvalues(wc.Hessian(network.problem()), tol=tol)

    rows = []
    for tol in (0.2, 0.1, 0.03, 1e-3):
        seconds, result = clock(lambda tol=tol: wellcond(tol))
        cost = seconds / unit
        error = abs(float(result.values[-1]) / exact - 1)
        rows.append(
            {"tool": "wellcond", "asked": tol, "true_error": error, "cost_u": cost, "products": result.matvecs,
             "stated_error": float(result.errors[-1]) / exact, "converged": result.converged}
        )  # fmt: skip
    for tool in tools:
        for setting in tool.settings:
            seconds, value = clock(lambda tool=tool, setting=setting: tool.top(network, setting))
            error = abs(value / exact - 1)
            rows.append({"tool": tool.name, "asked": setting, "true_error": error, "cost_u": seconds / unit})
            if error < TRUE_ERROR:
                break  # tighter settings cost more
    return rows


def _trace(network: Network, tools: list[Any], clock: Clock, unit: float) -> list[dict[str, Any]]:
    """Cost of a standard error of 5 %. Peers use Hutchinson's estimator: its probes are counted from its variance."""

    def wellcond(seed: int) -> Trace:
        return wc.trace(wc.Hessian(network.problem()), STANDARD_ERROR, seed=seed)

    runs = [clock(lambda seed=seed: wellcond(seed)) for seed in range(3)]
    rows: list[dict[str, Any]] = [
        {"tool": "wellcond", "cost_u": statistics.median(s for s, _ in runs) / unit,
         "value": [r.value for _, r in runs], "standard_error": [r.error for _, r in runs]}
    ]  # fmt: skip
    if not tools:
        return rows
    hessian = wc.Hessian(network.problem())
    z = (torch.randint(0, 2, (hessian.shape[0], 32), generator=torch.Generator().manual_seed(3)) * 2 - 1).float()
    samples = (z * (hessian @ z)).sum(0).double()
    value = statistics.fmean(r.value for _, r in runs)
    probes = float(samples.var()) / (STANDARD_ERROR * value) ** 2
    for tool in tools:
        if tool.settings:
            per_probe = clock(lambda tool=tool: tool.trace(network, 10))[0] / 10 / unit
            rows.append({"tool": tool.name, "cost_u": probes * per_probe, "probes": probes, "u_a_probe": per_probe})
    return rows
