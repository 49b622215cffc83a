"""A few steps of copies of a model: with its own optimizer and rate, with others, and on a handful of examples."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import LBFGS, Adam, Optimizer

from wellcond.diagnosis.baseline import constant_loss
from wellcond.diagnosis.labels import relation, token_relation
from wellcond.diagnosis.mini_batches import MOST_BATCHES, MOST_EXAMPLES, handful, mini_batches
from wellcond.diagnosis.probes.constant_terms import lost_slope
from wellcond.diagnosis.trial_result import FALLING, RISING, Attempt, Handful, Trial, plunges
from wellcond.errors import NonFinite
from wellcond.network.calling import logits_of
from wellcond.network.dropped import Dropped, Undropped
from wellcond.problem.batches import examples_in, share_examples
from wellcond.problem.problem import Batch, Problem
from wellcond.results import Cost, Progress
from wellcond.training.copies import CopyRun, CopyTrainer
from wellcond.training.optimizers import adds_penalty, nonzero_lr, shrinking_steps, unwrapped

OWN_U, OTHER_U, HANDFUL_U = 7.0, 2.0, 5.0
"""Passes over the problem that the run at the optimizer's own rate, each other run and the handful may take."""
OWN_STEPS, OTHER_STEPS, HANDFUL_STEPS = (24, 64), (10, 20), (40, 80)
"""Fewest and most steps of each; the fewest are taken where the problem has one batch, and a step is a whole pass."""
FEW = 8
"""Examples that any sound network can fit."""
ROBUST_RATES = (1e-2, 1e-3)
"""Learning rates of Adam on a handful of examples."""
LOWER = (0.1, 0.01, 1e-4, 1e-6, 1e-9)
"""Factors of the rate, tried one after another where the loss goes up, until it goes down."""
HIGHER = (10.0, 100.0)
"""Factors of the rate, tried where the loss moves little."""
RISE = 0.02
"""Share of the loss: a rise from which lower rates are tried. Around a minimum, steps go up and down by less."""
SPIKE = 1.3
"""Largest loss during the run over the loss at the start that is still normal."""
FAST_DECAY = 1000.0
"""A run without weight decay is made where decay shrinks weights to 1/e in this many steps or fewer; ordinary decay
takes 2,000 to 100,000."""
STRONG_PENALTY = 1e-3
"""A run without weight decay is made where an adaptive optimizer adds a stronger L2 penalty to the gradient before it
divides by its size: with weights of 0.1 and gradients of 1e-4 both are equally large. Ordinary are 1e-5 to 5e-4."""
STRONG_DROPOUT = 0.6
"""A run without dropout is made where a layer drops more; 0.5 is the largest share in ordinary use."""


@torch.inference_mode(False)  # what is copied in inference mode cannot be trained
def trial(
    problem: Problem,
    optimizer: Optimizer | None = None,
    *,
    dropped: Collection[Dropped] = (),
    peak: float = 0.0,
    seconds: float | None = None,
    progress: Progress | None = None,
) -> Trial:
    """Train copies for a few steps: at the optimizer's own rate, at others where they tell more, on few examples.

    The user's own optimizer takes the user's own mini-batches; large batches are cut. Lower rates are tried where the
    loss goes up, until it goes down; higher ones where it moves little; and runs without weight decay or dropout where
    these are strong. Then Adam tries to fit a handful of examples. It takes 6 to 20 passes over the problem, or some
    100 steps where the problem is one small batch.

    Args:
        problem: What is trained; neither it nor the optimizer is changed.
        optimizer: What trains it; None: only the handful is tried.
        dropped: Calls of the model's own code that drop values at random.
        peak: The highest rate of a schedule that begins below it: where the loss moves little, it is tried, and rates
            above it. 0 or infinite if it is not known.
        seconds: No run but the first begins after this time; None: no limit.
        progress: Called as (what is being done, share of all work done).

    Raises:
        NonFinite: The loss is not finite before any step.
        InvalidProblem: Copies cannot be trained by this loss, or the optimizer belongs to another model.
        Unsupported: The model cannot be copied, or hooks change the optimizer's step.
    """
    report = progress or (lambda _what, _share: None)
    optimizer = None if optimizer is None else unwrapped(optimizer)
    # L-BFGS takes the change of a gradient for curvature, which it is only on one and the same batch
    batches, in_pass = mini_batches(problem, sys.maxsize if isinstance(optimizer, LBFGS) else MOST_EXAMPLES)
    clock = _Clock(seconds)
    with _training(problem, batches, optimizer, in_pass) as trainer:
        start = trainer.start()
        before = tuple(start.evaluate())
        if not all(map(math.isfinite, before)):
            raise NonFinite("the loss is NaN or infinite before any step, so there is nothing to try.")
        known = Trial(before, _constant(problem, start, batches, fmean(before)))
        own: Attempt | None = None
        others: list[Attempt] = []
        variants: dict[str, Attempt] = {}
        if optimizer is not None:
            own, others, variants = _Attempts(trainer, optimizer, in_pass, clock, known, dropped, peak, report).make()
        report("a handful of examples", 0.8)
        with Undropped(dropped) if dropped else contextlib.nullcontext():
            few = None if clock.is_late else _few(problem, batches[0], in_pass)
        report("what inputs tell of targets", 0.95)
        modes = _modes(trainer)
    size = examples_in(batches[0]) if share_examples(batches[0]) else None
    related = relation(problem), token_relation(problem)
    return Trial(before, known.constant, own, tuple(others), variants, few, modes, *related, size)


