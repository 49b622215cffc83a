"""What calls say that they will take, and what they take: training steps and seconds, on eight networks.

python -m benchmarks --only prices                   # the last network is a small GPT-2
python -m benchmarks --only prices --device cuda     # GPT-2 of 124 million parameters
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from benchmarks.diagnoses import CharLSTM, by_token, unit_seconds
from benchmarks.large_networks import GPT2, GPT2Config
from benchmarks.rates.data import digits
from benchmarks.rates.networks import ViT, cnn, mlp
from benchmarks.timing import Clock
from wellcond_papers.models import resnet

PLAN = re.compile(r"at most ([\d,]+) training steps")
STEPS = 400
"""The planned run of a rate."""
REMEDIES = ("rate", "layernorm")


def problems(device: str) -> dict[str, Callable[[], wc.Problem]]:
    """Networks from small to large, each with a loader that shuffles."""
    torch.manual_seed(0)
    images, labels = (t.to(device) for t in digits())
    text = torch.randint(0, 65, (512, 65), device=device)
    large = torch.nn.functional.interpolate(images.expand(-1, 3, -1, -1), 32)

    def loader(x: Tensor, y: Tensor, size: int) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(TensorDataset(x, y), size, shuffle=True)

    def problem(model: nn.Module, x: Tensor, y: Tensor, size: int, loss: Any = None) -> wc.Problem:
        return wc.Problem(model.to(device), loss or nn.CrossEntropyLoss(), loader(x, y, size))

    flat, characters = images.flatten(1), (text[:, :-1], text[:, 1:])
    gpt2 = GPT2Config() if device != "cpu" else GPT2Config(width=128, depth=4, heads=4, vocabulary=65, positions=64)
    return {
        "MLP 64-64-64-10, batch 32": lambda: problem(mlp([64, 64, 64, 10]), flat, labels, 32),
        "MLP 64-2048-10, batch 16": lambda: problem(mlp([64, 2048, 10]), flat, labels, 16),
        "MLP of 20 layers, batch 64": lambda: problem(mlp([64] * 20 + [10]), flat, labels, 64),
        "CNN with BatchNorm, batch 32": lambda: problem(cnn([8, 16, 16], "batch"), images, labels, 32),
        "ViT, batch 32": lambda: problem(ViT(), images, labels, 32),
        "ResNet-20, batch 16": lambda: problem(resnet(20, seed=0), large, labels, 16),
        "char-LSTM 2x256, 8 x 64": lambda: problem(CharLSTM(), *characters, 8, by_token),
        f"GPT-2 of {gpt2.depth} layers, 4 x 64": lambda: problem(GPT2(gpt2), *characters, 4, by_token),
    }


CALLS: dict[str, Callable[..., Any]] = {
    "diagnose": wc.diagnose,
    "suggest_lr": lambda *of, **options: wc.suggest_lr(*of, steps=STEPS, **options),
    "treat": lambda *of, **options: wc.treat(*of, steps=50, seeds=(0, 1), remedies=REMEDIES, findings=(), **options),
}


def prices(device: str, quick: bool) -> list[dict[str, Any]]:
    """For every network and call: the steps that it says it will take, and the steps and seconds that it takes."""
    rows = []
    for name, build in [*problems(device).items()][: 2 if quick else None]:
        unit = unit_seconds(wc.Problem(build().model, build().loss, next(iter(build().loader))), device)
        for call, function in CALLS.items():
            problem, messages = build(), list[str]()
            optimizer = torch.optim.AdamW(problem.model.parameters(), lr=1e-3)
            clock = Clock(device)
            seconds, result = clock(
                lambda: function(problem, optimizer, progress=lambda what, _: messages.append(what))  # noqa: B023
            )
            planned = [float(match[1].replace(",", "")) for what in messages if (match := PLAN.search(what))]
            rows.append(
                {"network": name, "call": call, "step_seconds": unit, "planned_u": planned[0] if planned else None,
                 "u": result.cost.u, "seconds": seconds}
            )  # fmt: skip
            row = rows[-1]
            print(
                f"  {name:32s} {call:10s} planned {row['planned_u']} u, took {row['u']:.0f} u, {seconds:.1f} s",
                flush=True,
            )
    return rows
