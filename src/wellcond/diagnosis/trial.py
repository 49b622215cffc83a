"""A few steps of copies of a model: with its own optimizer and rate, with others, and on a handful of examples."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import LBFGS, Adadelta, Adagrad, Adam, Adamax, NAdam, Optimizer, RAdam, RMSprop

from wellcond.diagnosis.baseline import constant_loss
from wellcond.diagnosis.labels import relation
from wellcond.diagnosis.trial_result import FALLING, RISING, Attempt, Handful, Trial
from wellcond.errors import NonFinite
from wellcond.network.calling import logits_of
from wellcond.problem.problem import Problem
from wellcond.results import Progress
from wellcond.training.copies import check_optimizer, inner
from wellcond.training.short_runs import (
    MOST_BATCHES,
    MOST_EXAMPLES,
    Course,
    Stage,
    examples_of,
    handful,
    mini_batches,
    rate_of,
    twin,
)

OWN_U, OTHER_U, HANDFUL_U = 7.0, 2.0, 5.0
"""What the run at the optimizer's own rate, each other run and the handful may take, in u."""
OWN_STEPS, OTHER_STEPS, HANDFUL_STEPS = (24, 64), (10, 20), (40, 80)
"""Fewest and most steps of each: the fewest are taken where one batch is all there is, and a step is a u."""
FEW = 8
"""Examples that any sound network can fit."""
ROBUST_RATES = (1e-2, 1e-3)
"""Of Adam on a handful of examples."""
LOWER = (0.1, 0.01, 1e-4, 1e-6, 1e-9)
"""Of the rate, tried one after another where the loss goes up, until it goes down."""
HIGHER = (10.0, 100.0)
"""Times the rate, tried where the loss moves little."""
RISE = 0.02
"""Of the loss: a rise from which lower rates are tried. Around a minimum, steps go up and down by less."""
SPIKE = 1.3
"""Times the loss at the start: how far it may rise on the way without a question."""
FAST_DECAY = 1000.0
"""Steps. Weight decay that shrinks weights to 1/e in as many or fewer is questioned; ordinary ones take 2,000 to
100,000."""
STRONG_PENALTY = 1e-3
"""L2 that adaptive optimizers add to the gradient before they divide by its size: beside weights of 0.1 and gradients
of 1e-4 it is as large as these. Above it is questioned; 1e-5 to 5e-4 are ordinary."""
STRONG_DROPOUT = 0.6
"""Above it dropout is questioned; 0.5 is the largest in ordinary use."""


