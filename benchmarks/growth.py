"""How cost grows with depth, width and the number of examples; and two large cases that must fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import wellcond as wc
from benchmarks.timing import Clock, interleaved, peak_memory
from wellcond_papers.models import mlp, resnet

BASE = {"depth": 8, "width": 128, "examples": 512}
RANGES = {"depth": (4, 8, 16, 32), "width": (64, 128, 256, 512), "examples": (256, 512, 1024, 2048)}
SPECTRUM_EXAMPLES = {"depth": 64, "width": 64}
SPECTRUM_RANGES = {"examples": (32, 64, 128, 256)}
LIMIT_S = 1.0
"""For all rounds of one measurement at one size."""


def growth(device: str, rounds: int) -> dict[str, Any]:
    """Seconds of each measurement along each axis, with the slope of log time against log size; and the large cases."""
    return {"base": BASE, "axes": slopes(device, rounds), **large_cases(device)}


def slopes(device: str, rounds: int) -> dict[str, Any]:
    """By axis and measurement: sizes, seconds and the slope."""
    clock = Clock(device)
    axes = {}
    for axis, sizes in RANGES.items():
        measured = {}
        for name, task in _measurements().items():
            exact = name == "spectrum(Fisher)"
            chosen = SPECTRUM_RANGES.get(axis, sizes) if exact else sizes
            examples = SPECTRUM_EXAMPLES.get(axis) if exact else None
            seconds = [_seconds(clock, task, device, axis, size, examples, rounds) for size in chosen]
            measured[name] = {"sizes": chosen, "seconds": seconds, "slope": slope(chosen, seconds)}
            text = ", ".join(f"{1e3 * s:.1f}" for s in seconds)
            print(f"  {name:17s} against {axis:9s} slope {measured[name]['slope']:5.2f}  ({text} ms)", flush=True)
        axes[axis] = measured
    return axes


def large_cases(device: str) -> dict[str, Any]:
    """The exact Fisher spectrum of a million parameters, and the layer table of ResNet-1202."""
    clock = Clock(device)
    million = _problem([784, 700, 500, 300, 10], 200, device)
    spectrum = {"examples": 200} | _large(
        clock, million, lambda: wc.spectrum(wc.Fisher(million)),
        lambda result: {"side": result.side, "eigenvalues": len(result.values), "lambda_max": result.lambda_max},
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(16, 3, 32, 32, generator=generator), torch.randint(0, 10, (16,), generator=generator)
    deep = wc.Problem(resnet(1202, seed=0).to(device), nn.CrossEntropyLoss(), batch)
    layers = {"batch": 16} | _large(clock, deep, lambda: wc.conditioning(deep), lambda result: {"layers": len(result)})
    return {"million parameters, exact Fisher spectrum": spectrum, "ResNet-1202, layer table": layers}


def slope(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """Least-squares slope in log-log over the larger half, where the constant part has faded."""
    points = [(math.log(s), math.log(t)) for s, t in zip(sizes, seconds, strict=True)][-3:]
    mean_x, mean_y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def _measurements() -> dict[str, Callable[[wc.Problem], Callable[[], object]]]:
    def product(problem: wc.Problem) -> Callable[[], object]:
        hessian, v = wc.Hessian(problem), torch.ones(problem.size, device=problem.device)
        return lambda: hessian @ v

    return {
        "conditioning": lambda problem: lambda: wc.conditioning(problem),
        "Hessian @ v": product,
        "diagnose": lambda problem: lambda: wc.diagnose(problem),
        "spectrum(Fisher)": lambda problem: lambda: wc.spectrum(wc.Fisher(problem)),
    }


def _seconds(clock: Clock, task: Any, device: str, axis: str, size: int, examples: int | None, rounds: int) -> float:
    setting = BASE | ({"examples": examples} if examples else {}) | {axis: size}
    problem = _problem([784, *[setting["width"]] * (setting["depth"] - 1), 10], setting["examples"], device)
    return interleaved(clock, {"task": task(problem)}, rounds, LIMIT_S)["task"]


def _problem(sizes: list[int], examples: int, device: str) -> wc.Problem:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(examples, sizes[0], generator=generator)
    y = torch.randint(0, sizes[-1], (examples,), generator=generator)
    return wc.Problem(mlp(sizes, init="he", seed=0).to(device), nn.CrossEntropyLoss(), (x, y))


def _large(
    clock: Clock, problem: wc.Problem, measure: Callable[[], Any], facts: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    """Seconds, peak memory and facts of one measurement of a large network."""
    measured: dict[str, Any] = {}

    def run() -> None:
        seconds, result = clock(measure)
        measured.update(seconds=seconds, **facts(result))

    memory = peak_memory(run, str(problem.device))
    print(f"  {problem.size:,} parameters: {measured}, {memory or 0:.2f} GiB", flush=True)
    return {"parameters": problem.size, "peak_GiB": memory, **measured}
