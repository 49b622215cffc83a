"""A training step of every network that the papers train on ImageNet, on random images of 224×224.

python -m benchmarks.imagenet_steps --device cuda   # about a minute on an H200; needs torch and numpy alone

A batch of 256 is computed as on one GPU, by a CUDA graph. A batch of 32, the share of each of 8 GPUs, is computed as
under torchrun, without a graph; the other seven, with whom it would exchange gradients, are not there.
Results go to benchmarks/results/imagenet_steps_cuda.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD

from benchmarks.timing import Clock, environment
from wellcond.optim.bnp import BNP
from wellcond_papers.experiments.catalog import experiment
from wellcond_papers.experiments.experiment import Job, Settings
from wellcond_papers.papers.huang2020.networks import build
from wellcond_papers.papers.lange2022.networks import network
from wellcond_papers.training.classifier import laid_out, layout_of
from wellcond_papers.training.step import CapturedStep, EagerStep

RESULTS = Path(__file__).parent / "results"
NETWORKS = {
    "ResNet-18": ("huang2020-fig14", "ResNet-18"),
    "ResNet-18-LastBN": ("huang2020-fig14", "ResNet-18-LastBN"),
    "ResNet-18 without a norm": ("huang2020-fig10", "plain"),
    "ResNet-18 with GN": ("lange2022-fig7", "ResNet-18: GN"),
    "ResNet-18 with BNP and GN": ("lange2022-fig7", "ResNet-18: BNP+GN"),
    "ResNet-50": ("huang2020-fig14", "ResNet-50"),
    "ResNet-50-LastBN": ("huang2020-fig14", "ResNet-50-LastBN"),
}
"""The experiment and the arm of it that trains each."""
WHOLE, SHARE = 256, 32
"""The batch of one GPU, and of each of eight."""
PRECISIONS = {"TF32": False, "bfloat16": True}
"""float32 with convolutions in TF32, as the experiments at the scale "paper"; and autocast to bfloat16."""


def settings_of(name: str) -> Settings:
    """How the experiment trains the network."""
    source, arm = NETWORKS[name]
    return next(cell.settings for cell in experiment(source).cells("paper") if cell.settings["arm"] == arm)


def step_time(
    name: str, batch: int, half: bool, device: torch.device, rounds: int, size: int | None = None
) -> dict[str, Any]:
    """The median time of a step, and the memory at its peak.

    Args:
        name: One of `NETWORKS`.
        batch: Images; fewer than `WHOLE` are computed without a graph.
        half: Whether to compute in bfloat16.
        device: The device.
        rounds: Steps that are timed, after five that are not.
        size: Height and width of the images; None for those of the experiment.
    """
    settings = settings_of(name)
    side = size or settings["size"]
    x, y = torch.randn(batch, 3, side, side, device=device), torch.arange(batch, device=device)
    model: nn.Module
    if "method" in settings:
        model = network(settings, (3, side, side), 1000).to(device)
        if half:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    else:
        model = build(Job(settings, device))
    x = laid_out(x, layout_of(model))
    # a rate of zero: every step is the first one
    optimizer = SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=settings["weight_decay"])
    bnp = BNP(model, optimizer) if "BNP" in settings.get("method", "") else None

    def loss_of(images: tuple[Tensor, ...]) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            return functional.cross_entropy(model(images[0]), images[1])

    is_cuda = device.type == "cuda"
    step: CapturedStep | EagerStep[Any]
    if is_cuda and batch == WHOLE:
        step = CapturedStep(model, optimizer, loss_of, bnp)
    else:
        step = EagerStep(optimizer, lambda taken, images: loss_of(images), is_checked=False)
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    clock = Clock(device.type)
    for _ in range(5):  # choice of kernels, and the capture
        clock(lambda: step(0, (x, y)))
    seconds = [clock(lambda: step(0, (x, y)))[0] for _ in range(rounds)]
    return {
        "network": name,
        "batch": batch,
        "precision": next(title for title, is_half in PRECISIONS.items() if is_half == half),
        "ms": 1e3 * statistics.median(seconds),
        "slowest_ms": 1e3 * max(seconds),
        "peak_memory_GiB": torch.cuda.max_memory_allocated() / 2**30 if is_cuda else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=8, help="steps that are timed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = []
    for name, batch, (title, half) in product(NETWORKS, (WHOLE, SHARE), PRECISIONS.items()):
        row = step_time(name, batch, half, torch.device(options.device), options.rounds)
        rows.append(row)
        gc.collect()
        if options.device != "cpu":
            torch.cuda.empty_cache()
        print(
            f"{name:26s} {batch:3d} {title:8s} {row['ms']:7.1f} ms  {row['peak_memory_GiB'] or 0:5.1f} GiB", flush=True
        )
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"imagenet_steps_{options.device}.json"
    path.write_text(json.dumps({"environment": environment(options.device), "results": rows}, indent=1) + "\n")
    print(f"in {path}")


if __name__ == "__main__":
    main()
