"""What an examiner writes: programs in a faulty and a repaired form, and sound ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


@dataclass
class Program:
    """A training script.

    Attributes:
        model: In the modes in which it is trained.
        loss: `loss(outputs, targets)`, where `model(inputs)` (or `model(**inputs)` for a dict) gives the outputs; or
            None with a `step`.
        batches: A loader of `(inputs, targets)`, or of whatever `step` takes.
        optimizer: As the script makes it.
        score: How well the model does its task on held-out data, computed in evaluation mode; higher is better, 1 is
            perfect. Faulty and repaired forms of a case have it in common.
        scheduler: Stepped after every optimizer step, if the script has one.
        step: `step(model, batch) -> loss`, for scripts whose loss does not have the form above.
    """

    model: nn.Module
    loss: Callable[[Any, Any], Tensor] | None
    batches: Iterable[Any]
    optimizer: Optimizer
    score: Callable[[nn.Module], float]
    scheduler: LRScheduler | None = None
    step: Callable[[nn.Module, Any], Tensor] | None = None

    def train(self, steps: int) -> None:
        """Take steps on the batches as they come; a step that raises ends it."""
        taken = 0
        while taken < steps:
            for batch in self.batches:
                self.optimizer.zero_grad()
                try:
                    if self.step is not None:
                        value = self.step(self.model, batch)
                    else:
                        x, y = batch
                        value = self.loss(self.model(**x) if isinstance(x, dict) else self.model(x), y)
                    value.backward()
                except (RuntimeError, ValueError, IndexError):
                    return
                self.optimizer.step()
                if self.scheduler is not None:
                    self.scheduler.step()
                taken += 1
                if taken == steps:
                    return

    def scored(self) -> float:
        """The score in evaluation mode, without a graph; what is not finite scores 0."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        with torch.no_grad():
            value = self.score(self.model)
        for module, mode in modes.items():
            module.training = mode
        return value if math.isfinite(value) else 0.0


@dataclass(frozen=True)
class Fault:
    """One fault: `build(True)` has it, `build(False)` is the same program without it.

    Attributes:
        name: Of the function.
        what: What is wrong, in words.
        build: Makes a form.
        rules: Names that a careful person would call right if they stood first; the best one first.
        layers: Modules (or parameters) that may be blamed; a name covers everything below it. Empty: no layer is meant.
        fails: Whether training fails outright: the faulty form gains less than a quarter of what the repaired one does.
        steps: Optimizer steps after which both are scored.
    """

    name: str
    what: str
    build: Callable[[bool], Program]
    rules: tuple[str, ...]
    layers: tuple[str, ...]
    fails: bool
    steps: int


@dataclass(frozen=True)
class Sound:
    """A set-up with nothing wrong.

    Attributes:
        name: Of the function.
        what: What may be mistaken for a fault, in words.
        build: Makes it.
        trained: Steps that have been taken when it is examined.
        steps: Optimizer steps after which it is scored.
        least: What it scores then, at least.
    """

    name: str
    what: str
    build: Callable[[], Program]
    trained: int
    steps: int
    least: float


FAULTS: dict[str, Fault] = {}
SOUND: dict[str, Sound] = {}


def fault(
    what: str, *, rules: Iterable[str], layers: Iterable[str] = (), fails: bool, steps: int
) -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    """Make a function of `is_faulty` a fault."""

    def register(build: Callable[[bool], Program]) -> Callable[[bool], Program]:
        FAULTS[build.__name__] = Fault(build.__name__, what, build, tuple(rules), tuple(layers), fails, steps)
        return build

    return register


def sound(
    what: str, *, trained: int = 0, steps: int, least: float
) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Make a function a sound set-up."""

    def register(build: Callable[[], Program]) -> Callable[[], Program]:
        SOUND[build.__name__] = Sound(build.__name__, what, build, trained, steps, least)
        return build

    return register
