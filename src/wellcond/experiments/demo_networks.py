"""The demo's experiment: a deep network that cannot train, and the same network with BatchNorm."""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wellcond.curvature.hessian import Hessian
from wellcond.data import digits
from wellcond.diagnosis.diagnose import diagnose
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.models import mlp
from wellcond.models.mlp import Norm
from wellcond.problem.parts import Progress
from wellcond.problem.problem import Problem
from wellcond.results import Row
from wellcond.spectral.density import density
from wellcond.spectral.eigenvalues import eigenvalues

NETWORKS: dict[str, Norm] = {"plain": "none", "batchnorm": "batch"}
EXAMPLES = 512
LEARNING_RATES = (0.03, 0.1, 0.3, 1.0)
STEPS = 100
BATCH = 128
LAST_STEPS = 10
"""Steps over which the loss that training reached is averaged."""

Labelled = tuple[Tensor, Tensor]
"""Inputs and labels."""


@dataclass(frozen=True)
class Compared:
    """One network at its initialisation, and what came of training it (`more`: density and training, as rows)."""

    diagnosis: Diagnosis
    more: list[Row]

    def rows(self) -> list[Row]:
        return [*self.diagnosis.rows(), *self.more]


def compare(depth: int, width: int, progress: Progress) -> dict[str, Compared]:
    """Diagnose both networks at LeCun's initialisation, then train each with SGD at several learning rates.

    LeCun's weights, N(0, 1/fan_in), halve the square of the signal at every ReLU: 19 of them leave 2⁻¹⁹ of it.
    """
    train, test = digits(train=True).tensors(flatten=True), digits(train=False).tensors(flatten=True)

    def part(i: int, name: str) -> Progress:
        return lambda what, share: progress(f"{name}: {what}", (i + share) / len(NETWORKS))

    out = {}
    for i, (name, norm) in enumerate(NETWORKS.items()):
        model = mlp([train[0].shape[1], *[width] * (depth - 1), 10], norm=norm, init="lecun", seed=0)
        out[name] = _compared(model, train, test, part(i, name))
    return out


def _compared(model: nn.Module, train: Labelled, test: Labelled, progress: Progress) -> Compared:
    problem = Problem(model, nn.CrossEntropyLoss(), (train[0][:EXAMPLES], train[1][:EXAMPLES]))
    diagnosis = diagnose(problem, progress=lambda what, share: progress(what, 0.4 * share))
    progress("Hessian density", 0.4)
    more = density(Hessian(problem), probes=2, steps=30).rows()
    runs = []
    for i, lr in enumerate(LEARNING_RATES):
        progress(f"training at lr {lr:g}", 0.65 + 0.3 * i / len(LEARNING_RATES))
        runs.append(_trained(copy.deepcopy(model), train, test, lr))
    best = min(runs, key=lambda run: run.reached)
    progress("Hessian after training", 0.95)
    return Compared(diagnosis, [*more, *best.rows(), *_limit_rows(best, problem)])


def _limit_rows(run: _Run, problem: Problem) -> list[Row]:
    """2/λ_max after training, on the examples of the diagnosis; none after a run that diverged or where λ_max ≤ 0."""
    if math.isinf(run.reached):
        return []
    hessian = Hessian(Problem(run.model, problem.loss, problem.batches))
    sharpest = float(eigenvalues(hessian, tol=1e-2, max_matvecs=100).values[-1])
    return [Row(None, "", "trained_max_lr", 2 / sharpest, "lr")] if sharpest > 0 else []


@dataclass(frozen=True)
class _Run:
    """One training run: the loss of every step, and the share of the test set that is right at its end."""

    model: nn.Module
    lr: float
    losses: list[float]
    accuracy: float

    @property
    def reached(self) -> float:
        """The mean of the last losses; a run that diverged reached nothing."""
        mean = statistics.fmean(self.losses[-LAST_STEPS:])
        return mean if math.isfinite(mean) else math.inf

    def rows(self) -> list[Row]:
        curve = [Row(step, "", "training_loss", loss, "") for step, loss in enumerate(self.losses)]
        return [
            *curve,
            Row(None, "", "trained_loss", self.reached, ""),
            Row(None, "", "trained_steps", float(len(self.losses)), "steps"),
            Row(None, "", "trained_lr", self.lr, "lr"),
            Row(None, "", "trained_accuracy", 100 * self.accuracy, "%"),
        ]


def _trained(model: nn.Module, train: Labelled, test: Labelled, lr: float) -> _Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(STEPS):
        chosen = torch.randint(len(train[0]), (BATCH,), generator=generator)
        loss = F.cross_entropy(model(train[0][chosen]), train[1][chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    model.eval()
    with torch.no_grad():
        right = model(test[0]).argmax(1) == test[1]
    return _Run(model, lr, losses, float(right.float().mean()))
