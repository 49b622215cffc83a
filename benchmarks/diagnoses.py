"""What `diagnose` costs by default, part by part, on ordinary networks and on one of a thousand layers."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wellcond as wc
from benchmarks.networks import networks
from benchmarks.timing import Clock
from wellcond_papers.models import mlp


class CharLSTM(nn.Module):
    """Two LSTM layers of 256 units over 65 characters; (N, T) → (N, T, 65)."""

    def __init__(self, vocabulary: int = 65, width: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(characters))[0])


def by_token(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def cases(device: str, layers: int = 1000) -> dict[str, wc.Problem]:
    """The networks by name."""
    deep, _, _, residual = networks(device)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    text, following = (torch.randint(0, 65, (32, 64), generator=generator) for _ in range(2))
    x, y = torch.randn(32, 32, generator=generator), torch.randint(0, 10, (32,), generator=generator)
    thousand = mlp([32] * layers + [10], norm="layer", init="he", seed=0)
    return {
        deep.name + ", batch 512": deep.problem(),
        residual.name + ", batch 64": residual.problem(),
        "char-LSTM 2x256, 32 x 64 characters": wc.Problem(CharLSTM().to(device), by_token, (text, following)),
        f"{layers} layers of 32, batch 32": wc.Problem(thousand.to(device), nn.CrossEntropyLoss(), (x, y)),
    }


def diagnoses(problems: dict[str, wc.Problem], device: str) -> list[dict[str, Any]]:
    """Seconds and u of `diagnose`, and of each part."""
    rows = []
    for name, problem in problems.items():
        unit = unit_seconds(problem, device)
        rows.append(
            {"network": name, "parameters": problem.size, "u_seconds": unit, **diagnosed(problem, unit, device)}
        )
        row = rows[-1]
        print(
            f"  {name:44s} {row['seconds']:6.1f} s {row['u']:6.1f} u, first rows after {row['first_rows_u']:.1f} u"
            f"{'; failed: ' + str(row['failed']) if row['failed'] else ''}",
            flush=True,
        )
    return rows


def unit_seconds(problem: wc.Problem, device: str, rounds: int = 3) -> float:
    """Median seconds of a forward and backward pass as the user runs them, in the mode in which it is measured."""
    x, y = (torch.as_tensor(part).to(device) for part in problem.batches[0])
    params = list(problem.params.values())

    def forward_and_backward() -> object:
        return torch.autograd.grad(problem.loss(problem.model(x), y), params, allow_unused=True)

    with problem.measuring():
        forward_and_backward()
        return statistics.median(Clock(device)(forward_and_backward)[0] for _ in range(rounds))


def diagnosed(problem: wc.Problem, unit: float, device: str, **options: Any) -> dict[str, Any]:
    """One `diagnose`: its price, when the first rows of the layer table were there, and what each part added."""
    clock, ends = Clock(device), list[tuple[str, float]]()
    now = time.perf_counter if clock.is_cuda else time.process_time
    begin = now()

    def on_part(diagnosis: wc.Diagnosis) -> None:
        ends.append((str(diagnosis.parts[-1].name), now() - begin))

    seconds, diagnosis = clock(lambda: wc.diagnose(problem, on_part=on_part, **options))
    first = next((end for name, end in ends if name == "layers"), None)
    starts = [0.0, *(end for _, end in ends)]
    parts = [{"part": name, "u": (end - start) / unit} for start, (name, end) in zip(starts, ends, strict=False)]
    return {
        "seconds": seconds,
        "u": seconds / unit,
        "first_rows_u": None if first is None else first / unit,
        "parts": parts,
        "failed": dict(diagnosis.failed),
    }
