"""`CopyTrainer`: copies of a problem's model and optimizer to train on its batches; nothing of the user's changes."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from statistics import fmean
from typing import Any, Literal

from torch import nn
from torch.optim import SGD, Optimizer

from wellcond.errors import InvalidProblem
from wellcond.network.graph import leaves_of
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.problem.batches import Batch
from wellcond.problem.problem import Problem
from wellcond.problem.ranks.orders import Member
from wellcond.problem.ranks.rank_source import grouped, parted
from wellcond.problem.training_step import TrainingStep
from wellcond.results import Cost
from wellcond.training.copy_run import CopyRun, copy_of_model, in_training
from wellcond.training.optimizers import (
    DEFAULT_MOMENTUM,
    check_hooks,
    configured_lr,
    copy_for,
    groups_of,
    largest_lr,
    nonzero_lr,
    set_lr,
    unwrapped,
)

READS_THE_MODEL = (
    "the loss reads the weights of the model itself, so no copy of the model can be trained by it. Let it depend on "
    "its arguments (outputs, targets) alone."
)
STEP_READS = (
    "training_step uses the model itself and not the one that it is called with, so no copy of the model can be "
    "trained by it. Let it use its first argument: def training_step(model, batch): …"
)

MEASURED_STEPS = 3
"""Steps that are timed; the first of them warms up, and is left out."""

Prepare = Callable[[nn.Module, Optimizer, int], None]
"""Called with a copy of the model, its optimizer and the seed of the run, before its first step."""


class CopyTrainer:
    """Trains copies of a problem's model on its batches, in training mode: batch statistics, and dropout by a seed.

    Making one takes a forward pass of the first batch, so that bad data is not mistaken for bad training.

    Args:
        problem: Its model is copied; it is not changed. Training reads all of its loader.
        optimizer: Copied with its settings and state; None: SGD.
        momentum: Momentum of SGD where no optimizer is given.
        before_training: Called on each copy before its first step.

    Attributes:
        optimizer: The one that takes the steps: that inside a wrapper such as Accelerate's.
        batch: The first batch, as (inputs, targets).
        first_loss: Its loss before training.
        batch_count: Batches in one pass; 1 if a loader has no length.
        outsiders: Tensors outside of the model to which the loss gives gradients: its own parameters, or inputs.
        checked: Steps, by seed and number, whose batch has been checked for what a GPU would not survive.
        cost: Cost of all runs so far. One u is a training step: forward and backward pass of one mini-batch.

    Raises:
        InvalidProblem: The plain network cannot be trained on the batches, its loss reads the user's own weights, or
            the optimizer holds none of them.
        NonFinite: The data, or the loss before any step, are not finite.
        Unsupported: The model cannot be copied, or hooks change the optimizer's step.
    """

    def __init__(
        self,
        problem: Problem,
        optimizer: Optimizer | None = None,
        momentum: float = DEFAULT_MOMENTUM,
        *,
        before_training: Sequence[Prepare] = (),
    ) -> None:
        self.problem, self.momentum, self._before_training = problem, momentum, before_training
        self.optimizer = None if optimizer is None else unwrapped(optimizer)
        plain = in_training(problem, copy_of_model(problem), seed=0)
        if self.optimizer is not None:
            groups_of(problem, self.optimizer)
            check_hooks(self.optimizer)
        member = getattr(problem.source, "member", None)
        is_shared = member is not None and problem.model is member.problem.model and problem.loss is member.problem.loss
        self.member: Member | None = member if is_shared and not before_training else None
        self.cost = Cost(forwards=1)
        self.checked: set[tuple[int, int]] = set()
        self.batch_count = length_hint(problem.loader, 0) or 1
        with own_arithmetic():  # another thread may be measuring the model, which changes its state
            self._pass_first_batch(plain)

    def _pass_first_batch(self, plain: Problem) -> None:
        with plain.as_trained(), plain.measuring(), contextlib.closing(plain.draws(0)) as batches:
            self.batch = next(batches)
            losses = [plain.training_loss(0, part) for part in self.parts(self.batch)]
        self.first_loss = fmean(float(loss.detach()) for loss in losses)
        self.outsiders = set(leaves_of([losses[0].grad_fn])) - set(plain.params.values())
        if not self.outsiders.isdisjoint(self.problem.params.values()):
            raise InvalidProblem(STEP_READS if isinstance(plain.loss, TrainingStep) else READS_THE_MODEL)

    def parts(self, batch: Batch) -> list[Batch]:
        """What a batch of a training step consists of: the part of each process, or the batch itself."""
        return [batch] if self.member is None else parted(batch, len(self.member.trainers))

    @property
    def small_batch(self) -> Batch:
        """The first batch; of several processes as much of it as one of them can measure."""
        return self.batch if self.member is None else next(grouped(self.parts(self.batch)))

    def depends_on_seed(self) -> bool:
        """Whether two seeds give two runs. With one batch, no dropout and nothing else random they do not."""
        if self.batch_count > 1:
            return True
        other = in_training(self.problem, copy_of_model(self.problem), seed=1)
        with other.as_trained(), other.measuring(), contextlib.closing(other.draws(1)) as batches:
            loss = float(other.training_loss(0, next(batches)).detach())
        self.cost += Cost(forwards=1)
        return loss != self.first_loss

    def timed_step(self, seed: int) -> tuple[float, float]:
        """Seconds and u of a training step, by a few of a copy.

        Args:
            seed: As in `start`.
        """
        seconds, before = [], self.cost.u
        run = self.start(seed=seed)
        with self.batches(seed) as batches, run.training():
            for _ in range(MEASURED_STEPS):
                begin = time.perf_counter()
                run.step(next(batches))
                seconds.append(time.perf_counter() - begin)
        return min(seconds[1:]), (self.cost.u - before) / max(len(run.losses), 1)

    def start(
        self,
        lr: float | None = None,
        *,
        factor: float = 1.0,
        most: float = math.inf,
        seed: int = 0,
        dropout: bool = True,
        batchnorm: Literal["batch", "running"] = "batch",
        **settings: Any,
    ) -> CopyRun:
        """A copy of the model and of the optimizer, ready to train.

        Args:
            lr: The largest learning rate; configured rates of other groups stay in proportion. None: the current rates,
                or the configured ones where a schedule holds them at zero, times `factor`.
            factor: Factor of all rates, where no `lr` is given.
            most: The highest rate that a group may have then.
            seed: Decides dropout, the order of a loader that shuffles, and with which batch to begin: with that of
                index `seed` (modulo their number), so that seeds differ also where nothing is random.
            dropout: Whether dropout is on; it is, too, if the problem itself is measured with it.
            batchnorm: The statistics that BatchNorm uses.
            settings: Other settings of the optimizer, for every group that has them.
        """
        model = copy_of_model(self.problem)
        if self.optimizer is None:
            optimizer: Optimizer = SGD(model.parameters(), lr or 0.0, self.momentum)
        else:
            optimizer = copy_for(self.optimizer, self.problem.model, model)
            largest = largest_lr(self.optimizer)
            for group in optimizer.param_groups:
                if lr is None:
                    set_lr(group, min(factor * nonzero_lr(group), most))
                else:
                    set_lr(group, lr * configured_lr(group) / largest if largest else lr)
                group |= {name: value for name, value in settings.items() if name in group}
        for prepare in self._before_training:
            prepare(model, optimizer, seed)
        problem = in_training(self.problem, model, seed if dropout else self.problem.dropout, batchnorm)
        return CopyRun(self, problem, optimizer, seed)

    @contextlib.contextmanager
    def batches(self, seed: int, skip: int = 0) -> Iterator[Iterator[Batch]]:
        """The loader's batches over and over, from that of index `seed` on; read them while a run is in training.

        Args:
            seed: As in `start`.
            skip: The number of batches to leave out.
        """
        with contextlib.closing(in_training(self.problem, self.problem.model, seed).draws(seed)) as batches:
            yield islice(batches, seed % self.batch_count + skip, None)
