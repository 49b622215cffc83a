"""What short runs of copies showed: whether the network trains, and at which rates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal

from wellcond.diagnosis.after_runs import Bonus, HeldOut, OneAnswer, SharedNorm, Swamped
from wellcond.diagnosis.handful import Handful
from wellcond.diagnosis.inspection.failures import InspectionFailure
from wellcond.diagnosis.labels import Relation
from wellcond.diagnosis.learned import LEARNED, has_learned
from wellcond.diagnosis.lying_masks import Lying
from wellcond.diagnosis.probes.paired import Paired
from wellcond.results.run import Run

Outcome = Literal["learns", "falls", "flat", "rises", "diverges"]
"""How a run ends, compared with where it began. *Learns*: clearly below a constant prediction, or, if that is unknown,
below the start. *Falls*: by more than chance. *Flat*: neither. *Rises*: by more than chance. *Diverges*: not finite."""
FALLING: tuple[Outcome, ...] = ("learns", "falls")
RISING: tuple[Outcome, ...] = ("rises", "diverges")

SIGNIFICANT = 1.5
"""Standard errors of the mean over batches: a smaller change is chance. They are few, because the batches are those
that the run was trained on."""
ROUNDING = 1e-6
"""Fraction of the loss: a smaller change is rounding."""
STANDS_STILL = 0.005
"""Fraction of the loss: a run that changes less in some fifty steps stands still, however significant the change."""
POOR_START = 2.0
"""Multiple of the constant's loss above which the initial outputs are worse than useless: a fall from there proves no
more than that the network unlearns them."""
AROUND_MINIMUM = 0.1
"""Fraction of the loss by which mini-batch steps may raise the loss of a network that has learned."""
FAR_START, UP_TO_ONE_ANSWER = 100.0, 1.05
"""A loss from which on outputs are far away, as the squared error of targets of RMS 10; and the loss of one answer for
all over that after the run, up to which the run has come no further."""
HALF = 0.5
"""Fraction of the initial loss, and of the constant's, below which a run leaves no doubt that the network learns."""
BEYOND_CHANCE = 8.0
"""Standard deviations of shuffled targets from which on inputs predict the targets without any doubt."""
SMOOTHED = 4
"""Steps whose losses are averaged, to tell how low a run has been: one batch alone is noise."""
OUT_OF_HAND = 2.0
"""Loss after over loss before that no moving target explains."""
PROPORTIONAL = 2.0
"""Factor within which a rise is proportional to the rate. Overshooting grows with the square of the rate: by 10 to 100
times more between two rates that are tried."""
NO_GAIN, RATES_TRIED = 0.93, 3
"""Loss over that of a constant from which on nothing has been learned, if it is so at three rates or more: of 310 sound
set-ups two end above it at their own rate, and both learn at another; half of the faulty ones do not."""
LONG_RUN, HARDLY_ANY_GAIN = 50, 0.99
"""Steps of the own run from which on that holds, and the limit for shorter runs: plain SGD on small batches starts
slowly, with 1.1 % in 64 steps on the digits."""
CLEARLY_BELOW, ENOUGH_BATCHES = 4.0, 4
"""Standard errors of the mean over batches below the loss of a constant at which something has been learned, however
little that is of the loss, and batches from which on they say so: one network for survival times has 6 at its own rate
and 9 at a higher one, with a loss of 0.94 times a constant's. Of 67 faulty networks that stay near a constant or above,
three are more than 4 below it: the outputs of two are worth as much to other examples, and one, with a softmax too
many, learns slowly."""
TOLD_APART = 0.05
"""(Loss with the outputs of other examples − loss) / the larger, from which on outputs tell examples apart: 0.13 in
survival times, up to 0.035 in faulty networks whose loss is about a constant's."""


@dataclass(frozen=True)
class Attempt:
    """A run at one rate.

    Attributes:
        factor: Rate over the optimizer's own.
        lr: Learning rate.
        run: Losses of its steps.
        early: Loss of each batch after the number of steps that all attempts have taken; NaN if it is not finite.
        after: Loss of each batch at the end of the run.
        lost: Share of the weights with a gradient that are as they were after the first steps, because each step was
            below their precision; NaN if it was not counted.
        most_lost: The parameter with most of these weights; "" if they were not counted.
        paired: What its outputs on the first batch are worth at the end; None for a short run, or if that is not known.
        moved: ‖Δθ‖/‖θ‖ after the number of steps that all attempts have taken; NaN if it is not finite.
        has_raised: Whether it ended because the user's code raised, though all weights were finite.
    """

    factor: float
    lr: float
    run: Run
    early: tuple[float, ...]
    after: tuple[float, ...]
    lost: float = math.nan
    most_lost: str = ""
    paired: Paired | None = None
    moved: float = math.nan
    has_raised: bool = False

    @property
    def loss(self) -> float:
        """Mean loss at the end of the run."""
        return fmean(self.after)


