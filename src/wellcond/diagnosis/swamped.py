"""Whether a term of the loss keeps the others from being learned: a short run with each, and without the rest."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wellcond.diagnosis.after_runs import Swamped
from wellcond.diagnosis.attempts import Attempts
from wellcond.diagnosis.probes.terms import Operands, addends
from wellcond.problem.loss.outputs import terms_in
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.results import Cost
from wellcond.training.copy_run import CopyRun
from wellcond.training.copy_trainer import CopyTrainer

SATISFIED = 0.01
"""Share of their start to which the other terms must have fallen: they have all that they want."""
SHRINKS = 0.5
"""Share of its start to which a penalty of the weights must have fallen, where it is the only thing that is learned."""
ROUNDED = 1e-5
"""Relative difference of a term between two batches that is rounding."""
SAME_SHARE = 1e-3
"""Relative error of a quarter or a half."""
STALLS = 0.97
"""Share of its value from which on a term stands still: in a run that goes on for half its length."""
OUTWEIGHED, LARGE = 50.0, 100.0
"""The largest term over another, and its value at the start, from which on it may be all that steps follow: the squared
error of targets of RMS 10. Of a loss that is small on purpose, the other terms are no larger than ordinary."""
KEEPS = 0.8, 1.75
"""Shares of its start between which a term has not been learned. A penalty that is nearly met at the start, as a
divergence is, mostly grows twofold and more as the others are learned; an error falls further."""


class OwnTerms(NamedTuple):
    """The terms of the loss of the first batch at the start, and after the run at the optimizer's own rate."""

    before: list[float]
    after: list[float]


def own_terms(attempts: Attempts) -> OwnTerms:
    """Evaluate the terms, in a forward pass for each."""
    trainer = attempts.trainer
    problems = trainer.start().problem, attempts.trained.problem
    return OwnTerms(*(values_of_terms(trainer, problem) for problem in problems))