def trial_price(batch_size: int, batches: int) -> float:
    """An upper estimate of the passes over the problem that the trial of a healthy network takes.

    The trial of a network in trouble takes up to twice that.

    Args:
        batch_size: Examples in each of the problem's batches.
        batches: The number of batches.
    """
    pieces = batches * math.ceil(batch_size / MOST_EXAMPLES)
    of_few = pieces * max(math.ceil(batch_size / math.ceil(batch_size / MOST_EXAMPLES)) / FEW, 1.0)
    steps = _clamped(OWN_U * pieces, OWN_STEPS) + 2 * _clamped(OTHER_U * pieces, OTHER_STEPS)
    evaluated = 3 * min(pieces, MOST_BATCHES)  # before, and after each run, at a third of a pass
    return (steps + evaluated + 2) / pieces + (_clamped(HANDFUL_U * of_few, HANDFUL_STEPS) + 3) / of_few


class _Clock:
    """Says whether it is too late to begin another run."""

    def __init__(self, seconds: float | None) -> None:
        self._deadline = math.inf if seconds is None else time.perf_counter() + seconds

    @property
    def is_late(self) -> bool:
        return time.perf_counter() > self._deadline


@contextlib.contextmanager
def _training(
    problem: Problem, batches: Sequence[Batch], optimizer: Optimizer | None, in_pass: float
) -> Iterator[CopyTrainer]:
    """A trainer of copies on some mini-batches, whose cost is added to that of the problem in the end.

    Args:
        problem: The problem.
        batches: Mini-batches of it.
        optimizer: The optimizer to copy.
        in_pass: How many mini-batches like these a pass over the problem has.
    """
    trainer = CopyTrainer(Problem(problem.model, problem.loss, list(batches)), optimizer)
    try:
        yield trainer
    finally:
        share = problem.batch_count / in_pass  # a part of a batch counts as its share
        problem.count_copies(Cost(trainer.cost.forwards * share, trainer.cost.backwards * share))


