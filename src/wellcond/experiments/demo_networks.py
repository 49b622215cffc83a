"""The demo's experiment: a deep network that cannot train, and the same network with BatchNorm."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from wellcond.curvature.hessian import Hessian
from wellcond.data import digits
from wellcond.diagnosis.diagnose import diagnose
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.models import mlp
from wellcond.models.mlp import Norm
from wellcond.problem.problem import Problem
from wellcond.results import Progress, Row
from wellcond.results.quantities import TEST_ACCURACY, TRAINED_LR, TRAINED_MAX_LR
from wellcond.spectral.density import Density, density
from wellcond.stability.max_lr import max_lr
from wellcond.training.loop import train
from wellcond.training.run import Run

NETWORKS: dict[str, Norm] = {"plain": "none", "batchnorm": "batch"}
EXAMPLES = 512
LEARNING_RATES = (0.03, 0.1, 0.3, 1.0)
STEPS = 100
BATCH = 128

Labelled = tuple[Tensor, Tensor]
"""Inputs and labels."""


@dataclass(frozen=True)
class Compared:
    """One network at its initialisation, and what came of training it.

    Attributes:
        diagnosis: Before training, with plain SGD at the best learning rate.
        density: Of the Hessian before training.
        training: The best run as rows, with its learning rate, its test accuracy in % and the largest stable rate
            after it.
    """

    diagnosis: Diagnosis
    density: Density
    training: list[Row]

    def rows(self) -> list[Row]:
        """Those of the diagnosis and of the training."""
        return [*self.diagnosis.rows(), *self.training]


def compare(depth: int, width: int, progress: Progress) -> dict[str, Compared]:
    """Train both networks with SGD at several learning rates from LeCun's initialisation, and diagnose them there.

    LeCun's weights, N(0, 1/fan_in), halve the square of the signal at every ReLU: 19 of them leave 2⁻¹⁹ of it.

    Args:
        depth: Linear layers of each network.
        width: Units of each hidden layer.
        progress: Called as (what is being done, share of all work done).
    """
    training, test = digits(train=True).tensors(flatten=True), digits(train=False).tensors(flatten=True)

    def part(i: int, name: str) -> Progress:
        return lambda what, share: progress(f"{name}: {what}", (i + share) / len(NETWORKS))

    compared = {}
    for i, (name, norm) in enumerate(NETWORKS.items()):
        model = mlp([training[0].shape[1], *[width] * (depth - 1), 10], norm=norm, init="lecun", seed=0)
        compared[name] = _compared(model, training, test, part(i, name))
    return compared


def _compared(model: nn.Module, training: Labelled, test: Labelled, progress: Progress) -> Compared:
    runs = {}
    for i, lr in enumerate(LEARNING_RATES):
        progress(f"training at lr {lr:g}", 0.3 * i / len(LEARNING_RATES))
        runs[lr] = _trained(copy.deepcopy(model), training, lr)
    finals = {lr: run.final for lr, (run, _) in runs.items() if run.final is not None}
    best = min(finals, key=finals.__getitem__, default=LEARNING_RATES[0])
    problem = Problem(model, nn.CrossEntropyLoss(), (training[0][:EXAMPLES], training[1][:EXAMPLES]))
    optimizer = SGD(model.parameters(), lr=best)
    diagnosis = diagnose(problem, optimizer, progress=lambda what, share: progress(what, 0.3 + 0.4 * share))
    progress("Hessian density", 0.7)
    curve = density(Hessian(problem), probes=2, iterations=30)
    progress("Hessian after training", 0.95)
    run, trained = runs[best]
    rows = [*run.rows(), Row(None, "", TRAINED_LR, best, "lr")]
    rows.append(Row(None, "", TEST_ACCURACY, 100 * _accuracy(trained, test), "%"))
    if best in finals:
        limit = max_lr(Problem(trained, problem.loss, problem.batches), momentum=0.0, max_matvecs=100).value
        rows += [Row(None, "", TRAINED_MAX_LR, limit, "lr")] if math.isfinite(limit) else []
    return Compared(diagnosis, curve, rows)


def _trained(model: nn.Module, data: Labelled, lr: float) -> tuple[Run, nn.Module]:
    def batches() -> Iterator[Labelled]:
        generator = torch.Generator().manual_seed(0)
        while True:
            chosen = torch.randint(len(data[0]), (BATCH,), generator=generator)
            yield data[0][chosen], data[1][chosen]

    optimizer = SGD(model.parameters(), lr=lr)
    return train(optimizer, lambda _step, batch: cross_entropy(model(batch[0]), batch[1]), batches(), STEPS), model


@torch.no_grad()
def _accuracy(model: nn.Module, test: Labelled) -> float:
    model.eval()
    return float((model(test[0]).argmax(1) == test[1]).float().mean())
