"""Which learning rate to train with: a race of the user's own optimizer on the user's own mini-batches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from wellcond.errors import Interrupted, NonFinite, Unsupported, WellcondError
from wellcond.learning_rate.limits.limits import MaxLearningRate
from wellcond.learning_rate.limits.max_lr import max_lr
from wellcond.learning_rate.meanfield.predict import predict
from wellcond.learning_rate.race.race import race
from wellcond.learning_rate.race.suggested_rate import SuggestedRate
from wellcond.network.calling import tensors_in
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.problem.batches import Batch
from wellcond.problem.problem import Problem
from wellcond.results import Progress, number
from wellcond.results.progress import announce, shows_progress
from wellcond.results.text import sentence
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.training.leading import led
from wellcond.training.optimizers import DEFAULT_MOMENTUM, configured_lr, largest_lr
from wellcond.training.passed_optimizer import PassedOptimizer, optimizer_of
from wellcond.training.planned_schedule import MakeScheduler, planned_schedule

STEPS = 1000
"""The length of the run that a rate is for, where none is given."""
LEAST = 10
"""The least number of steps that can be called a race."""
SHARE, LEAST_STEPS = 0.05, 500
"""The price of a rate: this share of the planned run, and no less than it takes to tell rates apart."""
PRODUCTS = 8
"""Products with the Hessian of one mini-batch: they place the race, which does not need an exact limit."""
ADAPTIVE_SHARE = 3.0
"""Times the limit of an adaptive optimizer, where the race begins: before its first step it divides by single
gradients, and the best rates were 0.4 to 70 times that limit on `benchmarks.rates`."""
LARGE = 10.0
"""RMS of inputs or targets from which on their scale may be why no rate trains."""
NO_OPTIMIZER = "scheduler is given without the optimizer that it is for: pass both."


def suggest_lr(
    problem: Problem,
    optimizer: PassedOptimizer | None = None,
    *,
    steps: int | None = None,
    scheduler: MakeScheduler | None = None,
    validation: Any = None,
    momentum: float | None = None,
    max_steps: int | None = None,
    progress: Progress | None = None,
) -> SuggestedRate:
    """Suggest a learning rate: race several with copies of the model and of the optimizer, most dropped early.

    The limit that the curvature of one mini-batch sets, which takes some 15 u, places the first three rates. All runs
    start from the present weights and see the same mini-batches of the loader, in training mode. The optimizer's own
    rate is raced to the end, and suggested unless another is better beyond noise. Nothing of the user's is changed.

    Args:
        problem: What is trained. Its loader may shuffle and augment.
        optimizer: What it is trained with, any of torch's or a wrapper such as Accelerate's. All other settings and its
            state stay: momentum, decay, betas. The rate is that of its largest group, and the others stay in
            proportion. None: SGD.
        steps: The length of the run that the rate is for; None: 1000.
        scheduler: Makes the schedule of that run, as `lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=1000)`,
            stepped after every training step. Each run follows it from its beginning to its end, and the rate is its
            highest. None: constant rates.
        validation: Held-out batches, as of a problem; the runs that finish are judged on a few of them, in evaluation
            mode. None: judged by the loss they are trained on.
        momentum: Momentum of SGD where no optimizer is given; None: 0.9.
        max_steps: What it may take, in training steps; None: 5 % of `steps`, at least 500.
        progress: Called as (what is being done, share of all work done).

    Returns:
        The rate, the range of rates that are equally good, the limit, and the runs. Where no rate trains, the rate is
        nan.

    Raises:
        ValueError: momentum, steps or max_steps are out of range, or momentum is given together with an optimizer.
        InvalidProblem: The problem cannot be trained, or the scheduler makes no schedule of the planned run.
        NonFinite: The loss is not finite before any step: no rate trains.
        Interrupted: On Ctrl-C, with the partial result as `.result`.

    Example:
        >>> layer = torch.nn.Linear(1, 1, bias=False)
        >>> _ = torch.nn.init.ones_(layer.weight)
        >>> problem = Problem(layer, torch.nn.MSELoss(), (torch.ones(2, 1), torch.zeros(2, 1)))  # the loss is w², H = 2
        >>> suggested = suggest_lr(problem, momentum=0.0, steps=20)
        >>> round(suggested.limit.value, 3), 0.3 < suggested.lr < 0.7      # w ← (1 − 2·lr) w is 0 at once with lr = ½
        (1.0, True)
    """
    steps = STEPS if steps is None else steps
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be at least 1.")
    max_steps = planned_steps(steps) if max_steps is None else max_steps
    if max_steps < LEAST:
        raise ValueError(f"max_steps is {max_steps}; it must be at least {LEAST}.")
    if optimizer is not None and momentum is not None:
        raise ValueError(f"momentum is {momentum}, but the optimizer has its own: pass one of the two.")
    momentum = DEFAULT_MOMENTUM if momentum is None else momentum
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}; it must be at least 0 and below 1.")
    if scheduler is not None and optimizer is None:
        raise ValueError(NO_OPTIMIZER)
    return _suggest_lr(
        problem,
        optimizer,
        steps=steps,
        scheduler=scheduler,
        validation=validation,
        momentum=momentum,
        max_steps=max_steps,
        progress=progress,
    )


@led
@shows_progress
@torch.inference_mode(False)  # what is copied in inference mode cannot be trained
def _suggest_lr(
    problem: Problem,
    optimizer: PassedOptimizer | None,
    *,
    steps: int,
    scheduler: MakeScheduler | None,
    validation: Any,
    momentum: float,
    max_steps: int,
    progress: Progress | None,
) -> SuggestedRate:
    """The rate, by settings that are known to be possible: all processes of a training can do their shares."""
    report = progress or (lambda _what, _share: None)
    optimizer = optimizer_of(problem, optimizer)
    try:
        trainer = CopyTrainer(problem, optimizer, momentum)
    except NonFinite as error:
        raise NonFinite(f"no rate trains: {error}") from error
    except Unsupported as error:
        limits = _limits(problem, problem.batches, optimizer, momentum, report)
        if limits.limit is None:
            raise
        return replace(limits, notes=(*limits.notes, f"no race: {error}"))
    with own_arithmetic():
        optimizer = trainer.optimizer
        seconds, _ = trainer.timed_step(0)
        announce(report, max_steps, max_steps * seconds)
        schedule = None
        if scheduler is not None and optimizer is not None:
            schedule = planned_schedule(scheduler, trainer.start(largest_lr(optimizer)).optimizer, steps)
        limits = _limits(problem, [trainer.small_batch], optimizer, momentum, report)
        try:
            outcome = race(
                trainer,
                steps=steps,
                max_steps=max(LEAST, int(max_steps - limits.cost.u - trainer.cost.u)),
                center=_center(limits.limit, optimizer),
                schedule=schedule,
                validation=validation,
                progress=lambda what, share: report(what, 0.1 + 0.9 * share),
            )
        except Interrupted as interrupt:
            raise Interrupted(limits.raced(interrupt.result, trainer.cost, "interrupted")) from interrupt
        report("racing", 1.0)
        suggested = limits.raced(outcome, trainer.cost)
        return replace(suggested, reason=_unscaled(trainer.small_batch)) if outcome.choice is None else suggested


def planned_steps(steps: int) -> int:
    """What a rate for a run of this many steps may take, in training steps.

    Example:
        >>> planned_steps(1000), planned_steps(100_000)
        (500, 5000)
    """
    return max(LEAST_STEPS, round(SHARE * steps))


def _limits(
    problem: Problem, batches: Iterable[Any], optimizer: Optimizer | None, momentum: float, report: Progress
) -> SuggestedRate:
    """The measured and the predicted limit on some batches, without a race; where there is none, a note says why.

    Args:
        problem: Its model and its loss.
        batches: One mini-batch is enough: the limits only place the race.
        optimizer: As in `suggest_lr`.
        momentum: Momentum of SGD where no optimizer is given.
        report: Called as (what is being done, share of all work done), up to a tenth.
    """
    part = Problem(problem.model, problem.loss, batches, problem.batchnorm, dropout=problem.dropout)
    limit, predicted, unpredicted, notes = None, None, "", []
    settings = {"tol": 0.1, "confidence": None, "max_matvecs": PRODUCTS}
    try:
        report("largest stable learning rate", 0.0)
        limit = max_lr(part, optimizer, momentum=momentum if optimizer is None else None, **settings)  # type: ignore[arg-type]
    except Interrupted as interrupt:
        raise Interrupted(SuggestedRate(interrupt.result, None, None, part.cost, status="interrupted")) from interrupt
    except (WellcondError, torch.OutOfMemoryError) as error:
        notes.append(f"no limit from the curvature: {error}")
    mu = momentum if optimizer is None else heavy_ball_momentum(optimizer)
    if mu is not None:
        try:
            predicted = predict(part, momentum=mu)
        except (WellcondError, ValueError) as error:
            unpredicted = f"nothing: {error}"
    report("largest stable learning rate", 0.1)
    if precision := problem.says_precision("the rates are raced", "their limit is measured"):
        notes.append(precision)
    return SuggestedRate(limit, predicted, None, part.cost, tuple(notes), unpredicted=unpredicted)


def _unscaled(batch: Batch) -> str:
    """A sentence on inputs and targets that are far from the scale that networks are made for; "" if none are."""
    sizes = {}
    for what, part in zip(("inputs", "targets"), batch, strict=True):
        numbers = [t for t in tensors_in(part) if t.is_floating_point() and t.layout is torch.strided and t.numel()]
        size = max((float(t.double().square().mean().sqrt()) for t in numbers), default=0.0)
        if LARGE < size < math.inf:
            sizes[what] = f"{what} have an RMS of {number(size)} (unscaled-{what[:-1]})"
    if not sizes:
        return ""
    return f"{sentence(' and '.join(sizes.values()))[:-1]}, and networks are made for about 1: standardize them."


def heavy_ball_momentum(optimizer: Optimizer) -> float | None:
    """The momentum of gradient descent with one rate and no other settings; None for any other optimizer."""
    groups = optimizer.param_groups
    if type(optimizer) is not SGD or len({(configured_lr(group), group["momentum"]) for group in groups}) > 1:
        return None
    if any(group[setting] for group in groups for setting in ("weight_decay", "dampening", "nesterov", "maximize")):
        return None
    return float(groups[0]["momentum"])


def _center(limit: MaxLearningRate | None, optimizer: Optimizer | None) -> float | None:
    """The rate to begin the race with.

    With momentum μ a gradient counts 1/(1 − μ) times, so that the fastest rates lie about (1 − μ)/(1 + μ) times below
    the limit 2(1 + μ)/λ.
    """
    if limit is None or not 0 < limit.value < math.inf:
        return None
    if optimizer is None or isinstance(optimizer, SGD):
        return limit.value * (1 - limit.momentum) / (1 + limit.momentum)
    return ADAPTIVE_SHARE * limit.value