def swamped(attempts: Attempts, terms: OwnTerms, tells_nothing: bool) -> Swamped | None:
    """Compare a run with all terms, which it continues, with one of the term that has not been learned.

    Args:
        attempts: With the optimizer as it is, of which the run at its own rate has been made.
        terms: The terms before and after that run.
        tells_nothing: Whether that run's outputs may as well be those of other examples.

    Returns:
        None if the loss is no sum of terms that are never negative, or if nothing suggests that others keep this one
        from being learned. What suggests it:

        - The others have fallen to a hundredth, and this one stands still when the run goes on. Where nothing is
          learned it may still fall: that may be the bias alone.
        - Nothing is learned, or this one has not fallen, and the others have halved.
        - The others are a penalty of the weights that outweighs this one at the start.
        - One of the others is large, and many times larger than this one, which has not been learned.
    """
    trainer, own = attempts.trainer, attempts.trained
    before, after = terms
    if len(before) < 2 or len(before) != len(after) or min(*before, *after) < 0:
        return None
    elsewhere = values_of_terms(trainer, own.problem, 1)
    both = zip(after, elsewhere, strict=False)  # there may be no other batch
    of_data = [k for k, (one, other) in enumerate(both) if not math.isclose(one, other, rel_tol=ROUNDED)]
    which = max(of_data or range(len(after)), key=lambda k: after[k])
    of_weights = of_data == [which] and _is_penalty(trainer, own, which)
    small = None if of_weights else _outweighed(before, after)
    which = which if small is None else small
    others_before, others_after = sum(before) - before[which], sum(after) - after[which]
    are_satisfied = others_after < SATISFIED * others_before
    is_stuck = tells_nothing or after[which] > STALLS * before[which]
    outweighs = small is not None or (of_weights and others_before > before[which])
    if not (are_satisfied or outweighs or (is_stuck and others_after < SHRINKS * others_before)):
        return None
    steps = len(own.losses)
    if not attempts.allows(3 * steps // 2, "a run with one term of the loss"):
        return None
    own.run(steps // 2)
    still_falls = own.diverged_at is not None or values_of_terms(trainer, own.problem)[which] < STALLS * after[which]
    if still_falls and not outweighs and (own.diverged_at is not None or not (tells_nothing and are_satisfied)):
        return None
    alone = values_of_terms(trainer, run_of_term(trainer, which, steps))[which]
    return Swamped(
        before[which], after[which], alone, others_before, others_after, of_weights, still_falls, small is not None
    )


def run_of_term(trainer: CopyTrainer, which: int, steps: int) -> Problem:
    """The problem with a copy that was trained with one term of the loss alone."""
    problem = trainer.problem
    only = CopyTrainer(Problem(problem.model, _only(problem.loss, which), problem.source), trainer.optimizer)
    run = only.start()
    run.run(steps)
    trainer.cost += only.cost
    return Problem(run.model, problem.loss, problem.source)


def _outweighed(before: list[float], after: list[float]) -> int | None:
    """Which term has not been learned next to one that is large, and many times larger; the largest of these."""
    largest = max(before)
    least, most = KEEPS
    small = [
        k
        for k, (start, end) in enumerate(zip(before, after, strict=True))
        if largest > LARGE and 0 < start < largest / OUTWEIGHED and least * start <= end <= most * start
    ]
    return max(small, key=lambda k: before[k], default=None)


def _is_penalty(trainer: CopyTrainer, run: CopyRun, which: int) -> bool:
    """Whether the other terms are sums of absolute values or of squares of weights: with half of each, 1/2 or 1/4.

    The error at the fixed edge of a region, as a differential equation has it, is the same for all batches too.
    """
    weights = [p for p in run.model.parameters() if p.requires_grad]
    sums = []
    for factor in (0.5, 2.0):
        with torch.no_grad():
            for p in weights:
                p.mul_(factor)
        values = values_of_terms(trainer, run.problem)
        sums.append(sum(values) - values[which])
    halved, whole = sums
    return whole > 0 and any(math.isclose(halved, share * whole, rel_tol=SAME_SHARE) for share in (0.25, 0.5))


def values_of_terms(trainer: CopyTrainer, problem: Problem, nth: int = 0) -> list[float]:
    """The terms of the loss of a batch; none if there is no such batch."""
    trainer.cost += Cost(forwards=1)
    with problem.measuring(), contextlib.closing(problem.data()) as data, torch.enable_grad(), Operands() as recorded:
        index, batch = next(islice(data, nth, None), (0, None))
        if batch is None:
            return []
        loss = problem.training_loss(index, batch)
        return [float(each.detach()) for each in addends(loss, recorded.operands)]


def largest_alone(run: CopyRun, trainer: CopyTrainer) -> Problem | None:
    """The problem with the term alone that is largest after a run; None if the loss is no sum of positive terms."""
    after = values_of_terms(trainer, run.problem)
    if len(after) < 2 or min(after) < 0:
        return None
    problem = trainer.problem
    return Problem(problem.model, _only(problem.loss, after.index(max(after))), problem.source)


def _only(loss: Any, which: int) -> Any:
    """A loss, or a training step, that returns one of the terms."""
    of: Callable[..., Tensor] = loss.function if isinstance(loss, TrainingStep) else loss

    def only(first: Any, second: Any) -> Tensor:
        with Operands() as recorded:
            return addends(_summed(of(first, second)), recorded.operands)[which]

    return TrainingStep(only) if isinstance(loss, TrainingStep) else only


def _summed(returned: Any) -> Tensor:
    """The loss in what a loss or a step returns: itself, or the sum of several numbers that have a gradient."""
    terms = [t.reshape(()) for t in terms_in(returned).values() if t.requires_grad]
    total: Tensor = sum(terms) if terms and not isinstance(returned, Tensor) else returned  # type: ignore[assignment]
    return total
