"""Training loops with and without a recorder, on a clock that the loop itself advances."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules

import wellcond as wc

Loop = Callable[[Any], dict[str, Any]]


class Clock:
    """A clock on which recording takes no time, so that everything is due as often as it may be."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Small(nn.Module):
    """Convolution, BatchNorm, dropout, a functional ReLU, tanh, LayerNorm and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 6, 3, padding=1)
        self.bn = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.3)
        self.hidden = nn.Linear(6, 6)
        self.tanh = nn.Tanh()
        self.norm = nn.LayerNorm(6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.hidden.weight
        self.relu = nn.ReLU()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn(self.conv(x))).mean(-1)
        h = self.norm(self.tanh(self.hidden(self.dropout(h))))
        return self.head(self.relu(self.tied(h)))


def batches(steps: int, size: int = 12) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(steps, size, 2, 5, generator=generator)
    return [(x, torch.randint(0, 3, (size,), generator=generator)) for x in inputs]


def everything_of(model: nn.Module, *optimizers: torch.optim.Optimizer) -> dict[str, Any]:
    """All that a training has changed, and the random numbers that it would draw next."""
    states = [each.state_dict()["state"] for each in optimizers]
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    return {
        "model": model.state_dict(),
        "optimizers": states,
        "gradients": grads,
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [part.tobytes() if isinstance(part, np.ndarray) else part for part in np.random.get_state()],
        "hooks": [len(m._forward_hooks) for m in model.modules()],
        "modes": [m.training for m in model.modules()],
    }


def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


class NoRecorder:
    """Stands in for a recorder in a loop without one."""

    def step(self, *_: Any, **__: Any) -> None: ...
    def close(self) -> None: ...


def recorder(model: nn.Module, optimizer: Any, loss: Any, clock: Clock, **options: Any) -> wc.Recorder:
    return wc.Recorder(model, optimizer, loss, budget=1.0, clock=clock, **options)


def assert_same(one: Any, other: Any, where: str = "") -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}/{index}")
    elif isinstance(one, Tensor):
        assert torch.equal(one.to_dense(), other.to_dense()), where
    else:
        assert one == other, where


def assert_bit_for_bit(loop: Callable[[Callable[..., Any]], dict[str, Any]], problems: str = "") -> list[wc.Recorder]:
    """Run a loop without and with recorders; everything it changes must be the same. Returns the recorders.

    All problems that these have are to contain the words `problems`; there are to be none if it is empty.
    """
    recorders: list[wc.Recorder] = []
    clock = Clock()

    def record(*args: Any, **options: Any) -> Any:
        recorders.append(recorder(*args, clock, **options))
        real = recorders[-1].step

        def step(*values: Any, **settings: Any) -> None:
            clock.now += 1.0
            real(*values, **settings)

        recorders[-1].step = step  # type: ignore[method-assign]
        return recorders[-1]

    seed()
    without = loop(lambda *_args, **_options: NoRecorder())
    seed()
    with_it = loop(record)
    assert_same(without, with_it)
    assert not modules._has_any_global_hook()
    for each in recorders:
        assert [problem for problem in each.problems if not problems or problems not in problem] == []
    return recorders
