"""Training on copies of a problem's model and optimizer: nothing of the user's changes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer, SparseAdam

from wellcond.errors import InvalidProblem, Unsupported
from wellcond.learning_rate.limits.step_model import groups_of
from wellcond.network.graph import inputs_of, upstream
from wellcond.nn.replace import copied
from wellcond.optim.bnp import BNP
from wellcond.problem.problem import Batch, Problem
from wellcond.results import Cost, Progress
from wellcond.training.loop import train
from wellcond.training.run import Run

READS_THE_MODEL = (
    "the loss reads the weights of the model itself, so no copy of the model can be trained by it. Let it depend on "
    "its arguments (outputs, targets) alone."
)
HOOKED = """\
{optimizer} has hooks on its step ({hooks}), which a copy of it would not run. Remove them, or pass no optimizer."""

Start = tuple[nn.Module, Optimizer]
"""A copy of the model, and an optimizer that holds the copy's parameters."""


@dataclass
class Racer:
    """A run that can go on: what has happened so far.

    Attributes:
        problem: The user's, with a copy of the model that this run trains.
        optimizer: It holds the copy's parameters.
        losses: Of every step so far, on its batch and before its update.
        diverged_at: The step, counted from 1, whose loss was not finite; it is the run's last.
        cause: What was not finite, where that is known.
        passes: Evaluations of the loss with their backward passes, of which LBFGS takes several per step.
    """

    problem: Problem
    optimizer: Optimizer
    losses: list[float] = field(default_factory=list)
    diverged_at: int | None = None
    cause: str = ""
    passes: int = 0

    @property
    def run(self) -> Run:
        """The run so far."""
        return Run(self.losses, self.diverged_at, self.cause)

    def step(self, batch: Batch) -> None:
        """Train on one batch."""
        taken = len(self.losses)

        def loss_now(_step: int, batch: Batch) -> Tensor:
            self.passes += 1
            return self.problem.loss_of(taken, batch)

        run = train(self.optimizer, loss_now, [batch], 1)
        self.losses += run.losses
        if run.diverged_at is not None:
            self.diverged_at, self.cause = taken + 1, run.cause

    def end(self) -> None:
        """Give back what only further steps would need."""
        self.optimizer.state.clear()
        self.optimizer.zero_grad(set_to_none=True)


class Field:
    """Runs in step with each other: each batch is read once, and all are trained on it.

    Batches are kept, so that another run can still join, until the field is closed.

    Attributes:
        racers: The runs that have not been left behind.
    """

    def __init__(self, copies: Copies, seed: int, stack: contextlib.ExitStack) -> None:
        self.racers: list[Racer] = []
        self._copies, self._seed, self._stack = copies, seed, stack
        self._kept: list[Batch] | None = []
        self._batches = copies._drawn(seed, stack)

    def join(self, model: nn.Module, optimizer: Optimizer) -> Racer:
        """A further run, which is trained on the batches that the others have seen."""
        assert self._kept is not None
        problem = self._copies.in_training(model, self._seed)
        embeddings = (m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)))
        sparse = [m for m in embeddings if m.sparse and isinstance(optimizer, SparseAdam)]
        self._stack.enter_context(problem.measuring())
        for norm in (m for m in model.modules() if isinstance(m, _BatchNorm)):
            norm.track_running_stats = norm.running_mean is not None  # a measurement holds them still
        for embedding in sparse:
            embedding.sparse = True  # a measurement makes gradients dense, which this optimizer refuses
        racer = Racer(problem, optimizer)
        self.racers.append(racer)
        for batch in self._kept:
            self._step(racer, batch)
        return racer

    def advance(self, steps: int, racers: Collection[Racer] | None = None, progress: Progress | None = None) -> None:
        """Train on.

        Args:
            steps: How many.
            racers: Which runs go on; the others are left behind. None for all.
            progress: Called as (what is being done, share done) after every step.
        """
        if racers is not None:
            for racer in self.racers:
                if racer not in racers:
                    racer.end()
            self.racers = list(racers)
        for done in range(steps):
            if all(racer.diverged_at is not None for racer in self.racers):
                break
            batch = next(self._batches)
            if self._kept is not None:
                self._kept.append(batch)
            for racer in self.racers:
                self._step(racer, batch)
            if progress is not None:
                progress("training", (done + 1) / steps)

    def close(self) -> None:
        """No further run joins."""
        self._kept = None

    def _step(self, racer: Racer, batch: Batch) -> None:
        if racer.diverged_at is None:
            before = racer.passes
            racer.step(batch)
            self._copies.cost += Cost(racer.passes - before, racer.passes - before)


class Copies:
    """Trains copies of a problem's model on its batches, in training mode: batch statistics, and dropout by a seed.

    Making one takes a forward pass of the first batch, which tells bad data from bad training.

    Args:
        problem: Its model is copied; it is not changed.
        optimizer: Copied with its settings and state; None: SGD.
        momentum: Of SGD where no optimizer is given.

    Attributes:
        optimizer: The one that takes the steps: that inside a wrapper such as Accelerate's.
        batch: The first one, as (inputs, targets).
        first_loss: Its loss before training.
        batch_count: Batches in one pass; 1 if a loader has no length.
        cost: Of all runs so far. One u is here a forward and backward pass of one mini-batch: a training step.

    Raises:
        InvalidProblem: The plain network cannot be trained on the batches, its loss reads the user's own weights, or
            the optimizer holds none of them.
        NonFinite: The data, or the loss before any step, are not finite.
        Unsupported: The model cannot be copied, or hooks change the optimizer's step.
    """

    def __init__(self, problem: Problem, optimizer: Optimizer | None = None, momentum: float = 0.0) -> None:
        self.problem, self.momentum = problem, momentum
        self.optimizer = None if optimizer is None else inner(optimizer)
        self.cost = Cost()
        self._outsiders: set[Tensor] = set()
        """Tensors outside the model to which the loss gives gradients: its own parameters, or inputs."""
        with problem.measuring():
            pass  # a stale problem is refused here: copies would not show that it is
        if self.optimizer is not None:
            check_optimizer(problem, self.optimizer)
        self.batch_count = length_hint(problem.loader, 0) or 1
        plain = self.in_training(copied(problem.model), seed=0)
        with plain.measuring(), contextlib.closing(plain.draws(0)) as batches:
            self.batch = next(batches)
            evaluation = plain.evaluate(0, self.batch)
            self.first_loss = float(evaluation.loss.detach())
            self._outsiders = leaves_of(evaluation.loss) - set(plain.params.values())
        if not set(problem.params.values()).isdisjoint(self._outsiders):
            raise InvalidProblem(READS_THE_MODEL)
        self.cost += Cost(forwards=1)

    def depend_on_seed(self) -> bool:
        """Whether two seeds give two runs. With one batch, no dropout and nothing else random they do not."""
        if self.batch_count > 1:
            return True
        other = self.in_training(copied(self.problem.model), seed=1)
        with other.measuring(), contextlib.closing(other.draws(1)) as batches:
            loss = float(other.evaluate(0, next(batches)).loss.detach())
        self.cost += Cost(forwards=1)
        return loss != self.first_loss

    @property
    def inputs(self) -> Any:
        """Those of the first batch."""
        return self.batch[0]

    def start(self, lr: float) -> Start:
        """A copy of the model and of the optimizer, whose largest rate is `lr`; other rates stay in proportion."""
        model = copied(self.problem.model)
        if self.optimizer is None:
            return model, SGD(model.parameters(), lr, self.momentum)
        twin = twin_of(self.optimizer, self.problem.model, model)
        largest = largest_lr(self.optimizer)
        for group, own in zip(twin.param_groups, self.optimizer.param_groups, strict=True):
            rate = lr * _lr(own) / largest if largest else lr
            group["lr"] = torch.full_like(group["lr"], rate) if isinstance(group["lr"], Tensor) else rate
        return model, twin

    @contextlib.contextmanager
    def racing(self, starts: Sequence[Start], seed: int = 0) -> Iterator[Field]:
        """Runs in step with each other, from these starts and with the same batches and the same dropout masks.

        Args:
            starts: Copies of the model and their optimizers.
            seed: Decides dropout, the order of a loader that shuffles, and with which batch to begin: with that of
                index `seed` (modulo their number), so that seeds differ also where nothing is random.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(gradients_kept(self._outsiders))
            field = Field(self, seed, stack)
            for start in starts:
                field.join(*start)
            yield field

    def run(
        self, model: nn.Module, optimizer: Optimizer, steps: int, seed: int = 0, progress: Progress | None = None
    ) -> Run:
        """Train one copy of the problem's model.

        Args:
            model: The copy.
            optimizer: It holds the copy's parameters.
            steps: The length of the run.
            seed: As in `racing`.
            progress: Called as (what is being done, share of all work done).

        Raises:
            WellcondError: The model cannot be trained so.
        """
        with self.racing([], seed) as field:
            racer = field.join(model, optimizer)
            field.close()
            field.advance(steps, progress=progress)
        return racer.run

    def in_training(self, model: nn.Module, seed: int) -> Problem:
        """The problem with a copy of its model, which `measuring()` puts into training mode."""
        return Problem(model, self.problem.loss, self.problem.source, batchnorm="batch", dropout=seed)

    def _drawn(self, seed: int, stack: contextlib.ExitStack) -> Iterator[Batch]:
        """The loader's batches over and over, from that of index `seed` on."""
        batches = stack.enter_context(contextlib.closing(self.in_training(self.problem.model, seed).draws(seed)))
        return islice(batches, seed % self.batch_count, None)


def inner(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside a wrapper that holds it as `.optimizer`, as Accelerate's and Lightning's do."""
    while isinstance(within := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = within
    return optimizer


def check_optimizer(problem: Problem, optimizer: Optimizer) -> None:
    """Refuse an optimizer of another model, and one with hooks other than BNP's, which a copy would not run."""
    groups_of(problem, optimizer)
    kinds = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    hooks = [hook for kind in kinds for hook in getattr(optimizer, kind, {}).values()]
    if hooks := [hook for hook in hooks if not isinstance(getattr(hook, "__self__", None), BNP)]:
        names = ", ".join(getattr(hook, "__qualname__", type(hook).__name__) for hook in hooks)
        raise Unsupported(HOOKED.format(optimizer=type(optimizer).__name__, hooks=names))


def twin_of(optimizer: Optimizer, own: nn.Module, model: nn.Module) -> Optimizer:
    """A copy of the optimizer that holds the parameters of a copy of the model.

    More than torch's own deep copy keeps: LBFGS holds its parameters beside its groups. What a scheduler has put over
    methods of the instance is left out; BNP is put over the copy as it is over the optimizer.
    """
    pairs = [*zip(own.modules(), model.modules(), strict=True), *zip(own.parameters(), model.parameters(), strict=True)]
    held = {
        name: value
        for name, value in vars(optimizer).items()
        if not callable(getattr(type(optimizer), name, 0)) and not name.endswith("_hooks")
    }
    twin: Optimizer = object.__new__(type(optimizer))
    twin.__setstate__(copy.deepcopy(held, {id(mine): other for mine, other in pairs}))
    for hook in getattr(optimizer, "_optimizer_step_pre_hooks", {}).values():
        if isinstance(bnp := getattr(hook, "__self__", None), BNP):
            other = BNP(model, twin, bnp.rho, bnp.eps1, bnp.eps2, means=bnp.means, layers=[*bnp.layers])
            other.load_state_dict(bnp.state_dict())
    return twin


def _lr(group: dict[str, Any]) -> float:
    """That which its user has set: under a scheduler the rate now is another."""
    return float(group.get("initial_lr", group["lr"]))


def largest_lr(optimizer: Optimizer) -> float:
    """Of all its groups."""
    return max(map(_lr, optimizer.param_groups))


def leaves_of(loss: Tensor) -> set[Tensor]:
    """The tensors that a backward pass from the loss gives gradients to."""
    nodes = {node for operation in upstream([loss.grad_fn], None) for node in inputs_of(operation)}
    return {node.variable for node in nodes if node.name() == "torch::autograd::AccumulateGrad"}  # type: ignore[attr-defined]


@contextlib.contextmanager
def gradients_kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """The `.grad` of parameters of the loss, or of inputs, is as before afterwards."""
    kept = [(tensor, tensor.grad) for tensor in tensors]
    for tensor, _ in kept:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, gradient in kept:
            tensor.grad = gradient
