"""`Program`: what a training script holds; `Case`: a fault, its repair, and what a verdict should say of it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.verdicts.data import Data

Score = Callable[[nn.Module], float]


@dataclass
class Program:
    """A training script: model, loss, an ordinary shuffling loader, and the optimizer.

    Attributes:
        model: In the modes in which it is trained.
        loss: `loss(outputs, targets)`.
        loader: Of `(inputs, targets)`.
        optimizer: As the script makes it.
        score: How well the model does its task, from evaluation mode: 1 is perfect. Faulty and repaired forms of a
            case, whose losses may differ, have it in common.
        before_step: What the script does in its loop before `optimizer.step()`.
        after_step: What it does after it.
        scheduler: Of the optimizer's rates, which takes a step after each of the optimizer's.
    """

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]
    loader: DataLoader[Any]
    optimizer: Optimizer
    score: Score
    before_step: Callable[[], object] = lambda: None
    after_step: Callable[[], object] = lambda: None
    scheduler: LRScheduler | None = None

    def train(self, steps: int) -> None:
        """Take steps on the batches as they come; a step that raises, as one on NaN may, ends it."""
        taken = 0
        while taken < steps:
            for x, y in self.loader:
                self.optimizer.zero_grad()
                try:
                    self.loss(self.model(**x) if isinstance(x, dict) else self.model(x), y).backward()
                except (RuntimeError, ValueError):
                    return
                self.before_step()
                self.optimizer.step()
                self.after_step()
                if self.scheduler is not None:
                    self.scheduler.step()
                taken += 1
                if taken == steps:
                    return

    def scored(self) -> float:
        """The score in evaluation mode, without a graph; nothing changes. What is not finite scores 0."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        with torch.no_grad():
            value = self.score(self.model)
        for module, mode in modes.items():
            module.training = mode
        return value if math.isfinite(value) else 0.0


@dataclass(frozen=True)
class Case:
    """A fault in both forms.

    Attributes:
        number: In the list of real faults.
        name: Short, without spaces.
        title: What is wrong, in words.
        make: Makes the faulty (True) or the repaired form.
        rules: Those that a careful person would call right if they stood first.
        layers: The modules that may be blamed; "" where none has to be.
        steps: After which both forms are scored.
        is_shown: Whether training shows the fault: the faulty form ends clearly worse. One that it does not show is
            listed, and counts in no share.
    """

    number: int
    name: str
    title: str
    make: Callable[[bool], Program]
    rules: tuple[str, ...]
    layers: tuple[str, ...]
    steps: int
    is_shown: bool = True

    def build(self, faulty: bool, seed: int = 0) -> Program:
        """One form, from a seed."""
        torch.manual_seed(seed)
        return self.make(faulty)


CASES: dict[str, Case] = {}
"""By name, in the order of their numbers once every module of cases is imported."""


def case(
    number: int, title: str, *, rules: Iterable[str], layers: Iterable[str] = ("",), steps: int, is_shown: bool = True
) -> Callable[[Callable[[bool], Program]], Callable[[bool], Program]]:
    """Make a function of `faulty` a case; its name is the function's."""

    def register(make: Callable[[bool], Program]) -> Callable[[bool], Program]:
        name = make.__name__.replace("_", "-")
        CASES[name] = Case(number, name, title, make, tuple(rules), tuple(layers), steps, is_shown)
        return make

    return register


@dataclass(frozen=True)
class Control:
    """A healthy network at some stage of its training.

    Attributes:
        name: Family, optimizer and stage.
        make: Makes the program at its initialization.
        steps: That have been taken when it is judged.
        more: Steps after which it must have improved, counted from the initialization.
        least: The score that it must reach by then.
    """

    name: str
    make: Callable[[], Program]
    steps: int
    more: int
    least: float

    def build(self, seed: int = 0) -> Program:
        """The program at its stage."""
        torch.manual_seed(seed)
        program = self.make()
        program.train(self.steps)
        return program


def program(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    data: Data,
    batch: int,
    optimizer: Callable[..., Optimizer],
    score: Score,
    **options: Any,
) -> Program:
    """A program as most scripts have it; `options` are the optimizer's."""
    loader = DataLoader(TensorDataset(*data), batch_size=batch, shuffle=True, drop_last=True)
    return Program(model.train(), loss, loader, optimizer(model.parameters(), **options), score)


def named(**modules: nn.Module) -> nn.Sequential:
    """A sequence whose modules have names."""
    return nn.Sequential(OrderedDict(modules))


# scores


def accuracy(data: Data) -> Score:
    """Share of labels that the largest output, along the last dimension, hits."""
    x, y = data
    return lambda model: float((_outputs(model, x).argmax(-1) == y).float().mean())


def binary_accuracy(data: Data, threshold: float) -> Score:
    """Share of 0/1 targets on whose side of the threshold the output is; an output of NaN is on neither."""
    x, y = data

    def score(model: nn.Module) -> float:
        outputs = _outputs(model, x).view(y.shape)
        return float((((outputs > threshold) == (y > 0.5)) & ~outputs.isnan()).float().mean())

    return score


def r2(data: Data) -> Score:
    """1 − Σ(y − ŷ)²/Σ(y − ȳ)², no less than −1."""
    x, y = data

    def score(model: nn.Module) -> float:
        residual = (y - _outputs(model, x).view(y.shape)).square().sum()
        return max(-1.0, float(1 - residual / (y - y.mean(0)).square().sum()))

    return score


def r2_of_probabilities(data: Data) -> Score:
    """The same of the probabilities that logits mean: a classifier has to be sure where it can be."""
    x, y = data

    def score(model: nn.Module) -> float:
        outputs = _outputs(model, x)
        if y.is_floating_point():
            p, t = outputs.view(y.shape).sigmoid(), y
        else:
            p, t = outputs.softmax(-1), nn.functional.one_hot(y, outputs.shape[-1]).float()
        return float(1 - (t - p).square().sum() / (t - t.mean(0)).square().sum())

    return score


def accuracy_one_by_one(data: Data, count: int = 300) -> Score:
    """Accuracy with every example in a batch of its own, as a model is used once it is trained."""
    x, y = data[0][:count], data[1][:count]

    def score(model: nn.Module) -> float:
        return float((torch.cat([_outputs(model, one) for one in x.split(1)]).argmax(-1) == y).float().mean())

    return score


def _outputs(model: nn.Module, x: Tensor) -> Tensor:
    outputs = model(x)
    if not isinstance(outputs, Tensor):
        outputs = outputs[0]
    return outputs.float()
