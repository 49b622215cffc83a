"""What `conditioning` costs where a layer has more inputs than the batch has rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wellcond as wc
from benchmarks.timing import Clock, interleaved, peak_memory

ROWS = 64
INPUTS = (256, 1000, 3000, 10_000, 30_000)
CLASSES = 10


class MNISTExample(nn.Module):
    """The network of PyTorch's MNIST example: two convolutions, then 9216 inputs to a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.fc1(self.dropout1(x).flatten(1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def layer_tables(device: str, rounds: int, inputs: tuple[int, ...] = INPUTS) -> list[dict[str, Any]]:
    """Seconds and u of `conditioning` on PyTorch's MNIST example and on single linear layers, 64 rows each."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    cases: list[tuple[str, nn.Module, nn.Module | Any, Tensor]] = [
        ("PyTorch's MNIST example", MNISTExample(), F.nll_loss, torch.randn(ROWS, 1, 28, 28, generator=generator))
    ]
    for d in inputs:
        cases.append(
            (
                f"linear layer, {d:,} inputs",
                nn.Linear(d, CLASSES),
                F.cross_entropy,
                torch.randn(ROWS, d, generator=generator),
            )
        )
    rows = []
    for name, model, loss, x in cases:
        problem = wc.Problem(model.to(device), loss, (x.to(device), labels.to(device)))
        rows.append({"network": f"{name}, {ROWS} rows", **_cost(problem, device, rounds)})
        cost = rows[-1]
        print(
            f"  {cost['network']:44s} {cost['u']:6.2f} u  {1e3 * cost['seconds']:8.2f} ms  {cost['peak_GiB']:.2f} GiB",
            flush=True,
        )
    return rows


def _cost(problem: wc.Problem, device: str, rounds: int) -> dict[str, Any]:
    (x, y), model, params = problem.batches[0], problem.model.eval(), list(problem.params.values())

    def forward_and_backward() -> object:
        return torch.autograd.grad(problem.loss(model(x), y), params)

    def measure() -> object:
        return wc.conditioning(problem)

    seconds = interleaved(Clock(device), {"u": forward_and_backward, "conditioning": measure}, rounds, limit_s=10)
    return {
        "seconds": seconds["conditioning"],
        "u": seconds["conditioning"] / seconds["u"],
        "u_seconds": seconds["u"],
        "peak_GiB": peak_memory(measure, device),
    }