class _Attempts:
    """Attempts with the user's optimizer: the first one decides which others are made."""

    def __init__(
        self,
        trainer: CopyTrainer,
        optimizer: Optimizer,
        in_pass: float,
        clock: _Clock,
        known: Trial,
        dropped: Collection[Dropped],
        peak: float,
        report: Progress,
    ) -> None:
        self.trainer, self.optimizer, self.clock, self.known, self.report = trainer, optimizer, clock, known, report
        self.dropped = dropped
        self.short = _clamped(OTHER_U * in_pass, OTHER_STEPS)
        self.long = _clamped(OWN_U * in_pass, OWN_STEPS)
        self.lr = max(map(nonzero_lr, optimizer.param_groups), key=abs)
        self.rise = peak / self.lr if self.lr < peak < math.inf else 1.0

    def make(self) -> tuple[Attempt, list[Attempt], dict[str, Attempt]]:
        """The attempt at the optimizer's own rate, those at other rates, and variants by what was changed."""
        known = self.known
        self.report("its own rate", 0.1)
        own = self.attempt(1.0, self.long)
        known = replace(known, own=own)
        others: list[Attempt] = []
        lowest = min(known.fall(own)[0], known.fall(own, early=True)[0])
        if self.clock.is_late:
            return own, others, {}
        if not lowest > -RISE or not math.isfinite(known.spike) or known.spike > SPIKE:
            others = self.lower(known, own)
        elif not known.has_learned and not known.fall(own)[0] > 0.5:
            others = self.higher(known)
            if not known.trains and not any(known.outcome(each) in FALLING for each in others):
                others += self.lower(known, own)
        return own, others, self.variants(known)

    def attempt(self, factor: float, steps: int, **changes: Any) -> Attempt:
        """A run at `factor` times the own rate, with other changes as in `CopyTrainer.start`."""
        run = self.trainer.start(factor=factor, **changes)
        run.run(self.short)
        early = after = tuple(run.evaluate())
        lost, most_lost = _lost(self.trainer, run)
        if steps > self.short and not self.clock.is_late:
            run.run(steps - self.short)
            after = tuple(run.evaluate())
        return Attempt(factor, factor * self.lr, run.as_run, early, after, lost, most_lost)

    def lower(self, known: Trial, own: Attempt) -> list[Attempt]:
        """Lower rates until the loss falls, or until it rises in proportion to two rates, as steps uphill make it."""
        attempts: list[Attempt] = []
        for factor in LOWER:
            self.report(f"{factor:g} of its rate", 0.4)
            attempts.append(self.attempt(factor, self.short if known.outcome(own) in RISING else self.long))
            falls = known.outcome(attempts[-1]) in FALLING
            if falls or replace(known, others=tuple(attempts)).uphill or self.clock.is_late:
                break
        return attempts

    def higher(self, known: Trial) -> list[Attempt]:
        """Higher rates while the loss falls: above that of its own, or above the highest of its schedule, and this."""
        attempts: list[Attempt] = []
        at_peak = [(self.rise, self.long)] if self.rise > 1 else []
        for factor, steps in (*at_peak, *((self.rise * factor, self.short) for factor in HIGHER)):
            self.report(f"{factor:g} times its rate", 0.4)
            attempts.append(self.attempt(factor, steps))
            falls = known.outcome(attempts[-1]) in FALLING
            if not falls or replace(known, others=tuple(attempts)).uphill or self.clock.is_late:
                break
        return attempts

    def is_decay_in_question(self, known: Trial) -> bool:
        """Whether weight decay may be what keeps the network from training."""
        for group in self.optimizer.param_groups:
            decay = float(group.get("weight_decay") or 0.0)
            is_strong = adds_penalty(self.optimizer, group) and decay > STRONG_PENALTY
            if is_strong or shrinking_steps(self.optimizer, group) <= FAST_DECAY or (decay and known.trains is False):
                return True
        return False

    def variants(self, known: Trial) -> dict[str, Attempt]:
        """Ablation runs: no weight decay, no dropout, BatchNorm in evaluation mode."""
        attempts: dict[str, Attempt] = {}
        if self.clock.is_late:
            return attempts
        modules = list(self.trainer.problem.model.modules())
        if self.is_decay_in_question(known):
            self.report("no weight decay", 0.6)
            attempts["no weight decay"] = self.attempt(1.0, self.long, weight_decay=0.0)
        shares = [m.p for m in modules if isinstance(m, _DropoutNd)] + [call.p for call in self.dropped]
        if any(p > STRONG_DROPOUT for p in shares):
            self.report("no dropout", 0.65)
            with Undropped(self.dropped):  # a function in the model's code does not know the mode of a module
                attempts["no dropout"] = self.attempt(1.0, self.long, dropout=False)
        norms = [m for m in modules if isinstance(m, _BatchNorm) and m.track_running_stats]
        if any(not m.training for m in norms):
            self.report("running statistics", 0.7)
            attempts["running statistics"] = self.attempt(1.0, self.long, batchnorm="running")
        return attempts


