"""Runs of copies with the user's optimizer: at its own rate, at others where they tell more, and with one change."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from operator import length_hint
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from wellcond.diagnosis.probes.dropped import Dropped, Undropped
from wellcond.diagnosis.trial_result import FALLING, RISING, Attempt, Trial
from wellcond.diagnosis.worth import worth
from wellcond.problem.batches import Batch
from wellcond.problem.problem import Problem
from wellcond.results import Progress
from wellcond.training.copy_run import CopyRun, in_training
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.training.optimizers import adds_penalty, begins_at_zero, nonzero_lr, shrinking_steps

OWN_U, OTHER_U = 7.0, 2.0
"""Passes over the problem that the run at the optimizer's own rate and each other run may take."""
OWN_STEPS, OTHER_STEPS = (24, 64), (10, 20)
"""Fewest and most steps of each; the fewest are taken where the problem has one batch, and a step is a whole pass."""
OWN_SHARE, OTHER_SHARE = 0.3, 0.1
"""Shares of the steps allowed that the run at the own rate, and each other one, may take, if not the fewest."""
LOOKS_AFTERWARDS_U = 4 / 3
"""What the looks at the norms and at the terms of the loss take after all runs: four forward passes."""
LOWER = (0.1, 0.01, 1e-4, 1e-6, 1e-9)
"""Factors of the rate, tried one after another where the loss goes up, until it goes down."""
HIGHER = (10.0, 100.0)
"""Factors of the rate, tried where the loss moves little."""
FAR_HIGHER = (1e4, 1e6)
"""Factors of the rate, tried after these where the weights hardly move either."""
HARDLY_MOVES = 1e-2
"""‖Δθ‖/‖θ‖ after a short run, below which its rate cannot tell whether the network trains."""
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
FAR_ABOVE = 30.0
"""A run is made in which the group with the highest rate has that of the next, if its own is this many times higher;
rates of layers that were trained before are a tenth or a hundredth of a new head's."""
ALIKE_RATES = "rates more alike"
STRONG_DROPOUT = 0.6
"""A run without dropout is made where a layer drops more; 0.5 is the largest share in ordinary use."""


class Allowance:
    """What is left of the steps and the seconds of a trial, and what did not fit.

    Args:
        spent: What all runs have taken so far, in u.
        share: What a step of a mini-batch counts, in u.
        most: Steps allowed, in u.
        seconds: No run begins that would end after this time, by what the steps so far have taken; None: no limit.

    Attributes:
        most: Steps allowed, in u.
        left_out: What was not tried.
    """

    def __init__(self, spent: Callable[[], float], share: float, most: float, seconds: float | None) -> None:
        self._spent, self._share, self.most = spent, share, most
        self._began = time.perf_counter()
        self._deadline = math.inf if seconds is None else self._began + seconds
        self.left_out: list[str] = []

    def is_late(self, steps: float) -> bool:
        """Whether this many steps of a mini-batch would end after the time, at the pace of those so far."""
        now, spent = time.perf_counter(), self._spent()
        pace = (now - self._began) / spent if spent else 0.0
        return now + steps * self._share * pace > self._deadline

    def has(self, steps: float, what: str, *, keep: float = 0.0) -> bool:
        """Whether this many steps of a mini-batch still fit, and leave `keep` u; if not, `what` is left out."""
        if not self.is_late(steps) and self._spent() + steps * self._share + keep <= self.most:
            return True
        self.left_out.append(what)
        return False


def steps_of(in_pass: float, most: float) -> tuple[int, int]:
    """Steps of the run at the own rate, and of each other one.

    Args:
        in_pass: Mini-batches in a pass over the problem.
        most: Steps allowed for the whole trial, in u.
    """
    own = clamped(min(OWN_U * in_pass, OWN_SHARE * most), OWN_STEPS)
    return own, clamped(min(OTHER_U * in_pass, OTHER_SHARE * most), OTHER_STEPS)


def clamped(steps: float, ends: tuple[int, int]) -> int:
    """A number of steps between two ends."""
    return int(min(max(steps, ends[0]), ends[1]))


