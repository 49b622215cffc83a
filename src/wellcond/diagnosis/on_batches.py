"""On some mini-batches of a problem: a trainer of copies, and the loss of the best constant prediction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.optim import Optimizer

from wellcond.network.calling import logits_of
from wellcond.problem.batches import Batch
from wellcond.problem.loss.constant import constant_loss
from wellcond.problem.problem import Problem
from wellcond.results import Cost
from wellcond.training.copy_run import CopyRun
from wellcond.training.copy_trainer import CopyTrainer


@contextlib.contextmanager
def training(
    problem: Problem, batches: Sequence[Batch], optimizer: Optimizer | None, in_pass: float
) -> Iterator[CopyTrainer]:
    """A trainer of copies on some mini-batches, whose cost is added to that of the problem in the end.

    Args:
        problem: The problem.
        batches: Mini-batches of it.
        optimizer: The optimizer to copy.
        in_pass: How many mini-batches like these a pass over the problem has.
    """
    trainer = CopyTrainer(Problem(problem.model, problem.loss, list(batches), dropout=problem.dropout), optimizer)
    try:
        yield trainer
    finally:
        share = problem.batch_count / in_pass  # a part of a batch counts as its share
        problem.count_copies(Cost(trainer.cost.forwards * share, trainer.cost.backwards * share))


def best_constant(problem: Problem, start: CopyRun, batches: Sequence[Batch], loss: float) -> float | None:
    """The loss of the best constant prediction of these batches; None where it is not known."""
    outputs = [each if isinstance(each, Tensor) else logits_of(each) for each in start.outputs()]
    if any(each is None or not each.dim() for each in outputs):
        return None
    targets = [targets for _, targets in batches]
    least = constant_loss(start.problem.loss_of_outputs, problem.likelihood, outputs, targets)  # type: ignore[arg-type]
    # targets that are all the same, as a GAN's, are no yardstick: a constant gets them right
    return None if least is None or abs(least) < 1e-4 * min(abs(loss), 1.0) else least