def _lost(trainer: CopyTrainer, run: CopyRun) -> tuple[float, str]:
    """The share of the weights with a gradient that no step has changed, and the parameter with most of them.

    NaN if none has a gradient.
    """
    held = {p for group in run.optimizer.param_groups for p in group["params"]}
    lost: dict[str, int] = {}
    reached = 0
    for (name, before), after in zip(trainer.problem.params.items(), run.problem.params.values(), strict=True):
        if after in held and after.grad is not None and not after.grad.is_sparse:
            has_gradient = after.grad != 0
            lost[name] = int(((before == after) & has_gradient).sum())
            reached += int(has_gradient.sum())
    return (sum(lost.values()) / reached, max(lost, key=lambda name: lost[name])) if reached else (math.nan, "")


def _few(problem: Problem, batch: Batch, in_pass: float) -> Handful | None:
    """Whether a few examples can be fitted: at two rates for a while, then at the better one."""
    examples = handful(problem, batch, FEW)
    count = None if examples is batch else examples_in(examples)
    in_pass *= examples_in(batch) / count if count else 1.0
    steps = _clamped(HANDFUL_U * in_pass, HANDFUL_STEPS)
    with _training(problem, [examples], _adam(problem), in_pass) as trainer:
        start = trainer.start(dropout=False)
        before = start.evaluate()[0]
        if not math.isfinite(before):
            return None
        runs: list[tuple[float, float, CopyRun]] = []
        for lr in ROBUST_RATES:
            run = trainer.start(lr, dropout=False)
            run.run(steps // 3)
            after = run.evaluate()[0]
            runs.append((after if math.isfinite(after) else math.inf, lr, run))
        _, lr, best = min(runs, key=lambda each: each[0])
        best.run(steps // 3)
        uphill = None
        if best.losses and plunges(best.losses):
            opposite = trainer.start(lr, dropout=False, maximize=True)
            opposite.run(len(best.losses))
            uphill = opposite.evaluate()[0]
        constant = _constant(problem, start, [examples], before)
        lost, spent = None, best.problem.cost
        with contextlib.suppress(Exception):  # the user's code may refuse other weights, or to be recorded
            lost = lost_slope(best.problem)
        trainer.cost += best.problem.cost - spent
        return Handful(count, lr, before, best.evaluate()[0], constant, best.as_run, uphill, lost)


def _modes(trainer: CopyTrainer) -> tuple[float, float] | None:
    """The loss in training and in evaluation mode, both without dropout."""
    if not any(isinstance(m, _BatchNorm) and m.track_running_stats for m in trainer.problem.model.modules()):
        return None
    batch, running = trainer.start(dropout=False), trainer.start(dropout=False, batchnorm="running")
    return fmean(batch.evaluate()), fmean(running.evaluate())


def _constant(problem: Problem, start: CopyRun, batches: Sequence[Batch], loss: float) -> float | None:
    """The loss of the best constant prediction of these batches; None where it is not known."""
    outputs = [each if isinstance(each, Tensor) else logits_of(each) for each in start.outputs()]
    if any(each is None or not each.dim() for each in outputs):
        return None
    targets = [targets for _, targets in batches]
    least = constant_loss(start.problem.loss_of_outputs, problem.likelihood, outputs, targets)  # type: ignore[arg-type]
    # targets that are all the same, as a GAN's, are no yardstick: a constant gets them right
    return None if least is None or abs(least) < 1e-4 * min(abs(loss), 1.0) else least


def _adam(problem: Problem) -> Optimizer:
    """Adam over the model, of which copies are trained."""
    trainable = [p for p in problem.model.parameters() if p.requires_grad]
    is_half = any(p.dtype == torch.float16 for p in trainable)  # in which 1e-8 is zero
    return Adam(trainable, 1.0, eps=1e-4 if is_half else 1e-8)


def _clamped(steps: float, ends: tuple[int, int]) -> int:
    return int(min(max(steps, ends[0]), ends[1]))