class Attempts:
    """Attempts with the user's optimizer: the first one decides which others are made."""

    def __init__(
        self,
        problem: Problem,
        trainer: CopyTrainer,
        optimizer: Optimizer,
        in_pass: float,
        allowed: Allowance,
        known: Trial,
        dropped: Collection[Dropped],
        peak: float,
        report: Progress,
    ) -> None:
        self.trainer, self.optimizer, self.allowed, self.known, self.report = trainer, optimizer, allowed, known, report
        self.problem, self.in_pass, self.dropped = problem, in_pass, dropped
        self.long, self.short = steps_of(in_pass, allowed.most)
        self.lr = max(map(nonzero_lr, optimizer.param_groups), key=abs)
        # a schedule that begins at zero may multiply the configured rate by anything: its highest rate is tried
        self.scale = peak / self.lr if begins_at_zero(optimizer) and 0 < peak < math.inf else 1.0
        self.lr *= self.scale
        self.rise = peak / self.lr if self.lr < peak < math.inf else 1.0
        self.trained: CopyRun  # that at its own rate, once it has been made
        self._parking: contextlib.ExitStack | None = None  # where it is parked, while others may be made

    def make(self) -> tuple[Attempt, list[Attempt], dict[str, Attempt]]:
        """The attempt at the optimizer's own rate, those at other rates, and variants by what was changed."""
        known = self.known
        self.report("its own rate", 0.1)
        own = self.attempt(1.0, self.long)
        if known.outcome(own) in RISING and (known.outcome(own, early=True) == "learns" or known.had_learned(own)):
            own = self.milder(own)
        known = replace(known, own=own)
        others: list[Attempt] = []
        lowest = min(known.fall(own)[0], known.fall(own, early=True)[0])
        with contextlib.ExitStack() as self._parking:
            variants = self.variants(known)  # a setting that is in question comes before rates that are not
            if not lowest > -RISE or not math.isfinite(known.spike) or known.spike > SPIKE:
                others = self.lower(known, own)
            elif not known.has_learned and not known.fall(own)[0] > 0.5:
                others = self.higher(known)
                if not known.trains and not any(known.outcome(each) in FALLING for each in others):
                    others += self.lower(known, own)
            return own, others, variants

    def milder(self, own: Attempt) -> Attempt:
        """The first run, which learned and then got out of hand, or a second one on new batches if it ends lower.

        Small parts of a few batches, over and over, are harder on embeddings than whole batches that training draws;
        and where two networks play against each other, one run may rise by chance.
        """
        count = length_hint(self.problem.loader, 0)
        are_all = self.in_pass == count == self.trainer.batch_count
        size = self.in_pass / max(count, 1)  # of a batch, in mini-batches
        if not count or are_all or self.trainer.member is not None:
            return own
        if not self.allows(math.ceil(self.long * size), "a second run at its own rate"):
            return own
        first = self.trained
        with contextlib.closing(in_training(self.problem, self.problem.model, seed=1).draws(1)) as batches:
            second = self.attempt(1.0, self.long, batches=batches)
        if second.loss < (own.loss if math.isfinite(own.loss) else math.inf):
            return second
        self.trained = first
        return own

    def attempt(self, factor: float, steps: int, *, batches: Iterator[Batch] | None = None, **changes: Any) -> Attempt:
        """A run at `factor` times the own rate.

        Args:
            factor: Factor of the rate.
            steps: Number of steps.
            batches: What it is trained on; None: the mini-batches of the trial, over and over.
            changes: Others, as in `CopyTrainer.start`.
        """
        is_own = factor == 1 and not changes
        if not is_own:
            self._make_room()
        run = self.trainer.start(factor=self.scale * factor, **changes)
        if is_own:
            self.trained = run
        early = after = (math.nan,) * len(self.known.before)
        lost, most_lost, of_outputs, moved, has_raised = math.nan, "", None, math.nan, False
        try:
            run.run(self.short, batches=batches)
            early = after = tuple(run.evaluate())
            moved = _moved(self.trainer, run)
            lost, most_lost = _lost(self.trainer, run)
            if steps > self.short and not self.allowed.is_late(steps - self.short):
                run.run(steps - self.short, batches=batches)
                after = tuple(run.evaluate())
                of_outputs = worth(run, self.trainer.batch)
        except Exception as error:  # at the first weights all batches passed: these are outside of what the code takes
            if not run.losses:  # the first step itself failed, at the first weights
                raise
            run.diverged_at, run.cause = len(run.losses) + 1, str(error)
            after = (math.nan,) * len(early)
            has_raised = all(bool(p.isfinite().all()) for p in run.model.parameters())
        return Attempt(
            factor, factor * self.lr, run.as_run, early, after, lost, most_lost, of_outputs, moved, has_raised
        )

    def _make_room(self) -> None:
        """The run at its own rate waits on the host, if that is needed, until the others have been made."""
        if self._parking is not None:
            self._parking.enter_context(self.trained.parked())
            self._parking = None

    def allows(self, steps: int, what: str) -> bool:
        """Whether another attempt fits; if not, it is left out."""
        evaluations = 1 + (steps > self.short)
        of_outputs = 2 if steps > self.short else 0
        return self.allowed.has(
            steps + (evaluations * len(self.known.before) + of_outputs) / 3, what, keep=LOOKS_AFTERWARDS_U
        )

    def lower(self, known: Trial, own: Attempt) -> list[Attempt]:
        """Lower rates until the loss falls, or until it rises in proportion to two rates, as steps uphill make it."""
        attempts: list[Attempt] = []
        for factor in LOWER:
            self.report(f"{factor:g} of its rate", 0.4)
            steps = self.short if known.outcome(own) in RISING else self.long
            if not self.allows(steps, "lower rates"):
                break
            attempts.append(self.attempt(factor, steps))
            falls = known.outcome(attempts[-1]) in FALLING
            if falls or replace(known, others=tuple(attempts)).uphill:
                break
        return attempts

    def higher(self, known: Trial) -> list[Attempt]:
        """Higher rates while the loss falls: above that of its own, or above the highest of its schedule, and this."""
        attempts: list[Attempt] = []
        at_peak = [(self.rise, self.long)] if self.rise > 1 else []
        for factor, steps in (*at_peak, *((self.rise * factor, self.short) for factor in (*HIGHER, *FAR_HIGHER))):
            if factor > self.rise * max(HIGHER) and not 0 < attempts[-1].moved < HARDLY_MOVES:
                break
            self.report(f"{factor:g} times its rate", 0.4)
            if not self.allows(steps, "higher rates"):
                break
            attempts.append(self.attempt(factor, steps))
            falls = known.outcome(attempts[-1]) in FALLING
            goes_on = falls or 0 < attempts[-1].moved < HARDLY_MOVES
            if not goes_on or replace(known, others=tuple(attempts)).uphill:
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

    def next_lower_rate(self) -> float:
        """The rate below the highest of all groups, if that is far higher; 0 otherwise."""
        rates = sorted({self.scale * nonzero_lr(group) for group in self.optimizer.param_groups if group["params"]})
        return rates[-2] if len(rates) > 1 and rates[-1] >= FAR_ABOVE * rates[-2] > 0 else 0.0

    def variants(self, known: Trial) -> dict[str, Attempt]:
        """Ablation runs: no weight decay, no dropout, rates that are more alike, BatchNorm in evaluation mode."""
        attempts: dict[str, Attempt] = {}
        modules = list(self.trainer.problem.model.modules())
        if self.is_decay_in_question(known) and self.allows(self.long, "a run without weight decay"):
            self.report("no weight decay", 0.6)
            attempts["no weight decay"] = self.attempt(1.0, self.long, weight_decay=0.0)
        shares = [m.p for m in modules if isinstance(m, _DropoutNd)] + [call.p for call in self.dropped]
        if any(p > STRONG_DROPOUT for p in shares) and self.allows(self.long, "a run without dropout"):
            self.report("no dropout", 0.65)
            with Undropped(self.dropped):  # a function in the model's code does not know the mode of a module
                attempts["no dropout"] = self.attempt(1.0, self.long, dropout=False)
        lower = self.next_lower_rate()
        if lower and self.allows(self.long, "a run with rates that are more alike"):
            self.report("rates that are more alike", 0.67)
            attempts[ALIKE_RATES] = self.attempt(1.0, self.long, most=lower)
        norms = [m for m in modules if isinstance(m, _BatchNorm) and m.track_running_stats]
        if any(not m.training for m in norms) and self.allows(self.long, "a run with running statistics"):
            self.report("running statistics", 0.7)
            attempts["running statistics"] = self.attempt(1.0, self.long, batchnorm="running")
        return attempts


