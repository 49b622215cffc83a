"""Training copies of a problem's model and optimizer: nothing of the user's changes."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer, SparseAdam

from wellcond.errors import InvalidProblem, NonFinite, WellcondError
from wellcond.network.calling import tensors_in
from wellcond.network.graph import leaves_of
from wellcond.network.guarded import known_indices
from wellcond.network.isolation.arithmetic import attention_of_training, own_arithmetic
from wellcond.network.isolation.copies import copied
from wellcond.problem.arguments import check_unchanged
from wellcond.problem.loss.constant import constant_loss
from wellcond.problem.problem import Batch, Problem
from wellcond.problem.ranks.orders import Member
from wellcond.problem.ranks.rank_source import grouped, parted
from wellcond.problem.training_step import TrainingStep
from wellcond.results import Cost, Progress
from wellcond.results.run import Run
from wellcond.training.optimizers import (
    DEFAULT_MOMENTUM,
    check_hooks,
    configured_lr,
    copy_for,
    groups_of,
    largest_lr,
    nonzero_lr,
    scaler_copy,
    set_lr,
    take_step,
    unwrapped,
)
from wellcond.training.shared_steps import shared_loss

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
MANY = 10
"""Examples for every entry of a constant, from which on its loss is about that on other examples."""
SAME = 0.02
"""Variation of outputs, over their size, below which they are the same for all inputs. It is 1e-5 for six layers of
sigmoids that no rate trains, and 0.2 and more where transformers wait on their first plateau."""
RECENT = 8
"""Batches that runs in step remember."""

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
        check_unchanged(problem)
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
            self._pass_first_batch(problem)

    def _pass_first_batch(self, problem: Problem) -> None:
        plain = self._problem_of(copied(problem.model), seed=0)
        with plain.as_trained(), plain.measuring(), contextlib.closing(plain.draws(0)) as batches:
            self.batch = next(batches)
            losses = [plain.training_loss(0, part) for part in self.parts(self.batch)]
        self.first_loss = fmean(float(loss.detach()) for loss in losses)
        self.outsiders = set(leaves_of([losses[0].grad_fn])) - set(plain.params.values())
        if not self.outsiders.isdisjoint(problem.params.values()):
            raise InvalidProblem(STEP_READS if isinstance(problem.loss, TrainingStep) else READS_THE_MODEL)

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
        other = self._problem_of(copied(self.problem.model), seed=1)
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
        model = copied(self.problem.model)
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
        problem = self._problem_of(model, seed if dropout else self.problem.dropout, batchnorm)
        return CopyRun(self, problem, optimizer, seed)

    @contextlib.contextmanager
    def in_step(self, seed: int = 0) -> Iterator[InStep]:
        """Runs in step with each other, on the same batches and with the same dropout masks.

        Args:
            seed: As in `start`.
        """
        with contextlib.ExitStack() as stack:
            batches = stack.enter_context(self.batches(seed))
            yield InStep(batches, stack)

    @contextlib.contextmanager
    def batches(self, seed: int, skip: int = 0) -> Iterator[Iterator[Batch]]:
        """The loader's batches over and over, from that of index `seed` on; read them while a run is in training.

        Args:
            seed: As in `start`.
            skip: The number of batches to leave out.
        """
        with contextlib.closing(self._problem_of(self.problem.model, seed).draws(seed)) as batches:
            yield islice(batches, seed % self.batch_count + skip, None)

    def _problem_of(
        self, model: nn.Module, seed: int | None, batchnorm: Literal["batch", "running"] = "batch"
    ) -> Problem:
        """The problem with another model, which `measuring()` puts into training mode."""
        with self.problem.as_trained():
            return Problem(model, self.problem.loss, self.problem.source, batchnorm, dropout=seed)


class CopyRun:
    """A copy in training: what has happened so far, and further steps.

    Attributes:
        problem: The user's problem with the copy of the model.
        optimizer: It holds the copy's parameters.
        losses: The loss of every step so far, on its batch and before its update.
        diverged_at: The step, counted from 1, whose loss was not finite; it is the run's last. None if there is none.
        cause: What was not finite, where that is known.
    """

    def __init__(self, trainer: CopyTrainer, problem: Problem, optimizer: Optimizer, seed: int) -> None:
        self.problem, self.optimizer = problem, optimizer
        self._trainer, self._seed = trainer, seed
        self.losses: list[float] = []
        self.diverged_at: int | None = None
        self.cause = ""
        self._scaler = scaler_copy(problem.precision, problem.device.type)
        self._hooks = [(p, h) for p in problem.model.parameters() for h in (p._backward_hooks or {}).values()]
        modules = list(problem.model.modules())
        self._norms = [m for m in modules if isinstance(m, _BatchNorm)]
        embeddings = [m for m in modules if isinstance(m, (nn.Embedding, nn.EmbeddingBag)) and m.sparse]
        self._sparse = embeddings if isinstance(optimizer, SparseAdam) else []

    @property
    def model(self) -> nn.Module:
        """The copy."""
        return self.problem.model

    @property
    def as_run(self) -> Run:
        """The run so far."""
        return Run(tuple(self.losses), self.diverged_at, self.cause)

    @contextlib.contextmanager
    def _passing(self) -> Iterator[None]:
        """The state in which passes are made: in the precision of training and with its kernels."""
        with self.problem.as_trained(), self.problem.measuring(), attention_of_training():
            yield

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """The state in which steps are taken; on leaving, the `.grad` of tensors outside of the copy is as before."""
        with self._passing(), _gradients_kept(self._trainer.outsiders), _hooked(self._hooks):
            for norm in self._norms:
                norm.track_running_stats = norm.running_mean is not None  # a measurement stops their updates
            for embedding in self._sparse:
                embedding.sparse = True  # a measurement makes gradients dense, which SparseAdam refuses
            yield

    @contextlib.contextmanager
    def counted(self) -> Iterator[Problem]:
        """The problem with the copy, for other passes than steps and evaluations, which count as those of a run do."""
        before = self.problem.cost
        try:
            yield self.problem
        finally:
            self._trainer.cost += self.problem.cost - before

    def step(self, batch: Batch) -> None:
        """Train on one batch, inside `training()`; a run that has diverged stays as it is."""
        if self.diverged_at is not None:
            return
        taken = len(self.losses)

        is_checked = self.problem.device.type == "cuda" and (self._seed, taken) in self._trainer.checked
        self._trainer.checked.add((self._seed, taken))

        def loss_now() -> Tensor:  # which LBFGS calls several times per step
            self._trainer.cost += Cost(1, 1)
            with known_indices() if is_checked else contextlib.nullcontext():
                if self._trainer.member is not None and not self._sparse:
                    return shared_loss(self._trainer.member, self.problem, taken, batch)
                return self.problem.training_loss(taken, batch)

        try:
            loss = take_step(self.optimizer, loss_now, scaler=self._scaler)
        except NonFinite as error:
            self.diverged_at, self.cause = taken + 1, str(error)
            return
        if math.isfinite(loss):
            self.losses.append(loss)
        else:
            self.diverged_at = taken + 1

    def run(self, steps: int, progress: Progress | None = None) -> Run:
        """Take further steps, on the batches that follow those of the steps so far, until the run diverges.

        Args:
            steps: The number of steps.
            progress: Called as (what is being done, share of all work done).

        Returns:
            The run so far.

        Raises:
            WellcondError: The model cannot be trained so.
        """
        with self._trainer.batches(self._seed, len(self.losses)) as batches, self.training():
            for done in range(steps):
                if self.diverged_at is not None:
                    break
                self.step(next(batches))
                if progress is not None:
                    progress("training", (done + 1) / steps)
        return self.as_run

    def evaluate(self) -> list[float]:
        """The loss of each of the problem's batches at the present weights; NaN where it is not finite."""
        losses = []
        with self._passing(), torch.no_grad(), contextlib.closing(self.problem.data()) as data:
            for index, batch in data:
                self._trainer.cost += Cost(forwards=1)
                try:
                    losses.append(float(self.problem.training_loss(index, batch)))
                except NonFinite:
                    losses.append(math.nan)
        return losses

    def outputs(self) -> list[Any]:
        """The model's outputs on each of the problem's batches."""
        with self._passing(), torch.no_grad(), contextlib.closing(self.problem.data()) as data:
            outputs = [self.problem.forward(index, inputs) for index, (inputs, _) in data]
        self._trainer.cost += Cost(forwards=len(outputs))
        return outputs

    def loss_if_constant(self, batches: Sequence[Batch]) -> float | None:
        """The loss of the best constant prediction of some batches, where the outputs hardly depend on the inputs.

        None if they do, if all inputs are the same, or if that loss is not known. A network that is slow to start is at
        the same loss for a while, but its outputs differ from input to input.
        """
        return self._constant_loss(batches, _hardly_vary)

    def loss_of_constant(self, batches: Sequence[Batch]) -> float | None:
        """The loss of the best constant prediction of some batches, whatever the outputs depend on.

        None if all inputs are the same, if that loss is not known, or if the examples are too few to say what it is on
        others: a constant with an output for each of them would fit them.
        """
        return self._constant_loss(batches, _are_many)

    def _constant_loss(self, batches: Sequence[Batch], is_asked: Callable[[Sequence[Tensor]], bool]) -> float | None:
        if _are_all_the_same([inputs for inputs, _ in batches]):
            return None
        try:
            with self.problem.as_trained(), self.problem.measuring():
                evaluations = [self.problem.evaluate(index, batch) for index, batch in enumerate(batches)]
        except WellcondError:  # a sum, or a loss that is not finite, has no mean to compare with
            return None
        self._trainer.cost += Cost(forwards=len(batches))
        outputs = [each.outputs.detach() for each in evaluations if each.outputs is not None]
        if len(outputs) < len(batches) or not is_asked(outputs):
            return None
        targets = [each.targets for each in evaluations]
        least = constant_loss(self.problem.loss_of_outputs, self.problem.likelihood, outputs, targets)
        # targets that are all the same, as a GAN's, are no yardstick: a constant gets them right
        return (
            None if least is None or abs(least) < 1e-4 * min(abs(float(evaluations[0].loss.detach())), 1.0) else least
        )

    @contextlib.contextmanager
    def parked(self) -> Iterator[None]:
        """Inside, a copy on a GPU lies in the memory of the host, with its optimizer's state: another run has the room.

        Gradients are dropped; the next step computes its own. A copy stays where it is if another one like it fits
        below the peak of what the GPU has held so far: moving it takes as long as dozens of steps.
        """
        device = self.problem.device
        on_device = [
            (state, name)
            for state in self.optimizer.state.values()
            for name, value in state.items()
            if isinstance(value, Tensor) and value.device == device
        ]
        if device.type == "cpu" or self._fits_again(state[name] for state, name in on_device):
            yield
            return
        self._move("cpu", on_device)
        try:
            yield
        finally:
            self._move(device, on_device)

    def _fits_again(self, states: Iterable[Tensor]) -> bool:
        weights = [*self.model.parameters(), *self.model.buffers()]
        size = sum(t.numel() * t.element_size() for t in (*weights, *self.model.parameters(), *states))  # and gradients
        device = self.problem.device
        return torch.cuda.memory_allocated(device) + size <= torch.cuda.max_memory_allocated(device)

    def _move(self, device: torch.device | str, states: Iterable[tuple[Any, str]]) -> None:
        for p in self.model.parameters():
            p.grad = None
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            tensor.data = tensor.data.to(device)
        for state, name in states:
            state[name] = state[name].to(device)

    def release(self) -> None:
        """Free what only further steps would need."""
        self.optimizer.state.clear()
        self.optimizer.zero_grad(set_to_none=True)


