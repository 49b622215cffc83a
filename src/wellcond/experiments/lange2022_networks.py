"""The fully connected networks of lange2022 and how they are trained: a method, a rate, a seed; loss and accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from wellcond.data.dataset import Dataset
from wellcond.models import mlp
from wellcond.models.initialise import make_generator
from wellcond.nn import BatchRenorm1d
from wellcond.report.style import draw_curves
from wellcond.results import Row
from wellcond.results.quantities import LOSS, TEST_ACCURACY
from wellcond.training.loop import train

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Probe = Callable[[int, Tensor], None]
"""Called as (number of steps taken, inputs of the next mini-batch)."""

SEEDS = (0, 1, 2)
UNLIMITED = 1e6
POST_ACTIVATION: dict[str, Callable[[int], nn.Module]] = {
    "BN": nn.BatchNorm1d,
    # torch has none: TensorFlow's defaults, which the source says it took; they correct without limits from the start
    "Renorm": partial(
        BatchRenorm1d, eps=1e-3, momentum=0.01, r_max=UNLIMITED, d_max=UNLIMITED, r_ramp=(0, 1), d_ramp=(0, 1)
    ),
}
"""Norms behind the activation, as in the source; LayerNorm, of which it does not say, stands before it."""


class Data(NamedTuple):
    """Inputs (n, d) and labels (n,) to learn from, and to test on.

    The training loss is that of the first `evaluated` images.
    """

    x: Tensor
    y: Tensor
    evaluated: int
    test_x: Tensor
    test_y: Tensor


@dataclass(frozen=True)
class Curves:
    """Training loss and test accuracy (a share) after each of `steps`, both in eval mode.

    If a loss was not finite, `diverged_at` is the step, and the curves end before it.
    """

    steps: list[int]
    losses: list[float]
    accuracies: list[float]
    diverged_at: int | None = None

    def first_step_at(self, loss: float) -> float | None:
        """The first step with a loss of at most `loss`, on a curve linear between evaluations; None if there is none.

        Example:
            >>> Curves([0, 100, 200], [3.0, 2.0, 1.0], [0.1, 0.2, 0.3]).first_step_at(1.75)
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
    training: Dataset,
    test: Dataset,
    *,
    standardize: bool = False,
    evaluated: int = 5000,
    dtype: torch.dtype = torch.float32,
) -> Data:
    """Pixels in [0, 1], one row per image; `standardize` centres and scales the channels of either set."""
    x, y = training.tensors(dtype, flatten=True, standardize=standardize)
    return Data(x, y, evaluated, *test.tensors(dtype, flatten=True, standardize=standardize))


def network(method: str, sizes: Sequence[int], seed: int) -> nn.Sequential:
    """The perceptron of a method. The linear layers of a seed are the same for all methods.

    Example:
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


def train_network(
    model: nn.Module,
    optimizer: Optimizer,
    data: Data,
    *,
    batch: int,
    steps: int,
    every: int,
    seed: int,
    before_step: Probe | None = None,
) -> Curves:
    """Train on mini-batches that the seed alone decides; evaluate before the first step and after `every` so many."""

    def loss_at(_step: int, index: Tensor) -> Tensor:
        return functional.cross_entropy(model(data.x[index]), data.y[index])

    @torch.no_grad()
    def evaluate(step: int) -> list[Row]:
        model.eval()
        loss = functional.cross_entropy(model(data.x[: data.evaluated]), data.y[: data.evaluated])
        accuracy = (model(data.test_x).argmax(1) == data.test_y).double().mean()
        model.train()
        return [Row(step, "", LOSS, float(loss), ""), Row(step, "", TEST_ACCURACY, float(accuracy), "")]

    run = train(
        optimizer, loss_at, index_batches(len(data.y), batch, seed), steps, evaluate=evaluate, every=every,
        before_step=None if before_step is None else lambda step, index: before_step(step, data.x[index]),
    )  # fmt: skip
    places = [row.step or 0 for row in run.evaluations if row.quantity == LOSS]
    return Curves(places, run.evaluated(LOSS), run.evaluated(TEST_ACCURACY), run.diverged_at)


def draw_training(losses: Axes, accuracies: Axes, runs: Mapping[str, Sequence[Curves]], order: Sequence[str]) -> None:
    """Draw the mean over seeds and their range, one line per method."""
    draw_curves(losses, {name: [(run.steps, run.losses) for run in own] for name, own in runs.items()}, order)
    draw_curves(accuracies, {name: [(run.steps, run.accuracies) for run in own] for name, own in runs.items()}, order)
