"""One epoch of ResNet-20 on CIFAR-10: how long it takes, what bounds it, what probes add, and how well it learns.

python -m benchmarks.epoch                             # time on a GPU, on random images: only needs torch and numpy
python -m benchmarks.epoch --accuracy --data DIR       # test accuracy on CIFAR-10
Results go to benchmarks/results/epoch.json, where each part keeps the results of the other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import wellcond as wc
from benchmarks.epoch_bounds import bounds, seconds_of
from benchmarks.timing import environment
from wellcond.results.quantities import TEST_ACCURACY
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.dataset import Dataset
from wellcond_papers.data.load import load
from wellcond_papers.models import resnet
from wellcond_papers.training import schedules
from wellcond_papers.training.classifier import train_classifier
from wellcond_papers.training.loop import Loop
from wellcond_papers.training.step import EagerStep

RESULTS = Path(__file__).parent / "results" / "epoch.json"
BATCH = 128


@dataclass(frozen=True)
class Arm:
    """How the network is computed."""

    captured: bool = True
    tf32: bool = False
    half: bool = False
    channels_last: bool = False
    compiled: bool = False

    def network(self, seed: int = 0) -> nn.Module:
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        return resnet(20, seed=seed).to(device="cuda", memory_format=layout)

    def batches(self, data: Dataset, seed: int = 0) -> Batches:
        options: Any = {"augment": ("crop", "flip"), "channels_last": self.channels_last}
        return Batches(data, BATCH, seed=seed, device="cuda", **options)

    def loss(self, network: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=self.half, cache_enabled=False):
            return functional.cross_entropy(network(x), y)

    @contextlib.contextmanager
    def arithmetic(self) -> Iterator[None]:
        before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = self.tf32
        yield
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


ARMS = {
    "eager, float32": Arm(captured=False),
    "eager, TF32": Arm(captured=False, tf32=True),
    "graph, float32": Arm(),
    "graph, TF32": Arm(tf32=True),
    "graph, TF32, channels-last": Arm(tf32=True, channels_last=True),
    "graph, bfloat16, channels-last": Arm(half=True, tf32=True, channels_last=True),
    "graph, bfloat16, channels-last, compiled": Arm(half=True, tf32=True, channels_last=True, compiled=True),
}


def sgd(model: nn.Module, weight_decay: float = 1e-4) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=weight_decay)


def random_images() -> Dataset:
    """Random images of the number and size of CIFAR-10: the time of a step does not depend on their content."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Dataset(images, torch.arange(50_000) % 10, classes=tuple("0123456789"), name="random")


# time


def epochs(arm: Arm, data: Dataset, count: int) -> dict[str, float]:
    """Seconds of an epoch through `train_classifier`, data and augmentation included, and of what is done once."""
    model, batches = arm.network(), arm.batches(data)
    optimizer, times = sgd(model), []
    steps = count * batches.per_epoch
    looks = range(0, steps + 1, batches.per_epoch)

    def probe(step: int) -> list[Any]:
        torch.cuda.synchronize()
        times.append(time.perf_counter())
        return []

    begin = time.perf_counter()
    if arm.captured:
        train_classifier(model, optimizer, batches, steps, at=looks, probes=[probe], half=arm.half,
                         compiled=arm.compiled)  # fmt: skip
    else:
        step = EagerStep[Any](optimizer, lambda _, batch: arm.loss(model, *batch), is_checked=False)
        Loop(optimizer, step, steps, at=looks, probes=[probe]).run(batches)
    lasted = [after - before for before, after in pairwise(times)]
    # the first epoch captures and compiles
    return {
        "s_per_epoch": statistics.median(lasted[1:]),
        "fastest": min(lasted[1:]),
        "slowest": max(lasted[1:]),
        "first_epoch_s": lasted[0],
        "before_s": times[0] - begin,
        "steps_per_epoch": batches.per_epoch,
    }


def parts(arm: Arm, data: Dataset) -> dict[str, Any]:
    """What bounds a step; and seconds for the data of an epoch alone, shuffled and augmented."""
    model, batches = arm.network(), arm.batches(data)
    x, y = (tensor.clone() for tensor in batches(0))
    network = torch.compile(model) if arm.compiled else model
    result = bounds(
        model, lambda: arm.loss(network, x, y), sgd(model), x, graph=arm.captured, size=2 if arm.half else 4
    )
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for step in range(batches.per_epoch, 3 * batches.per_epoch):
        batches(step)
    torch.cuda.synchronize()
    return result | {"data_s_per_epoch": (time.perf_counter() - begin) / 2}


