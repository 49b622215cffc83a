"""What walks, slices, covariate shift, activations and local Hessians cost, in units of one forward+backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import wellcond as wc
from benchmarks.networks import Network
from benchmarks.timing import Clock, interleaved

POINTS = 21
STEPS = 8


def probes(network: Network, device: str, rounds: int) -> dict[str, Any]:
    """Costs in u of each measurement on one network, timed in turn with u itself."""
    problem = network.problem()
    optimizer = torch.optim.SGD(network.model.parameters(), lr=0.1, momentum=0.9)
    block = next(name for name, m in network.model.named_modules() if name.endswith(("2", "layer2.1")) and name)
    local = wc.local_hessian(problem, block)
    vectors = {part: torch.randn(getattr(local, part).exact.shape[1], device=device) for part in ("z", "weight")}
    tasks: dict[str, Callable[[], Any]] = {
        "u": network.forward_and_backward,
        f"landscape, {STEPS} steps": lambda: wc.landscape(problem, lr=0.1, steps=STEPS),
        f"loss_slice, {POINTS} points": lambda: wc.loss_slice(problem, points=POINTS),
        "covariate_shift, all layers": lambda: wc.covariate_shift(problem, optimizer),
        "activations": lambda: wc.activations(problem),
        "back_matching": lambda: wc.back_matching(problem),
        f"local_hessian of {block!r}": lambda: wc.local_hessian(problem, block),
        "  its H_z @ v, exact": lambda: local.z.exact @ vectors["z"],
        "  its H_z @ v, Gauss-Newton": lambda: local.z.gauss_newton @ vectors["z"],
        "  its H_W @ v, exact": lambda: local.weight.exact @ vectors["weight"],
        "  its H_W @ v, Gauss-Newton": lambda: local.weight.gauss_newton @ vectors["weight"],
    }
    seconds = interleaved(Clock(device), tasks, rounds, limit_s=20)
    unit = seconds.pop("u")
    costs = {name: value / unit for name, value in seconds.items()}
    print(f"  {network.name}: u = {1e3 * unit:.1f} ms")
    for name, cost in costs.items():
        print(f"    {name:34s} {cost:7.2f} u", flush=True)
    return {"network": network.name, "u_seconds": unit, "cost_u": costs}