def _moved(trainer: CopyTrainer, run: CopyRun) -> float:
    """How far a run has gone: ‖Δθ‖/‖θ‖ over all trainable parameters."""
    pairs = [*zip(trainer.problem.params.values(), run.problem.params.values(), strict=True)]
    sizes = [before.detach().double().square().sum() for before, _ in pairs]
    ways = [(after.detach().double() - before.detach().double()).square().sum() for before, after in pairs]
    size, way = torch.stack([torch.stack(sizes).sum(), torch.stack(ways).sum()]).tolist()
    return math.sqrt(way / size) if size else math.inf


def _lost(trainer: CopyTrainer, run: CopyRun) -> tuple[float, str]:
    """The share of the weights with a gradient that no step has changed, and the parameter with most of them.

    NaN if none has a gradient.
    """
    held = {p for group in run.optimizer.param_groups for p in group["params"]}
    counts: dict[str, Tensor] = {}
    for (name, before), after in zip(trainer.problem.params.items(), run.problem.params.values(), strict=True):
        if after in held and after.grad is not None and not after.grad.is_sparse:
            has_gradient = after.grad != 0
            counts[name] = torch.stack([((before == after) & has_gradient).sum(), has_gradient.sum()])
    if not counts:
        return math.nan, ""
    both = torch.stack([*counts.values()]).tolist()  # at once: each number that is read waits for the device
    lost = {name: count for name, (count, _) in zip(counts, both, strict=True)}
    reached = sum(count for _, count in both)
    return (sum(lost.values()) / reached, max(lost, key=lambda name: lost[name])) if reached else (math.nan, "")
