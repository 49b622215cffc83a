"""Whether a few examples can be fitted: copies that Adam trains on a handful, without and with all that is drawn."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

import torch
from torch.optim import Adam, Optimizer

from wellcond.diagnosis.attempts import Allowance
from wellcond.diagnosis.handful import LEAST_GAIN, Handful, plunges
from wellcond.diagnosis.inspection.failures import Failures
from wellcond.diagnosis.mini_batches import handful
from wellcond.diagnosis.on_batches import best_constant, training
from wellcond.diagnosis.probes.constant_terms import lost_slope
from wellcond.diagnosis.probes.judges import is_judged_by_network
from wellcond.diagnosis.probes.paired import Paired
from wellcond.diagnosis.trial_parts import FEW, NOISE_DRAWS, PLATEAU_STEPS, handful_price
from wellcond.diagnosis.trial_result import HALF
from wellcond.diagnosis.worth import worth
from wellcond.problem.batches import Batch, examples_in
from wellcond.problem.problem import Problem
from wellcond.training.copy_run import CopyRun

AT_CONSTANT = 0.95
"""Loss over that of a constant from which on nothing of the handful has been learned."""
ROBUST_RATES = (1e-2, 1e-3)
"""Learning rates of Adam on a handful of examples."""


def fit_few(
    problem: Problem, batch: Batch, in_pass: float, steps: int, failures: Failures, allowed: Allowance, spare: float
) -> Handful | None:
    """Whether a few examples can be fitted: at two rates for a while, then at the better one.

    Where it falls to about a constant's, it goes on for longer: some losses stay there for a while, as CTC does.
    """
    examples = handful(problem, batch, FEW)
    count = None if examples is batch else examples_in(examples)
    on_gpu = problem.device.type == "cuda"
    if problem.device.type == "cpu":  # on a GPU a step takes the same time for few examples
        in_pass *= examples_in(batch) / count if count else 1.0
    with training(problem, [examples], _adam(problem), in_pass) as trainer:
        start = trainer.start(dropout=False)
        before = start.evaluate()[0]
        if not math.isfinite(before):
            return None
        runs: list[tuple[float, float, CopyRun]] = []
        for lr in ROBUST_RATES:
            run = trainer.start(lr, dropout=False)
            with contextlib.ExitStack() as stack:
                for _, _, other in runs:
                    stack.enter_context(other.parked())
                run.run(steps // 3)
            after = run.evaluate()[0]
            runs.append((after if math.isfinite(after) else math.inf, lr, run))
        runs.sort(key=lambda each: each[0])
        _, lr, best = runs[0]
        for _, _, other in runs[1:]:
            other.release()
        best.run(steps // 3)
        constant = best_constant(problem, start, [examples], before)
        uphill = None
        is_judged = False
        if best.losses and plunges(best.losses):
            with failures.recording("whether another network judges the outputs"), start.counted() as copy:
                is_judged = is_judged_by_network(copy)
        if best.losses and plunges(best.losses) and not is_judged:
            opposite = trainer.start(lr, dropout=False, maximize=True)
            with best.parked():
                opposite.run(len(best.losses))
                uphill = opposite.evaluate()[0]
            opposite.release()
        lost = None
        with failures.recording("whether every term of the loss has a gradient"), best.counted() as copy:
            lost = lost_slope(copy)
        known = Handful(count, lr, before, best.evaluate()[0], constant, best.as_run, uphill, lost)
        longer, ratio = PLATEAU_STEPS - len(best.losses), 1.0 if on_gpu else min(FEW / examples_in(batch), 1.0)
        # what the handful has taken so far is not counted yet
        price = handful_price(steps, examples_in(batch), on_gpu) + longer * ratio
        if not _is_at_constant(known) or not allowed.has(price, "a handful of examples for longer", keep=spare):
            return known
        best.run(longer)
        return replace(known, later=best.evaluate()[0])


def few_worth(problem: Problem, batch: Batch, in_pass: float, few: Handful) -> Paired | None:
    """What the outputs on the same examples are worth after the same run in training mode, with all that is drawn.

    A model that adds noise in training, as a variational autoencoder does, may tell examples apart without it only; or
    late: its code is all noise for some fifty steps, and then holds more and more. So what tells nothing goes on.
    """
    examples = handful(problem, batch, FEW)
    if problem.device.type == "cpu":
        in_pass *= examples_in(batch) / examples_in(examples)
    with training(problem, [examples], _adam(problem), in_pass) as trainer:
        run = trainer.start(few.lr)
        steps = len(few.run.losses)
        run.run(steps)
        known = worth(run, examples, NOISE_DRAWS)
        if known is None or known.gain >= LEAST_GAIN:
            return known
        run.run(max(PLATEAU_STEPS - steps, 0))
        return worth(run, examples, NOISE_DRAWS)


def _is_at_constant(few: Handful) -> bool:
    """Whether the loss has fallen to about a constant's, and from far above it."""
    return few.constant is not None and AT_CONSTANT * min(few.before, few.constant) < few.after < HALF * few.before


def _adam(problem: Problem) -> Optimizer:
    """Adam over the model, of which copies are trained."""
    trainable = [p for p in problem.model.parameters() if p.requires_grad]
    is_half = any(p.dtype == torch.float16 for p in trainable)  # in which 1e-8 is zero
    return Adam(trainable, 1.0, eps=1e-4 if is_half else 1e-8)
