"""What recording costs: the same training with and without it, in turns of a few steps, in one process.

Each arm has its own model, optimizer and data, all from one seed. Arms take turns, so that a slow minute of the machine
hits all alike; the recorder's clock stands still while it is another arm's turn.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from benchmarks.timing import Clock
from wellcond_papers.models import mlp, resnet

STEPS_IN_TURN = 5
Loss = Callable[[Any, Any], Tensor]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        h, t = self.norm1(x), x.shape[1]
        mask = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int = 64, width: int = 128, blocks: int = 4, length: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.tokens(tokens) + places)))


def next_token(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], nn.Module]
    loss: Loss
    optimizer: Callable[[Any], torch.optim.Optimizer]
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]


def _images(size: int, *shape: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    return lambda g: (torch.randn(size, *shape, generator=g), torch.randint(0, 10, (size,), generator=g))


def _texts(g: torch.Generator) -> tuple[Tensor, Tensor]:
    text = torch.randint(0, 64, (16, 65), generator=g)
    return text[:, :-1], text[:, 1:]


CASES = [
    Case(
        "MLP 784-256x7-10, batch 512",
        lambda: mlp([784, *[256] * 7, 10], init="default", seed=0),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        _images(512, 784),
    ),
    Case(
        "ResNet-20, batch 64",
        lambda: resnet(20, seed=0),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-4),
        _images(64, 3, 32, 32),
    ),
    Case("GPT 4x128, 16 texts of 64", GPT, next_token, lambda p: torch.optim.AdamW(p, lr=1e-3), _texts),
]


class OwnTime:
    """Seconds during which an arm had its turn."""

    def __init__(self) -> None:
        self.past = 0.0
        self.since: float | None = None

    def __call__(self) -> float:
        return self.past + (0.0 if self.since is None else time.perf_counter() - self.since)


@dataclass
class Arm:
    """A training, step by step, with what records it."""

    steps: Iterator[None]
    clock: OwnTime
    wall: float = 0.0
    cpu: float = 0.0
    recorder: Any = field(default=None)


def recording(device: str, steps: int, *, compiled: bool = False) -> list[dict[str, Any]]:
    """Ratios of wall and CPU time of all arms, and how often each quantity was recorded."""
    return [_measured(case, device, steps, compiled) for case in CASES]


def _measured(case: Case, device: str, steps: int, compiled: bool) -> dict[str, Any]:
    kinds = ["plain", "wellcond", "norms by hand"]
    kinds += ["torchmortem"] if importlib.util.find_spec("torchmortem") else []
    arms = {kind: _arm(kind, case, device, compiled) for kind in kinds}
    for arm in arms.values():
        next(arm.steps)  # warms up, and is not timed
    for _ in range(steps // STEPS_IN_TURN):
        for arm in arms.values():
            _take_turn(arm, device)
    for arm in arms.values():
        _timed(arm, device, arm.steps.close)  # what a recorder does at its end counts too
    plain = arms["plain"]
    history = arms["wellcond"].recorder.history
    counts = {
        quantity: max(
            len(history.series(quantity)), sum(len(history.series(quantity, n)) for n in history.layers(quantity))
        )
        for quantity in history.quantities()
    }
    row = {
        "network": case.name,
        "compiled": compiled,
        "steps": steps,
        "milliseconds": {kind: 1e3 * arm.wall / steps for kind, arm in arms.items()},
        "wall/plain": {kind: arm.wall / plain.wall for kind, arm in arms.items()},
        "cpu/plain": {kind: arm.cpu / plain.cpu for kind, arm in arms.items()},
        "recorded": counts,
        "problems": arms["wellcond"].recorder.problems,
        "own_share": arms["wellcond"].recorder.run.history.series("recording_share").values[-1],
    }
    ratios = "  ".join(f"{k} {row['wall/plain'][k]:.3f} wall {row['cpu/plain'][k]:.3f} CPU" for k in arms)
    rare = {quantity: count for quantity, count in counts.items() if count < 10}
    print(f"{case.name:30s} {row['milliseconds']['plain']:.2f} ms a step; {ratios}; fewer than ten: {rare}", flush=True)
    return row


def _take_turn(arm: Arm, device: str) -> None:
    def run() -> None:
        for _ in range(STEPS_IN_TURN):
            next(arm.steps)

    _timed(arm, device, run)


def _timed(arm: Arm, device: str, run: Callable[[], None]) -> None:
    cpu = time.process_time()
    arm.clock.since = time.perf_counter()
    if Clock(device).is_cuda:
        arm.wall += Clock(device)(run)[0]
    else:
        run()
        arm.wall += time.perf_counter() - arm.clock.since
    arm.clock.past, arm.clock.since = arm.clock(), None
    arm.cpu += time.process_time() - cpu


def _arm(kind: str, case: Case, device: str, compiled: bool) -> Arm:
    torch.manual_seed(0)
    clock = OwnTime()
    model = case.build().to(device)
    optimizer = case.optimizer(model.parameters())
    arm = Arm(iter(()), clock)
    if kind == "wellcond":
        arm.recorder = wc.Recorder(model, optimizer, case.loss, clock=clock)
    elif kind == "torchmortem":
        from torchmortem import Autopsy

        logging.getLogger("torchmortem").setLevel(logging.CRITICAL)
        arm.recorder = Autopsy(model, optimizer=optimizer)
    arm.steps = _training(kind, case, model, optimizer, device, compiled, arm.recorder)
    return arm


def _training(
    kind: str,
    case: Case,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: str,
    compiled: bool,
    recorder: Any,
) -> Iterator[None]:
    called = torch.compile(model) if compiled else model
    generator = torch.Generator().manual_seed(1)
    data = [case.batch(generator) for _ in range(16)]
    norms: list[float] = []
    index = 0
    if kind == "torchmortem":
        recorder.__enter__()
    try:
        while True:
            x, y = (t.to(device) for t in data[index * 7 % len(data)])
            index += 1
            optimizer.zero_grad()
            value = case.loss(called(x), y)
            value.backward()
            if kind == "norms by hand" and index % 10 == 0:
                norms += [
                    t.detach().norm().item() for p in model.parameters() if p.grad is not None for t in (p.grad, p)
                ]
            optimizer.step()
            if kind == "wellcond":
                recorder.step(value, (x, y))
            elif kind == "torchmortem":
                recorder.step(loss=float(value))
            yield
    finally:
        if kind == "wellcond":
            recorder.close()
        elif kind == "torchmortem":
            recorder.__exit__(None, None, None)