@dataclass(frozen=True)
class Trial:
    """What short runs do. All begin at the weights as they are and see the same batches in the same order.

    Attributes:
        before: Loss of each batch at the start.
        constant: Loss of the best constant prediction on these batches, if it is known.
        own: Run with the optimizer as it is; None without one.
        others: Runs at other rates, if they were needed.
        variants: Runs at its own rate with one change: `"no weight decay"`, `"no dropout"`, `"rates more alike"`,
            `"running statistics"`.
        few: Run on a handful of examples.
        modes: Loss with each batch's statistics and with the running ones, if the model has both.
        relation: Whether the inputs predict the targets; None if that cannot be probed.
        token_relation: Whether the tokens of a sequence predict the labels of its positions; None for other data.
        examples: Examples in a mini-batch; None if not all tensors count them.
        left_out: What was not tried, because the steps or the seconds did not suffice.
        failures: What could not be tried, and why.
        held_out: Run on half of the batches, tested on the others; None where it was not needed.
        swamped: A term of the loss that others keep from being learned; None if there is none.
        bonus: A bonus of the outputs alone that keeps a term of the loss from falling; None if there is none.
        of_one_point: Loss of the first batch at the start if all examples had the same outputs, where the loss depends
            on which example outputs belong to; None where that was not in question.
        cut_off: Layers whose weights move an output that sends them no gradient, sought in the same case.
        shared_norm: A BatchNorm that is called at several places; None if there is none.
        follows_itself: Whether what a step compares outputs with moves along with the model, as a Q-network's goal, or
            two networks play against each other: the loss may rise while the model gets better.
        one_answer: What one answer for all examples is worth after its own run, where exchanging outputs changes
            little; None elsewhere, and where another network judges the outputs.
        masks: How the masks of a segmentation lie on its images; None for other data.
    """

    before: tuple[float, ...]
    constant: float | None = None
    own: Attempt | None = None
    others: tuple[Attempt, ...] = ()
    variants: dict[str, Attempt] = field(default_factory=dict)
    few: Handful | None = None
    modes: tuple[float, float] | None = None
    relation: Relation | None = None
    token_relation: Relation | None = None
    examples: int | None = None
    left_out: tuple[str, ...] = ()
    failures: tuple[InspectionFailure, ...] = ()
    held_out: HeldOut | None = None
    swamped: Swamped | None = None
    of_one_point: float | None = None
    cut_off: tuple[str, ...] = ()
    shared_norm: SharedNorm | None = None
    follows_itself: bool = False
    one_answer: OneAnswer | None = None
    masks: Lying | None = None
    bonus: Bonus | None = None

    @property
    def loss(self) -> float:
        """Mean loss at the start."""
        return fmean(self.before)

    @property
    def has_learned(self) -> bool:
        """Whether the network knew more than a constant before the trial began."""
        return has_learned(self.loss, self.constant)

    @property
    def learns_by_heart(self) -> bool:
        """Whether what a run learned of half of the batches is of no use for the others: a constant is better there."""
        held = self.held_out
        if held is None:
            return False
        known = held.before if self.constant is None else min(held.before, self.constant)
        return held.seen < LEARNED * known <= held.unseen

    def fall(self, attempt: Attempt, *, early: bool = False) -> tuple[float, float]:
        """How far the loss fell on the same batches, relative to the loss or the constant's, and its standard error.

        Both are NaN if it diverged.
        """
        after = attempt.early if early else attempt.after
        if not all(map(math.isfinite, after)):
            return math.nan, math.nan
        differences = [b - a for b, a in zip(self.before, after, strict=True)]
        scale = max(abs(self.loss), abs(self.constant or 0.0), 1e-12)
        error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
        return fmean(differences) / scale, error / scale

    def outcome(self, attempt: Attempt, *, early: bool = False) -> Outcome:
        """How a run ended, or, if `early`, how it stood after the number of steps that all runs have taken."""
        fall, error = self.fall(attempt, early=early)
        if math.isnan(fall):
            return "diverges"
        chance = max(SIGNIFICANT * error, ROUNDING)
        if fall > chance:
            reference = self.loss if self.constant is None else min(self.loss, self.constant)
            loss = fmean(attempt.early if early else attempt.after)
            is_clear = loss < reference - (1 - LEARNED) * abs(reference)
            return "learns" if is_clear else "falls"
        return "rises" if -fall > chance else "flat"

    @property
    def trains(self) -> bool | None:
        """Whether the network trains with its own optimizer at its own rate, or has been trained.

        False if the loss rises or stands still; None in between, also where the fall may be chance: a verdict must not
        rest on that. Without an optimizer: whether the network can fit a handful of examples.
        """
        if self.own is None:
            return True if self.few is not None and self.few.is_fitted else None
        if self.outcome(self.own) == "learns":
            return True
        fall, error = self.fall(self.own)
        if self.has_learned and fall > -AROUND_MINIMUM:
            return True
        return None if fall > min(max(error, ROUNDING), STANDS_STILL) else False

    @property
    def trains_well(self) -> bool:
        """Whether it trains, and not only because it starts far above a constant: this excuses symptoms."""
        if not self.trains or self.has_learned or self.halves:
            return bool(self.trains)
        return self.own is None or (self.constant is not None and self.loss < POOR_START * self.constant)

    @property
    def halves(self) -> bool:
        """Whether the run at its own rate ends below half of the initial loss, and of a constant's."""
        if self.own is None or self.only_comes_down:
            return False
        return self.own.loss < HALF * min(self.loss, self.constant or self.loss)

    @property
    def only_comes_down(self) -> bool:
        """Whether the loss falls from far away to that of one answer for all: outputs were too large, and still are."""
        if self.own is None or self.one_answer is None or self.loss < FAR_START:
            return False
        return 1 < self.one_answer.loss < UP_TO_ONE_ANSWER * self.own.loss

    @property
    def fails(self) -> bool:
        """Whether it trains neither at its own rate nor learns at another one: the rate alone is not to blame."""
        return self.trains is False and not any(self.outcome(each) == "learns" for each in self.others)

    @property
    def stands_still(self) -> bool:
        """Whether no run, at its own rate or another, lowers the loss by more than half a percent."""
        if self.own is None or self.trains:
            return False
        return all(not self.fall(each)[0] > STANDS_STILL for each in (self.own, *self.others))

    @property
    def uphill(self) -> tuple[Attempt, Attempt] | None:
        """Two runs at low rates whose loss rose in proportion to their rates: their steps go up the gradient."""
        if self.has_learned and self.own is not None and self.fall(self.own)[0] > -AROUND_MINIMUM:
            return None  # around a minimum steps go up and down
        gentle = [each for each in self.attempts if -AROUND_MINIMUM < self.fall(each, early=True)[0] < -ROUNDING / 10]
        for slow, fast in pairwise(gentle):
            rise = self.fall(fast, early=True)[0] / self.fall(slow, early=True)[0]
            if 1 / PROPORTIONAL < rise / (fast.factor / slow.factor) < PROPORTIONAL:
                return fast, slow
        return None

    @property
    def learns_nothing(self) -> bool:
        """Whether its own run and those at two other rates at least end no lower than about a constant's loss.

        Of a ranking or of survival times little can be learned at all: it is enough that the fall below a constant is
        many standard errors, and that outputs are worth less to other examples.
        """
        if self.has_learned or self.constant is None or self.constant <= 0 or len(self.attempts) < RATES_TRIED:
            return False
        least = NO_GAIN if self.is_long else HARDLY_ANY_GAIN
        return not any(each.loss < least * self.constant for each in self.attempts) and not self._is_clearly_below

    @property
    def _is_clearly_below(self) -> bool:
        """Whether its own run ends below a constant's loss, and not by chance."""
        own = self.own
        if own is None or own.paired is None or self.constant is None or len(own.after) < ENOUGH_BATCHES:
            return False
        error = self.fall(own)[1] * max(abs(self.loss), abs(self.constant), 1e-12)
        is_told_apart = own.paired.gain > TOLD_APART
        return is_told_apart and not self.learns_by_heart and self.constant - own.loss > CLEARLY_BELOW * error

    @property
    def is_long(self) -> bool:
        """Whether its own run is long enough for a sound network to gain something on a constant."""
        return self.own is not None and len(self.own.run.losses) >= LONG_RUN

    @property
    def has_gained_nothing(self) -> bool:
        """Whether its own run is that long, and ends no lower than about a constant's loss."""
        return self.is_long and self.own is not None and self.own.loss > NO_GAIN * (self.constant or math.inf)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The runs at all rates, from the lowest to the highest."""
        own = () if self.own is None else (self.own,)
        return tuple(sorted((*own, *self.others), key=lambda attempt: attempt.factor))

    @property
    def is_predictable(self) -> bool:
        """Whether a probe of the data is known to predict the targets far better than chance."""
        relation = self.relation or self.token_relation
        return relation is not None and relation.best > BEYOND_CHANCE

    def had_learned(self, attempt: Attempt) -> bool:
        """Whether the losses of a run were a tenth lower for a few steps than before it, wherever it ended."""
        losses = attempt.run.losses
        means = [fmean(losses[k : k + SMOOTHED]) for k in range(len(losses) - SMOOTHED + 1)]
        return min(means, default=math.inf) < LEARNED * self.loss

    @property
    def is_out_of_hand(self) -> bool:
        """Whether the run at its own rate diverges, or ends twice as high as it began."""
        own = self.own
        return own is not None and (own.run.diverged_at is not None or not own.loss < OUT_OF_HAND * abs(self.loss))

    @property
    def spike(self) -> float:
        """Highest loss of its own run over that at the start; infinity if it diverged."""
        if self.own is None:
            return 1.0
        if self.own.run.diverged_at is not None:
            return math.inf
        return max(self.own.run.losses, default=0.0) / max(abs(max(self.before)), abs(self.constant or 0.0), 1e-12)