@torch.inference_mode(False)  # what is copied in inference mode cannot be trained
def trial(
    problem: Problem,
    optimizer: Optimizer | None = None,
    *,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Trial:
    """Train copies for a few steps: at the optimizer's own rate, at others as far as they tell more, on few examples.

    The user's own optimizer takes the user's own mini-batches; of a large batch, parts. Lower rates are tried where the
    loss goes up, until it goes down; higher ones where it moves little; and runs without weight decay or dropout where
    these are strong. Then Adam tries to fit a handful of examples. It takes 6 to 20 u, or some 100 steps where one
    small batch is all there is.

    Args:
        problem: What is trained; neither it nor the optimizer is changed.
        optimizer: What trains it; None: only the handful is tried.
        seconds: No run is begun after so many, except the first; None: they do not count.
        progress: Called as (what is being done, share of all work done).

    Raises:
        NonFinite: The loss is not finite before any step.
        InvalidProblem: Copies cannot be trained by this loss, or the optimizer belongs to another model.
        Unsupported: The model cannot be copied, or hooks change the optimizer's step.
    """
    report = progress or (lambda _what, _share: None)
    if optimizer is not None:
        optimizer = inner(optimizer)
        check_optimizer(problem, optimizer)
    # L-BFGS takes the change of a gradient for curvature, which it is only on one and the same batch
    batches, of_pass = mini_batches(problem, sys.maxsize if isinstance(optimizer, LBFGS) else MOST_EXAMPLES)
    deadline = math.inf if seconds is None else time.perf_counter() + seconds
    stage = Stage(problem, batches, of_pass, deadline)
    start = stage.course(_adam(ROBUST_RATES[-1]))
    before = tuple(start.now())
    if not all(map(math.isfinite, before)):
        raise NonFinite("the loss is NaN or infinite before any step, so there is nothing to try.")
    known = Trial(before, _constant(problem, start, fmean(before)))
    own: Attempt | None = None
    others: list[Attempt] = []
    variants: dict[str, Attempt] = {}
    if optimizer is not None:
        own, others, variants = _Runs(stage, optimizer, known, report).found()
    report("a handful of examples", 0.8)
    few = None if stage.is_late else _few(problem, batches[0], of_pass)
    report("what inputs tell of targets", 0.95)
    size = examples_of(batches[0])
    return Trial(before, known.constant, own, tuple(others), variants, few, _modes(stage), relation(problem), size)


def trial_price(batch_size: int, batches: int) -> float:
    """What a trial of a healthy network is estimated to take at most, in u; one in trouble takes up to twice that.

    Args:
        batch_size: Of the problem's batches.
        batches: How many there are.
    """
    pieces = batches * math.ceil(batch_size / MOST_EXAMPLES)
    of_few = pieces * max(math.ceil(batch_size / math.ceil(batch_size / MOST_EXAMPLES)) / FEW, 1.0)
    steps = _clamped(OWN_U * pieces, OWN_STEPS) + 2 * _clamped(OTHER_U * pieces, OTHER_STEPS)
    evaluated = 3 * min(pieces, MOST_BATCHES)  # before, and after each run, at a third of a pass
    return (steps + evaluated + 2) / pieces + (_clamped(HANDFUL_U * of_few, HANDFUL_STEPS) + 3) / of_few


class _Runs:
    """The runs with the user's optimizer: which ones follows from what the first showed."""

    def __init__(self, stage: Stage, optimizer: Optimizer, known: Trial, report: Progress) -> None:
        self.stage, self.optimizer, self.known, self.report = stage, optimizer, known, report
        self.short = _clamped(OTHER_U * stage.batches_of_pass, OTHER_STEPS)
        self.long = _clamped(OWN_U * stage.batches_of_pass, OWN_STEPS)
        self.lr = max((rate_of(group) for group in optimizer.param_groups), key=abs)

    def found(self) -> tuple[Attempt, list[Attempt], dict[str, Attempt]]:
        known = self.known
        self.report("its own rate", 0.1)
        own = self.attempt(1.0, self.long)
        known = replace(known, own=own)
        others: list[Attempt] = []
        lowest = min(known.fall(own)[0], known.fall(own, early=True)[0])
        if self.stage.is_late:
            return own, others, {}
        if not lowest > -RISE or not math.isfinite(known.spike) or known.spike > SPIKE:
            others = self.lower(known, own)
        elif not known.has_learned and not known.fall(own)[0] > 0.5:
            others = self.higher(known)
            if known.trains is False and not any(known.outcome(each) in FALLING for each in others):
                others += self.lower(known, own)
        return own, others, self.variants(known)

    def attempt(self, factor: float, steps: int, **course: Any) -> Attempt:
        settings = course.pop("settings", {})
        copy = self.stage.course(twin(self.stage.problem, self.optimizer, factor, **settings), **course)
        copy.run(self.short)
        early = tuple(copy.now())
        is_on = steps > self.short and not self.stage.is_late
        copy.run(steps - self.short if is_on else 0)
        after = tuple(copy.now()) if is_on else early
        return Attempt(factor, factor * self.lr, copy.as_run, early, after)

    def lower(self, known: Trial, own: Attempt) -> list[Attempt]:
        """Until one falls, or until two rise in proportion, as only steps uphill make it."""
        found: list[Attempt] = []
        for factor in LOWER:
            self.report(f"{factor:g} of its rate", 0.4)
            found.append(self.attempt(factor, self.short if known.outcome(own) in RISING else self.long))
            if known.outcome(found[-1]) in FALLING or replace(known, others=tuple(found)).uphill or self.stage.is_late:
                break
        return found

    def higher(self, known: Trial) -> list[Attempt]:
        found: list[Attempt] = []
        for factor in HIGHER:
            self.report(f"{factor:g} times its rate", 0.4)
            found.append(self.attempt(factor, self.short))
            if (
                known.outcome(found[-1]) not in FALLING
                or replace(known, others=tuple(found)).uphill
                or self.stage.is_late
            ):
                break
        return found

    def is_decay_in_question(self, known: Trial) -> bool:
        for group in self.optimizer.param_groups:
            decay = float(group.get("weight_decay") or 0.0)
            is_strong = is_penalty(self.optimizer, group) and decay > STRONG_PENALTY
            if is_strong or shrinking_steps(self.optimizer, group) <= FAST_DECAY or (decay and known.trains is False):
                return True
        return False

    def variants(self, known: Trial) -> dict[str, Attempt]:
        """Runs without what may be in the way: strong decay, strong dropout, norms that evaluate."""
        found: dict[str, Attempt] = {}
        if self.stage.is_late:
            return found
        model = self.stage.problem.model
        if self.is_decay_in_question(known):
            self.report("no weight decay", 0.6)
            found["no weight decay"] = self.attempt(1.0, self.long, settings={"weight_decay": 0.0})
        if any(isinstance(m, _DropoutNd) and m.p > STRONG_DROPOUT for m in model.modules()):
            self.report("no dropout", 0.65)
            found["no dropout"] = self.attempt(1.0, self.long, dropout=None)
        norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        if any(not m.training for m in norms):
            self.report("running statistics", 0.7)
            found["running statistics"] = self.attempt(1.0, self.long, batchnorm="running")
        return found


def shrinking_steps(optimizer: Optimizer, group: dict[str, Any]) -> float:
    """In how many steps a group's weight decay shrinks a weight to 1/e if nothing else moves it; may be infinite.

    With momentum μ a rate η acts as η/(1−μ). A penalty that is divided by the gradient's size has no such time.
    """
    decay, lr = float(group.get("weight_decay") or 0.0), abs(rate_of(group))
    if not decay or not lr or is_penalty(optimizer, group):
        return math.inf
    return (1 - min(float(group.get("momentum") or 0.0), 0.999)) / (lr * decay)


def is_penalty(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether weight decay is added to the gradient before it is divided by its size, as by Adam but not by AdamW."""
    adds = isinstance(optimizer, (Adam, NAdam, RAdam, Adamax, RMSprop, Adagrad, Adadelta))
    return adds and bool(group.get("weight_decay")) and not group.get("decoupled_weight_decay")


def _few(problem: Problem, batch: tuple[Any, Any], of_pass: float) -> Handful | None:
    """Whether a few examples can be fitted: at two rates for a while, then at the better one."""
    examples = handful(batch, FEW)
    count, of_batch = examples_of(examples), examples_of(batch)
    stage = Stage(problem, [examples], of_pass * (of_batch / count if count and of_batch else 1.0))
    steps = _clamped(HANDFUL_U * stage.batches_of_pass, HANDFUL_STEPS)
    start = stage.course(_adam(ROBUST_RATES[-1]), dropout=None)
    before = start.now()[0]
    if not math.isfinite(before):
        return None
    courses: list[tuple[float, float, Course]] = []
    for lr in ROBUST_RATES:
        course = stage.course(_adam(lr), dropout=None)
        course.run(steps // 3)
        after = course.now()[0]
        courses.append((after if math.isfinite(after) else math.inf, lr, course))
    _, lr, best = min(courses, key=lambda each: each[0])
    best.run(steps // 3)
    return Handful(count, lr, before, best.now()[0], _constant(problem, start, before), best.as_run)


def _modes(stage: Stage) -> tuple[float, float] | None:
    """The loss in training and in evaluation mode, both without dropout."""
    if not any(isinstance(m, _BatchNorm) and m.track_running_stats for m in stage.problem.model.modules()):
        return None
    adam = _adam(ROBUST_RATES[-1])
    batch, running = (stage.course(adam, dropout=None, batchnorm=mode) for mode in ("batch", "running"))
    return fmean(batch.now()), fmean(running.now())


def _constant(problem: Problem, start: Course, loss: float) -> float | None:
    outputs = [each if isinstance(each, Tensor) else logits_of(each) for each in start.outputs()]
    if any(each is None or not each.dim() for each in outputs):
        return None
    least = constant_loss(start.loss_of, problem.likelihood, outputs, start.targets)  # type: ignore[arg-type]
    # targets that are all the same, as a GAN's, are no yardstick: a constant gets them right
    return None if least is None or abs(least) < 1e-4 * min(abs(loss), 1.0) else least


def _adam(lr: float) -> Callable[[nn.Module], Optimizer]:
    def made(model: nn.Module) -> Optimizer:
        trained = [p for p in model.parameters() if p.requires_grad]
        is_half = any(p.dtype == torch.float16 for p in trained)  # in which 1e-8 is zero
        return Adam(trained, lr, eps=1e-4 if is_half else 1e-8)

    return made


def _clamped(steps: float, ends: tuple[int, int]) -> int:
    return int(min(max(steps, ends[0]), ends[1]))
