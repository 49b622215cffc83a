"""One training run of lange2022's fully connected networks: a method, a rate, a seed; loss and accuracy as it goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from wellcond.data.dataset import Dataset
from wellcond.models import mlp
from wellcond.models.initialise import make_generator
from wellcond.nn import BatchRenorm1d

UNLIMITED = 1e6
POST_ACTIVATION: dict[str, Callable[[int], nn.Module]] = {
    "BN": nn.BatchNorm1d,
    # torch has none: TensorFlow's defaults, which the source says it took; they correct without limits from the start
    "Renorm": partial(
        BatchRenorm1d, eps=1e-3, momentum=0.01, r_max=UNLIMITED, d_max=UNLIMITED, r_ramp=(0, 1), d_ramp=(0, 1)
    ),
}
"""Norms that stand behind the activation, as in the source; LayerNorm, of which it does not say, stands before."""


class Data(NamedTuple):
    """Inputs (n, d) and labels (n,): all to learn from, and the fixed ones on which a network is evaluated."""

    x: Tensor
    y: Tensor
    evaluated: int
    """The training loss is that of this many images, the first of the file."""
    test_x: Tensor
    test_y: Tensor


@dataclass
class Run:
    """Training loss and test accuracy (a share) after each of `steps`, both in eval mode.

    A run has diverged if an evaluation gave NaN or infinity: its curves end before, and it has no final numbers.
    """

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    diverged_at: int | None = None

    def first_step_at(self, loss: float) -> float | None:
        """The first step with a loss of at most `loss`, on a curve linear between evaluations; None if there is none.

        >>> Run([0, 100, 200], [3.0, 2.0, 1.0], [0.1, 0.2, 0.3]).first_step_at(1.75)
        125.0
        """
        for i, value in enumerate(self.losses):
            if value <= loss:
                if i == 0:
                    return float(self.steps[0])
                share = (self.losses[i - 1] - loss) / (self.losses[i - 1] - value)
                return self.steps[i - 1] + share * (self.steps[i] - self.steps[i - 1])
        return None


def as_data(
    train: Dataset,
    test: Dataset,
    *,
    standardize: bool = False,
    evaluated: int = 5000,
    dtype: torch.dtype = torch.float32,
) -> Data:
    """Pixels in [0, 1], one row an image; `standardize` centres and scales the channels of either set."""
    x, y = train.tensors(dtype, flatten=True, standardize=standardize)
    return Data(x, y, evaluated, *test.tensors(dtype, flatten=True, standardize=standardize))


def network(method: str, sizes: Sequence[int], seed: int) -> nn.Sequential:
    """The perceptron of a method. The linear layers of a seed are the same for all methods.

    >>> [name for name, _ in network("BN", [64, 20, 10], seed=0).named_children()]
    ['flatten', 'fc1', 'act1', 'norm1', 'fc2']
    """
    model = mlp(sizes, norm="layer" if method == "LN" else "none", init="glorot", seed=seed)
    if method not in POST_ACTIVATION:
        return model
    normalised = nn.Sequential()
    for name, module in model.named_children():
        normalised.add_module(name, module)
        if name.startswith("act"):
            layer = name.removeprefix("act")
            normalised.add_module(f"norm{layer}", POST_ACTIVATION[method](sizes[int(layer)]))
    return normalised


def index_batches(count: int, batch: int, seed: int) -> Iterator[Tensor]:
    """Mini-batches of indices, without end: a fresh permutation every epoch, its ragged rest left out."""
    generator = make_generator(seed)
    while True:
        yield from torch.split(torch.randperm(count, generator=generator)[: count // batch * batch], batch)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    *,
    batch: int,
    steps: int,
    every: int,
    seed: int,
    before_step: Callable[[int, Tensor], None] = lambda step, x: None,
) -> Run:
    """Take `steps` steps on mini-batches that the seed alone decides; evaluate before the first, then `every` so many.

    `before_step` is called with the number of steps taken and the inputs of the next mini-batch.
    """
    run = Run()
    batches = index_batches(len(data.y), batch, seed)
    for step in range(steps + 1):
        if step % every == 0:
            loss, accuracy = evaluate(model, data)
            if not math.isfinite(loss):
                run.diverged_at = step
                break
            run.steps.append(step)
            run.losses.append(loss)
            run.accuracies.append(accuracy)
        if step < steps:
            index = next(batches)
            x = data.x[index]
            before_step(step, x)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), data.y[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return run


@torch.no_grad()
def evaluate(model: nn.Module, data: Data) -> tuple[float, float]:
    """Training loss and test accuracy in eval mode; the model goes back to training."""
    model.eval()
    loss = functional.cross_entropy(model(data.x[: data.evaluated]), data.y[: data.evaluated])
    accuracy = (model(data.test_x).argmax(1) == data.test_y).double().mean()
    model.train()
    return float(loss), float(accuracy)