class InStep:
    """Runs in step with each other: each batch is read once, and all are trained on it.

    Batches are stored, so that another run can still join, until `close()`.

    Attributes:
        recent: The last few batches.
    """

    def __init__(self, batches: Iterator[Batch], stack: contextlib.ExitStack) -> None:
        self._batches, self._stack = batches, stack
        self._stored: list[Batch] | None = []
        self.recent: deque[Batch] = deque(maxlen=RECENT)

    def join(self, run: CopyRun) -> None:
        """Train a further run on the batches that the others have seen."""
        assert self._stored is not None
        self._stack.enter_context(run.training())
        for batch in self._stored:
            run.step(batch)

    def advance(self, runs: Collection[CopyRun]) -> None:
        """Take one step of these runs, all on the next batch."""
        if all(run.diverged_at is not None for run in runs):
            return
        batch = next(self._batches)
        self.recent.append(batch)
        if self._stored is not None:
            self._stored.append(batch)
        for run in runs:
            run.step(batch)

    def close(self) -> None:
        """Store no further batches: no run will join."""
        self._stored = None


def _hardly_vary(outputs: Sequence[Tensor]) -> bool:
    """Whether outputs hardly differ from example to example, compared with their size."""
    if any(not each.dim() or each.shape[1:] != outputs[0].shape[1:] for each in outputs):
        return False
    every = torch.cat([each.double() for each in outputs])
    return bool((every - every.mean(0)).square().mean() <= SAME**2 * every.square().mean())


def _are_many(outputs: Sequence[Tensor]) -> bool:
    """Whether there are many examples for every output of one."""
    return all(each.dim() for each in outputs) and sum(map(len, outputs)) >= MANY * max(1, outputs[0][0].numel())


def _are_all_the_same(inputs: Sequence[Any]) -> bool:
    """Whether no example differs from another, so that a constant is the best prediction."""
    columns = zip(*(tensors_in(each) for each in inputs), strict=False)
    return all(each.dim() and bool((each == column[0][:1]).all()) for column in columns for each in column)


@contextlib.contextmanager
def _hooked(hooks: Iterable[tuple[Tensor, Callable[[Tensor], Tensor | None]]]) -> Iterator[None]:
    """Inside, gradients pass the user's hooks, which a measurement turns off: they are part of training."""
    handles = [p.register_hook(hook) for p, hook in hooks]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _gradients_kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """The `.grad` of parameters of the loss, or of inputs, is as before afterwards."""
    gradients = [(tensor, tensor.grad) for tensor in tensors]
    for tensor, _ in gradients:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, gradient in gradients:
            tensor.grad = gradient
