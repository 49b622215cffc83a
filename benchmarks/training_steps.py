"""What a training step costs with BNP, compared with BatchNorm and plain SGD, on the networks of lange2022."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import wellcond as wc
from benchmarks.timing import Clock, interleaved, peak_memory
from wellcond_papers.models import resnet

Step = Callable[[], None]


def training_steps(device: str, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds, ratios and peak memory of a step for every network and method."""
    cases = [(f"MLP 3072-100-100-10 (table 1), batch {n}", table_1, (n, 3072)) for n in (16, 256, 512)]
    # a GPU needs larger batches than the source's before it, and not the launching of kernels, takes the time
    for n in (128, 2048) if device.startswith("cuda") else (128,):
        cases += [(f"CNN 32-64-32 and two dense layers, batch {n}", five_layers, (n, 3, 32, 32))]
        cases += [(f"ResNet-20 with BatchNorm, batch {n}", lambda norm: resnet(20, seed=0), (n, 3, 32, 32))]
    return [_measure(name, build, shape, device, rounds) for name, build, shape in cases]


def table_1(norm: bool) -> nn.Sequential:
    """Figures 8 and 9 and table 1: two hidden layers of 100; BatchNorm, if any, after the activation."""
    sizes, layers = [3072, 100, 100], []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), *([nn.BatchNorm1d(outputs)] if norm else [])]
    return nn.Sequential(*layers, nn.Linear(100, 10))


def five_layers(norm: bool) -> nn.Sequential:
    """Figure 5: three convolutions, pooled twice, and two dense layers; BatchNorm, if any, after the activation."""

    def block(inputs: int, outputs: int, pool: bool) -> list[nn.Module]:
        layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3), nn.ReLU()]
        return layers + [nn.BatchNorm2d(outputs)] * norm + [nn.MaxPool2d(2)] * pool

    body = [*block(3, 32, True), *block(32, 64, True), *block(64, 32, False)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


def _measure(name: str, build: Any, shape: tuple[int, ...], device: str, rounds: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).to(device)
    y = torch.randint(0, 10, shape[:1], generator=generator).to(device)
    is_cuda = device.startswith("cuda")
    # whether there is BatchNorm, and the options of BNP, which is fused by itself
    methods: dict[str, tuple[bool, dict[str, Any] | None]] = {
        "SGD": (False, None), "BN": (True, None), "BNP": (False, {}), "BNP plain": (False, {"fused": False}),
    }  # fmt: skip
    tasks = {method: _step(build(norm).to(device), x, y, options) for method, (norm, options) in methods.items()}
    if is_cuda:
        tasks |= {f"{method} captured": _captured(step) for method, step in tasks.items()}
    repeats = {method: max(1, int(0.05 / Clock(device)(step)[0])) for method, step in tasks.items()}
    batches = {method: _repeated(step, repeats[method]) for method, step in tasks.items()}
    seconds = {method: s / repeats[method] for method, s in interleaved(Clock(device), batches, rounds).items()}
    memory = {method: peak_memory(step, device) for method, step in tasks.items()}
    row = {
        "network": name,
        "steps_timed": repeats["SGD"] * rounds,
        "milliseconds": {method: 1e3 * s for method, s in seconds.items()},
        "BNP/BN": seconds["BNP"] / seconds["BN"],
        "BNP/SGD": seconds["BNP"] / seconds["SGD"],
        "BN/SGD": seconds["BN"] / seconds["SGD"],
        "BNP plain/BN": seconds["BNP plain"] / seconds["BN"],
        "BNP plain/SGD": seconds["BNP plain"] / seconds["SGD"],
        "peak_memory_GiB": memory,
    }
    if is_cuda:
        row["BNP/BN captured"] = seconds["BNP captured"] / seconds["BN captured"]
    times = "  ".join(f"{method} {1e3 * s:.3f} ms" for method, s in seconds.items())
    ratios = "  ".join(f"{what} {value:.3f}" for what, value in row.items() if "/" in what)
    print(f"{name:48s} {times}  {ratios}", flush=True)
    return row


def _step(model: nn.Module, x: Tensor, y: Tensor, options: dict[str, Any] | None) -> Step:
    # a rate of zero: every step is the first one, and no method is timed on gradients that have died out
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.0), nn.CrossEntropyLoss()
    if options is not None:
        wc.BNP(model, optimizer, **options)

    def step() -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return step


def _captured(step: Step) -> Step:
    """The same step as a CUDA graph."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def _repeated(step: Step, repeats: int) -> Step:
    def run() -> None:
        for _ in range(repeats):
            step()

    return run
