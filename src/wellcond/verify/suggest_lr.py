"""Which learning rate to train with: measured from the curvature, predicted from the architecture, and tried."""

from __future__ import annotations

import itertools
import math
from operator import length_hint
from statistics import fmean

import torch
from torch.optim import SGD, Optimizer

from wellcond.errors import WellcondError
from wellcond.meanfield.predict import predict
from wellcond.network.arithmetic import own_arithmetic
from wellcond.problem.arguments import check_is_problem
from wellcond.problem.problem import Problem
from wellcond.results import Cost, Progress
from wellcond.stability.limits import DEFAULT_MOMENTUM
from wellcond.stability.max_lr import max_lr
from wellcond.training.run import Run, averaged_steps
from wellcond.verify.copies import Copies
from wellcond.verify.suggested_rate import SAFE_SHARE, RateTrial, SuggestedRate

SHARES = tuple(SAFE_SHARE * 10 ** (k / 3) for k in range(-8, 5))
"""Of the measured limit, at which rates are tried: from a thousandth to ten times, half of it among them."""
FEWEST_STEPS, MOST_STEPS, STEPS_WITHOUT_LENGTH = 20, 200, 100
REPEATS = (1, 2)
"""Further seeds with which the best rate is tried; their range is the noise."""


@torch.inference_mode(False)  # what is copied in inference mode cannot be trained
@own_arithmetic()
def suggest_lr(
    problem: Problem,
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    *,
    momentum: float | None = None,
    progress: Progress | None = None,
) -> SuggestedRate:
    """Suggest a learning rate: measure the largest stable one, predict it, and try rates around it for a few steps.

    The trial takes steps with copies of the model and of the optimizer, in training mode, on the batches in turn: at 13
    rates from a thousandth of the limit to ten times it, all from the present weights and on the same batches. Neither
    the model nor the optimizer is changed.

    Args:
        problem: What is trained.
        optimizer: What it is trained with, one that `max_lr` knows; rates are those of its largest group, and the
            others stay in proportion. None: SGD.
        steps: The length of the runs; None: one pass over the batches, 20 steps at least and 200 at most.
        momentum: Of SGD where no optimizer is given; None is 0.9.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The rate, the range that did as well, and what they come from.

    Raises:
        ValueError: momentum or steps are out of range, or momentum is given beside an optimizer.
        InvalidProblem: The problem cannot be measured.
        Unsupported: The step of the optimizer is not known.

    Example:
        >>> layer = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.ones_(layer.weight)
        >>> problem = Problem(layer, torch.nn.MSELoss(), (torch.ones(2, 1), torch.zeros(2, 1)))  # the loss is w², H = 2
        >>> suggested = suggest_lr(problem, momentum=0.0)
        >>> round(suggested.limit.value, 3), round(suggested.lr, 3)
        (1.0, 0.5)
    """
    if steps is None:
        steps = min(max(length_hint(problem.batches, STEPS_WITHOUT_LENGTH), FEWEST_STEPS), MOST_STEPS)
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be at least 1.")
    report = progress or (lambda _what, _share: None)
    check_is_problem(problem)
    before = problem.cost
    limit = max_lr(problem, momentum, optimizer=optimizer, progress=lambda what, share: report(what, 0.2 * share))
    mu = _heavy_ball_momentum(optimizer, momentum)
    notes: list[str] = []
    predicted = trial = None
    trial_cost = Cost()
    if mu is None:
        notes.append(
            "no prediction: theory knows gradient descent with one rate and heavy-ball momentum, not this "
            f"{type(optimizer).__name__}"
        )
    else:
        try:
            predicted = predict(problem, momentum=mu)
        except (WellcondError, ValueError) as error:
            notes.append(f"no prediction from the architecture: {error}")
    try:
        copies = Copies(problem, optimizer, mu or 0.0, steps, (0, *REPEATS))
        begin = limit.value if math.isfinite(limit.value) else 1.0
        trial = _tried(copies, [begin * share for share in SHARES], report)
        trial_cost = copies.cost
    except WellcondError as error:
        notes.append(f"no trial: {error}")
    return SuggestedRate(limit, predicted, trial, problem.cost - before + trial_cost, tuple(notes))


def _tried(copies: Copies, rates: list[float], report: Progress) -> RateTrial:
    """A run at each rate; then the best one again, with other seeds. If one of these diverges, so has the rate."""
    expected, done = len(rates) + len(REPEATS), itertools.count()

    def run(rate: float, seed: int) -> Run:
        begin, what = next(done), f"trying lr {rate:.3g}"

        def progress(_what: str, share: float) -> None:
            report(what, 0.2 + 0.8 * min((begin + share) / expected, 1.0))

        return copies.run(*copies.start(rate), seed, progress)

    runs = {rate: run(rate, 0) for rate in rates}
    last_steps = range(copies.steps - averaged_steps(copies.steps), copies.steps)
    loss = fmean(copies.first_losses[step % len(copies.first_losses)] for step in last_steps)
    trial = RateTrial(runs, (), loss, copies.steps)
    if not copies.depend_on_seed():
        return trial
    while not math.isnan(trial.best):
        repeats = tuple(run(trial.best, seed) for seed in REPEATS)
        diverged = [each for each in repeats if each.final is None]
        if not diverged:
            return RateTrial(runs, repeats, loss, copies.steps)
        runs[trial.best] = diverged[0]  # and with it the trial has another best rate
    return trial


def _heavy_ball_momentum(optimizer: Optimizer | None, momentum: float | None) -> float | None:
    """That of gradient descent with one rate and nothing else; None if the optimizer is another."""
    if optimizer is None:
        return DEFAULT_MOMENTUM if momentum is None else momentum
    if type(optimizer) is not SGD or len({(group["lr"], group["momentum"]) for group in optimizer.param_groups}) > 1:
        return None
    does_more = ("weight_decay", "dampening", "nesterov", "maximize")
    if any(group[setting] for group in optimizer.param_groups for setting in does_more):
        return None
    return float(optimizer.param_groups[0]["momentum"])
