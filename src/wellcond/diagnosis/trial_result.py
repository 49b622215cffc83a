"""What short runs of copies showed: whether the network trains, and at which rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, stdev

from wellcond.diagnosis.labels import Relation
from wellcond.training.run import Run

SIGNIFICANT = 1.5
"""Standard errors of a mean over batches. The batches are those that are trained on, so that any fall is one."""
FLAT = 0.005
"""Of the loss: what moves less in some fifty steps stands still."""
LEARNED = 0.9
"""Of the constant's loss: a network below has learned from its inputs."""
POOR_START = 2.0
"""Times the constant's loss: from where a network begins by unlearning what its weights say."""


@dataclass(frozen=True)
class Attempt:
    """A run at one rate.

    Attributes:
        factor: The rate over the optimizer's own.
        lr: The rate.
        run: Its losses.
        early: The loss of each batch after as many steps as all attempts have taken; NaN where it is not finite.
        after: The same at its end.
    """

    factor: float
    lr: float
    run: Run
    early: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def loss(self) -> float:
        """The mean loss at its end."""
        return fmean(self.after)


@dataclass(frozen=True)
class Handful:
    """A run on a few examples with a robust optimizer.

    Attributes:
        examples: How many; None if not all tensors count them.
        lr: Of Adam.
        before: The loss before.
        after: The loss after.
        constant: The loss of the best constant prediction of these examples.
        run: Its losses.
    """

    examples: int | None
    lr: float
    before: float
    after: float
    constant: float | None
    run: Run

    @property
    def fall(self) -> float:
        """By how much of it the loss fell, from the start or from the constant's if that is lower."""
        start = self.before if self.constant is None else min(self.before, self.constant)
        return (start - self.after) / max(abs(start), 1e-12)

    @property
    def is_fitted(self) -> bool:
        """Whether the network has learned something of these examples that a constant could not tell."""
        return self.fall > 1 - LEARNED


@dataclass(frozen=True)
class Trial:
    """What short runs do. All begin at the weights as they are and see the same batches in the same order.

    Attributes:
        before: The loss of each batch at the start.
        constant: The loss of the best constant prediction on these batches, where it is known.
        own: With the optimizer as it is; None without one.
        others: At other rates of it, as far as they were needed.
        variants: At its own rate with one thing changed: `"no weight decay"`, `"no dropout"`, `"running statistics"`.
        few: On a handful of examples.
        modes: The loss with each batch's statistics and with the running ones, where the model has both.
        relation: Whether the inputs tell anything of the targets; None where that cannot be probed.
        examples: In a mini-batch; None if not all tensors count them.
    """

    before: tuple[float, ...]
    constant: float | None = None
    own: Attempt | None = None
    others: tuple[Attempt, ...] = ()
    variants: dict[str, Attempt] = field(default_factory=dict)
    few: Handful | None = None
    modes: tuple[float, float] | None = None
    relation: Relation | None = None
    examples: int | None = None

    @property
    def loss(self) -> float:
        """The mean loss at the start."""
        return fmean(self.before)

    @property
    def is_learned(self) -> bool:
        """Whether the network knew more than a constant before the trial began."""
        return self.constant is not None and self.loss < LEARNED * self.constant

    def fall(self, attempt: Attempt, *, early: bool = False) -> tuple[float, float]:
        """How far the loss fell on the same batches, over the loss or the constant's, and the standard error of that.

        Both are NaN if it diverged.
        """
        after = attempt.early if early else attempt.after
        if not all(map(math.isfinite, after)):
            return math.nan, math.nan
        differences = [b - a for b, a in zip(self.before, after, strict=True)]
        scale = max(abs(self.loss), abs(self.constant or 0.0), 1e-12)
        error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
        return fmean(differences) / scale, error / scale

    def falls(self, attempt: Attempt, *, early: bool = False) -> bool:
        """Whether the loss fell by more than chance makes it."""
        fall, error = self.fall(attempt, early=early)
        return fall > max(SIGNIFICANT * error, 1e-6)

    def rises(self, attempt: Attempt, *, early: bool = False) -> bool:
        """Whether it diverged, or rose by more than chance makes it."""
        fall, error = self.fall(attempt, early=early)
        return math.isnan(fall) or -fall > max(SIGNIFICANT * error, 1e-6)

    def learns(self, attempt: Attempt) -> bool:
        """Whether it ends below a constant, or, where that is not known, clearly below the start."""
        reference = self.loss if self.constant is None else min(self.loss, self.constant)
        return attempt.loss < reference - (1 - LEARNED) * abs(reference) and self.falls(attempt)

    def learns_nothing(self, attempt: Attempt) -> bool:
        """Whether it ends above a constant; where that is not known, no lower than 2 % below the start."""
        return attempt.loss > (0.98 * self.loss if self.constant is None else self.constant)

    @property
    def trains(self) -> bool | None:
        """Whether the network is seen to train with its own optimizer, or has been trained.

        True if it learns what a constant cannot tell; False if its loss rises, or stays where it is; None in between
        and where it is not known. Without an optimizer, whether it can fit a handful of examples.
        """
        if self.own is None:
            return True if self.few is not None and self.few.is_fitted else None
        if self.learns(self.own):
            return True
        fall, error = self.fall(self.own)
        if self.is_learned and fall > -0.1:
            return True
        return None if fall > min(max(error, 1e-6), FLAT) else False

    @property
    def fails(self) -> bool:
        """Whether it is seen not to train, and at no other rate either: then the rate alone is not to blame."""
        return self.trains is False and not any(self.learns(each) for each in self.others)

    @property
    def trains_well(self) -> bool:
        """Whether it trains as it should, and not only down from a start that is far worse than a constant."""
        if not self.trains or self.is_learned or self.halves:
            return bool(self.trains)
        return self.own is None or (self.constant is not None and self.loss < POOR_START * self.constant)

    @property
    def is_flat(self) -> bool:
        """Whether a network that has not learned stays where it is, at its own rate and at every other one tried."""
        if self.own is None or self.trains:
            return False
        return all(not self.fall(each)[0] > FLAT for each in (self.own, *self.others))

    @property
    def halves(self) -> bool:
        """Whether the own run ends below half of the loss that it began with, and of a constant's."""
        return self.own is not None and self.own.loss < 0.5 * min(self.loss, self.constant or self.loss)

    @property
    def uphill(self) -> tuple[Attempt, Attempt] | None:
        """Two runs at low rates that rose in proportion to their rates, as steps up the gradient make it."""
        if self.is_learned and self.own is not None and self.fall(self.own)[0] > -0.1:
            return None  # around a minimum steps go up and down
        gentle = [each for each in self.attempts if -0.1 < self.fall(each, early=True)[0] < -1e-7]
        for slow, fast in pairwise(gentle):
            rose = self.fall(fast, early=True)[0] / self.fall(slow, early=True)[0]
            if 0.5 < rose / (fast.factor / slow.factor) < 2.0:
                return fast, slow
        return None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """At all rates, from the lowest to the highest."""
        own = () if self.own is None else (self.own,)
        return tuple(sorted((*own, *self.others), key=lambda attempt: attempt.factor))

    @property
    def spike(self) -> float:
        """The highest loss of the own run over that at the start; infinity if it diverged."""
        if self.own is None:
            return 1.0
        if self.own.run.diverged_at is not None:
            return math.inf
        return max(self.own.run.losses, default=0.0) / max(abs(max(self.before)), abs(self.constant or 0.0), 1e-12)
