"""Networks, data and the loop that the cases share."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from wellcond.problem.digits import digits

STEPS = 2000
Batch = tuple[Tensor, Tensor]
Record = Callable[[nn.Module, Optimizer, Callable[[Tensor, Tensor], Tensor]], Any]
"""Makes the recorder of a run."""


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        name: What it is, in words.
        run: Trains; called with what makes the recorder.
        rules: Rules of which one must be reported; none of a healthy run.
        layer: The layer that it must name; None if any will do.
        step: The step at which it begins.
    """

    name: str
    run: Callable[[Record], None]
    rules: tuple[str, ...] = ()
    layer: str | None = None
    step: int | None = None


FAULTS: list[Case] = []
HEALTHY: list[Case] = []


def fault(rules: str, step: int | None, layer: str | None = None) -> Callable[[Callable[[Record], None]], None]:
    """Register a training that goes wrong."""

    def register(run: Callable[[Record], None]) -> None:
        FAULTS.append(Case(run.__name__.replace("_", " "), run, tuple(rules.split()), layer, step))

    return register


def healthy(run: Callable[[Record], None]) -> None:
    """Register a training that nothing is wrong with."""
    HEALTHY.append(Case(run.__name__.replace("_", " "), run))


def data(validation: int = 300) -> tuple[Batch, Batch]:
    """Digits for training and for validation."""
    inputs, labels = digits()
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    inputs, labels = inputs[order], labels[order]
    return (inputs[validation:], labels[validation:]), (inputs[:validation], labels[:validation])


def regression(size: int = 1024, noise: float = 0.1) -> Batch:
    """A smooth function of eight inputs with noise."""
    x = torch.randn(size, 8)
    y = torch.sin(x[:, :1] * 1.5) + 0.5 * x[:, 1:2] * x[:, 2:3] + noise * torch.randn(size, 1)
    return x, y


def mlp(*widths: int, act: Callable[[], nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    """A network with layers fc1, act1, … and, if asked for, bn1, …"""
    model = nn.Sequential()
    for index, (width, after) in enumerate(itertools.pairwise(widths), start=1):
        model.add_module(f"fc{index}", nn.Linear(width, after))
        if index < len(widths) - 1:
            if norm:
                model.add_module(f"bn{index}", nn.BatchNorm1d(after))
            model.add_module(f"act{index}", act())
    return model


def convnet(momentum: float = 0.1) -> nn.Sequential:
    """A small convolutional network for the digits, with BatchNorm."""
    return named(
        view=nn.Unflatten(1, (1, 8, 8)), conv1=nn.Conv2d(1, 8, 3, padding=1), bn1=nn.BatchNorm2d(8, momentum=momentum),
        act1=nn.ReLU(), pool1=nn.MaxPool2d(2), conv2=nn.Conv2d(8, 16, 3, padding=1),
        bn2=nn.BatchNorm2d(16, momentum=momentum), act2=nn.ReLU(), pool2=nn.AdaptiveAvgPool2d(2), flat=nn.Flatten(),
        head=nn.Linear(64, 10),
    )  # fmt: skip


def named(**modules: nn.Module) -> nn.Sequential:
    """A sequence of modules with names."""
    model = nn.Sequential()
    for name, module in modules.items():
        model.add_module(name, module)
    return model


def sampled(batch: int, source: Batch, seed: int = 1) -> Callable[[int], Batch]:
    """Batches in epochs, shuffled."""
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {"order": torch.empty(0, dtype=torch.long)}

    def draw(_: int) -> Batch:
        if len(state["order"]) < batch:
            state["order"] = torch.randperm(len(source[0]), generator=generator)
        rows, state["order"] = state["order"][:batch], state["order"][batch:]
        return source[0][rows], source[1][rows]

    return draw


def train(
    record: Record,
    model: nn.Module,
    optimizer: Optimizer,
    batches: Callable[[int], Batch],
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    *,
    steps: int = STEPS,
    before: Callable[[int], None] | None = None,
    after_backward: Callable[[int], None] | None = None,
    scheduler: LRScheduler | None = None,
    validation: Batch | None = None,
    validate_every: int = 50,
    clears: Callable[[int], bool] = lambda _: True,
    passes: int = 1,
    limit_every: int = 0,
) -> None:
    """A plain loop."""
    loss = nn.CrossEntropyLoss() if loss is None else loss
    rec = record(model, optimizer, loss)
    for step in range(1, steps + 1):
        if before is not None:
            before(step)
        if clears(step):
            optimizer.zero_grad()
        for _ in range(passes):
            batch = batches(step)
            value = loss(model(batch[0]), batch[1])
            (value / passes).backward()
        if after_backward is not None:
            after_backward(step)
        optimizer.step()
        rec.step(value, batch)
        if scheduler is not None:
            scheduler.step()
        if validation is not None and step % validate_every == 0:
            model.eval()
            with torch.no_grad():
                rec.validation(float(loss(model(validation[0]), validation[1])))
            model.train()
        if limit_every and hasattr(rec, "limit") and (step % limit_every == 0 or step in (1, 10)):
            rec.limit(batch)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the rate of all groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr
