"""Training on copies of a problem's model and optimizer: nothing of the user's changes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import count, islice
from operator import length_hint
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Optimizer

from wellcond.errors import InvalidProblem, Unsupported
from wellcond.network.graph import inputs_of, upstream
from wellcond.network.isolation import seed_generators
from wellcond.nn.replace import copied
from wellcond.problem.problem import Batch, Problem
from wellcond.results import Cost, Progress
from wellcond.stability.step_model import groups_of
from wellcond.training.loop import train
from wellcond.training.run import Run

READS_THE_MODEL = (
    "the loss reads the weights of the model itself, so no copy of the model can be trained by it. Let it depend on "
    "its arguments (outputs, targets) alone."
)
HOOKED = """\
{optimizer} has hooks on its step ({hooks}), which a copy of it would not run. Remove them (BNP: bnp.remove()), or pass
no optimizer."""


class Copies:
    """Trains copies of a problem's model on its batches, in training mode: batch statistics, and dropout by a seed.

    Making one takes a forward pass over the batches that will be used, which tells bad data from bad training.

    Args:
        problem: Its model is copied; it is not changed.
        optimizer: Copied with its settings and state; None: SGD.
        momentum: Of SGD where no optimizer is given.
        steps: The length of every run.
        seeds: Those that runs will be made with.

    Attributes:
        inputs: Those of the first batch.
        batch_count: Batches in one pass; of a loader without a length, at most those that the runs begin with.
        first_losses: The loss of each of these batches before training.
        cost: Of all runs so far.

    Raises:
        InvalidProblem: The plain network cannot be trained on the batches, its loss reads the user's own weights, or
            the optimizer holds none of them.
        NonFinite: The data, or the loss before any step, are not finite.
        Unsupported: The model cannot be copied, or hooks change the optimizer's step.
    """

    def __init__(
        self, problem: Problem, optimizer: Optimizer | None, momentum: float, steps: int, seeds: Sequence[int]
    ) -> None:
        self.problem, self.optimizer, self.momentum, self.steps = problem, optimizer, momentum, steps
        self.cost = Cost()
        self.inputs: Any = None
        self._outsiders: set[Tensor] = set()
        """Tensors outside the model to which the loss gives gradients: its own parameters, or inputs."""
        with problem.measuring():
            pass  # a stale problem is refused here: copies would not show that it is
        if optimizer is not None:
            _check_optimizer(problem, optimizer)
        plain = self._in_training(copied(problem.model), seed=0)
        self.first_losses: list[float] = []
        with plain.measuring(), contextlib.closing(plain.data()) as data:
            for index, batch in islice(data, steps + max(seeds)):
                evaluation = plain.evaluate(index, batch)
                self.first_losses.append(float(evaluation.loss.detach()))
                if index == 0:
                    self.inputs = batch[0]
                    self._outsiders = _leaves(evaluation.loss) - set(plain.params.values())
        if not set(problem.params.values()).isdisjoint(self._outsiders):
            raise InvalidProblem(READS_THE_MODEL)
        self.batch_count = length_hint(problem.batches, 0) or len(self.first_losses)
        self.cost += plain.cost

    def depend_on_seed(self) -> bool:
        """Whether two seeds give two runs. With one batch, no dropout and nothing else random they do not."""
        if self.batch_count > 1:
            return True
        other = self._in_training(copied(self.problem.model), seed=1)
        with other.measuring(), contextlib.closing(_cycled(other, seed=1)) as batches:
            loss = float(other.evaluate(0, next(batches)).loss.detach())
        self.cost += other.cost
        return loss != self.first_losses[0]

    def start(self, lr: float) -> tuple[nn.Module, Optimizer]:
        """A copy of the model and of the optimizer, whose largest rate is `lr`; other rates stay in proportion."""
        model = copied(self.problem.model)
        if self.optimizer is None:
            return model, SGD(model.parameters(), lr, self.momentum)
        pairs = zip(self.problem.model.parameters(), model.parameters(), strict=True)
        twin = copy.deepcopy(self.optimizer, {id(own): other for own, other in pairs})
        largest = largest_lr(self.optimizer)
        for group in twin.param_groups:
            group["lr"] = lr * group["lr"] / largest if largest else lr
        return model, twin

    def run(self, model: nn.Module, optimizer: Optimizer, seed: int, progress: Progress | None = None) -> Run:
        """Train a copy of the problem's model.

        Args:
            model: The copy.
            optimizer: It holds the copy's parameters.
            seed: Decides dropout, the order of a loader that shuffles, and with which batch to begin: with that of
                index `seed` (modulo their number), so that seeds differ also where nothing is random.
            progress: Called as (what is being done, share of all work done).

        Raises:
            WellcondError: The model cannot be trained so.
        """
        problem = self._in_training(model, seed)
        norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        with (
            problem.measuring(),
            _gradients_kept(self._outsiders),
            contextlib.closing(_cycled(problem, seed)) as batches,
        ):
            for norm in norms:
                norm.track_running_stats = True  # a measurement holds running statistics still; training does not
            begun = islice(batches, seed % self.batch_count, None)
            run = train(optimizer, lambda step, batch: problem.evaluate(step, batch).loss, begun, self.steps,
                        progress=progress)  # fmt: skip
        self.cost += problem.cost + Cost(backwards=len(run.losses) / self.batch_count)
        return run

    def _in_training(self, model: nn.Module, seed: int) -> Problem:
        """The problem with a copy of its model, which `measuring()` puts into training mode."""
        return Problem(model, self.problem.loss, self.problem.batches, batchnorm="batch", dropout=seed)


def _check_optimizer(problem: Problem, optimizer: Optimizer) -> None:
    groups_of(problem, optimizer)
    kinds = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    if hooks := [hook for kind in kinds for hook in getattr(optimizer, kind, {}).values()]:
        names = ", ".join(getattr(hook, "__qualname__", type(hook).__name__) for hook in hooks)
        raise Unsupported(HOOKED.format(optimizer=type(optimizer).__name__, hooks=names))


def largest_lr(optimizer: Optimizer) -> float:
    """Of all its groups."""
    return max(float(group["lr"]) for group in optimizer.param_groups)


def _leaves(loss: Tensor) -> set[Tensor]:
    """The tensors that a backward pass from the loss gives gradients to."""
    nodes = {node for operation in upstream([loss.grad_fn], None) for node in inputs_of(operation)}
    return {node.variable for node in nodes if node.name() == "torch::autograd::AccumulateGrad"}  # type: ignore[attr-defined]


@contextlib.contextmanager
def _gradients_kept(tensors: Iterable[Tensor]) -> Iterator[None]:
    """The `.grad` of parameters of the loss, or of inputs, is as before afterwards."""
    kept = [(tensor, tensor.grad) for tensor in tensors]
    for tensor, _ in kept:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, gradient in kept:
            tensor.grad = gradient


def _cycled(problem: Problem, seed: int) -> Generator[Batch, None, None]:
    """The batches, over and over. A loader that shuffles draws the order of an epoch from the seed."""
    for epoch in count():
        seed_generators(seed + epoch, problem.device)
        with contextlib.closing(problem.data()) as data:
            for _, batch in data:
                yield batch
