"""`CopyRun`: one copy of a model in training, with what has happened so far."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer, SparseAdam

from wellcond.errors import NonFinite, WellcondError
from wellcond.network.guarded import known_indices
from wellcond.network.isolation.arithmetic import attention_of_training, own_arithmetic
from wellcond.network.isolation.copies import copied
from wellcond.problem.arguments import check_unchanged
from wellcond.problem.batches import Batch
from wellcond.problem.problem import Problem
from wellcond.problem.within_memory import OVER_STEP
from wellcond.results import Cost, Progress
from wellcond.results.run import Run
from wellcond.training.constant_prediction import BestConstant, are_all_the_same
from wellcond.training.optimizers import scaler_copy, take_step
from wellcond.training.shared_steps import shared_loss

if TYPE_CHECKING:
    from wellcond.training.copy_trainer import CopyTrainer


def copy_of_model(problem: Problem) -> nn.Module:
    """A copy of the model of a problem that is as it was when the problem was made."""
    check_unchanged(problem)
    with own_arithmetic():  # another thread may be measuring the model, which changes its state
        return copied(problem.model)


def in_training(
    problem: Problem, model: nn.Module, seed: int | None, batchnorm: Literal["batch", "running"] = "batch"
) -> Problem:
    """The problem with another model, which `measuring()` puts into training mode; the seed is that of dropout."""
    with problem.as_trained():
        return Problem(model, problem.loss, problem.source, batchnorm, dropout=seed)


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
        self._activations = 0  # bytes that the graph of a step holds on a GPU
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
                before = self._allocated()
                loss = self.problem.training_loss(taken, batch)
                self._activations = max(self._activations, self._allocated() - before)
                return loss

        try:
            loss = take_step(self.optimizer, loss_now, scaler=self._scaler)
        except NonFinite as error:
            self.diverged_at, self.cause = taken + 1, str(error)
            return
        if math.isfinite(loss):
            self.losses.append(loss)
        else:
            self.diverged_at = taken + 1

    def run(self, steps: int, progress: Progress | None = None, *, batches: Iterator[Batch] | None = None) -> Run:
        """Take further steps until the run diverges.

        Args:
            steps: The number of steps.
            progress: Called as (what is being done, share of all work done).
            batches: What to train on; None: the trainer's batches that follow those of the steps so far.

        Returns:
            The run so far.

        Raises:
            WellcondError: The model cannot be trained so.
        """
        own = self._trainer.batches(self._seed, len(self.losses))
        with own if batches is None else contextlib.nullcontext(batches) as source, self.training():
            for done in range(steps):
                if self.diverged_at is not None:
                    break
                self.step(next(source))
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

    def best_constant(self, batches: Sequence[Batch]) -> BestConstant | None:
        """The best constant prediction of some batches; None if all inputs are the same, or a loss is not finite."""
        if are_all_the_same([inputs for inputs, _ in batches]):
            return None
        try:
            with self.problem.as_trained(), self.problem.measuring():
                evaluations = [self.problem.evaluate(index, batch) for index, batch in enumerate(batches)]
        except WellcondError:  # a sum, or a loss that is not finite, has no mean to compare with
            return None
        self._trainer.cost += Cost(forwards=len(batches))
        return BestConstant(self.problem, evaluations)

    @contextlib.contextmanager
    def parked(self) -> Iterator[None]:
        """Inside, a copy on a GPU lies in the memory of the host, with its optimizer's state: another run has the room.

        Gradients are dropped; the next step computes its own. A copy stays where it is if another one like it can train
        within twice what a training step holds: moving it takes as long as dozens of steps, and that of a billion
        weights as long as hundreds.
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
        step = size + self._activations
        return self._allocated() + step <= OVER_STEP * step

    def _allocated(self) -> int:
        device = self.problem.device
        return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0

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