def probe_costs(arm: Arm, data: Dataset) -> dict[str, Any]:
    """What a look costs with these probes, in milliseconds and in u: an eager forward and backward pass."""
    model, batch = arm.network(), arm.batches(data)(0)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [batch])

    def unit() -> None:
        model.zero_grad()
        functional.cross_entropy(model(batch[0]), batch[1]).backward()

    u = seconds_of(unit, 50)
    tasks = {
        "conditioning": lambda: wc.conditioning(problem),
        "landscape": lambda: wc.landscape(problem, lr=0.1, steps=8),
    }
    costs = {name: seconds_of(task, 5) for name, task in tasks.items()}
    return {"u_ms": 1e3 * u} | {name: {"ms": 1e3 * s, "u": s / u} for name, s in costs.items()}


def times(rounds: int) -> dict[str, Any]:
    data, result = random_images(), {}
    for name, arm in ARMS.items():
        with arm.arithmetic():
            result[name] = epochs(arm, data, 1 + rounds) | parts(arm, data)
        row = result[name]
        profiled = row["profile_forward_backward"]
        print(
            f"{name:42s} {row['s_per_epoch']:.3f} s/epoch  passes {row['forward_backward_ms']:.2f} ms (kernels "
            f"{profiled['kernel_ms']:.2f} ms in {profiled['kernels']:.0f}, {profiled['launches']:.0f} launches)  "
            f"optimizer {row['optimizer_ms']:.2f} ms  data {row['data_s_per_epoch']:.3f} s/epoch  "
            f"traffic at copy speed {row['activation_ms_at_that_bandwidth']:.2f} ms  {row['TFLOP_s']:.1f} TFLOP/s",
            flush=True,
        )
    arm = ARMS["graph, float32"]
    with arm.arithmetic():
        costs = probe_costs(arm, data)
    print(costs, flush=True)
    return {"network": "ResNet-20", "batch": BATCH, "images": len(data.labels), "arms": result, "probes": costs}


# accuracy


def accuracy(
    root: str | None, count: int, weight_decays: list[float], seeds: int, compiled: bool
) -> list[dict[str, Any]]:
    """Test accuracy over training with crop and flip, a warm-up of one epoch and a cosine."""
    arm = Arm(half=True, tf32=True, channels_last=True, compiled=compiled)
    data, runs = load("cifar10", root), []
    unseen = load("cifar10", root, train=False)
    x, y = data.inputs(unseen.images), unseen.labels
    for weight_decay in weight_decays:
        for seed in range(seeds):
            model, batches = arm.network(seed), arm.batches(data, seed)
            steps = count * batches.per_epoch
            begin = time.perf_counter()
            with arm.arithmetic():
                run = train_classifier(
                    model, sgd(model, weight_decay), batches, steps, half=True, compiled=compiled,
                    at={*range(0, steps, 2 * batches.per_epoch), steps}, test=(x.cuda(), y.cuda()),
                    schedule=schedules.warm_up(batches.per_epoch, schedules.cosine(steps)),
                )  # fmt: skip
            seconds = time.perf_counter() - begin
            last = run.evaluated(TEST_ACCURACY)[-1]
            print(
                f"weight decay {weight_decay}, seed {seed}: {last:.2%} after {count} epochs, {seconds:.0f} s",
                flush=True,
            )
            rows = [[row.step, row.quantity, round(row.value, 5)] for row in run.summary()]
            runs.append({"weight_decay": weight_decay, "seed": seed, "epochs": count, "lr": 0.1, "momentum": 0.9,
                         "nesterov": True, "schedule": "warm-up of one epoch, cosine", "bfloat16": True,
                         "compiled": compiled, "seconds": seconds, "test_accuracy": last, "rows": rows})  # fmt: skip
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="epochs that are timed")
    parser.add_argument("--accuracy", action="store_true", help="train on CIFAR-10 instead")
    parser.add_argument("--data", help="the folder with cifar10")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--weight-decay", type=float, nargs="+", default=[1e-4])
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.accuracy:
        part = "accuracy"
        result: Any = accuracy(options.data, options.epochs, options.weight_decay, options.seeds, options.compiled)
    else:
        part, result = "time", times(options.rounds)
    old = json.loads(options.out.read_text()) if options.out.exists() else {"results": {}}
    content = {"environment": environment("cuda"), "results": old["results"] | {part: result}}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"in {options.out}")


if __name__ == "__main__":
    main()
