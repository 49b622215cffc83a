"""term-dominates: a term of the loss that keeps another from being learned.

Wrong:
    loss = F.mse_loss(x_hat, x) + kl.sum()  # a mean and a sum
Right:
    loss = F.mse_loss(x_hat, x) + kl.sum() / x.numel()
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.data import is_badly_scaled
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.loss_not_decreasing import NOT_APART, without_learning
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_parts import PLATEAU_STEPS
from wellcond.results import number
from wellcond.results.quantities import TRAINING_LOSS

ALONE = Threshold(
    "the term after a run of its own / after the run with all terms", math.nan, 0.75, bad="below",
    origin="a quarter is beyond the noise between two seeds",
)  # fmt: skip
FAR = Condition(
    "the same, also if a run on eight examples learns these", 0.2,
    origin="0.04 to 0.1 next to a divergence that is summed; with this limit none of 1,013 sound set-ups is reported",
)  # fmt: skip

OWN_PAIRS = Condition(
    "(loss with the outputs of other examples − loss) / the larger", 0.5, origin="0.1 to 1 in healthy networks"
)
PULL = Threshold(
    "gradient of a term / that of another, in the parameters that they share", 1e3, 4e3,
    origin="the other needs a thousand steps for what the one does in one, as in weight-domination, or a whole run",
)  # fmt: skip
LARGE = Condition(
    "value of the term with the larger gradient",
    100.0,
    origin="the squared error of targets of RMS 10, from which on they are unscaled; a penalty may be small on purpose",
)


@rule("term-dominates", quantity=TRAINING_LOSS)
def term_dominates(evidence: Evidence) -> Iterator[Finding]:
    """A term of the loss that falls to nothing, or is far larger, while another stands still that falls alone.

    A divergence that is summed where the error is a mean, or a penalty with too large a factor: the best answer to it
    is one that does not depend on the inputs. The other terms have fallen to a hundredth, this one falls by less than 3
    % when the run goes on for half its length, and after a run of the same length without the others it is at 0.75 or
    less. Severe. A warning if it still falls, but outputs may as well be another example's; or if 160 steps of Adam
    with all terms tell eight examples apart: the run may only be slow to leave what satisfies the others, unless it
    would be at a fifth or less without them. Not reported if both are so, and not if the network's own run tells
    examples apart all the same: other examples' outputs would double the loss. Where one of the others is 100 or more
    at the start and 50 times as large as this one, it need not have fallen to nothing, and what it has learned of
    examples does not count.
    """
    trial = evidence.trial
    swamped = None if trial is None else trial.swamped
    if swamped is None or swamped.are_of_weights or not ALONE.is_severe(swamped.alone / swamped.together):
        return
    paired = None if trial is None or trial.own is None else trial.own.paired
    if paired is not None and paired.gain > OWN_PAIRS.at and not swamped.is_outweighed:
        return
    if swamped.is_outweighed and evidence.inspection and any(map(is_badly_scaled, evidence.inspection.inputs)):
        return  # what is to be given back is as large as these
    is_slow = trial is not None and trial.few is not None and trial.few.tells_apart
    is_slow = is_slow and not swamped.is_outweighed and swamped.alone > FAR.at * swamped.together
    if is_slow and swamped.still_falls:
        return
    yield Finding(
        rule="term-dominates",
        severity="warning" if is_slow or swamped.still_falls else "severe",
        basis="tried",
        summary=f"a term of the loss {'ends' if swamped.still_falls else 'stays'} at {number(swamped.together)} while "
        f"the others fall from {number(swamped.others_before)} to {number(swamped.others_after)}; without them it "
        f"falls from {number(swamped.before)} to {number(swamped.alone)} in the same number of steps.",
        evidence={
            "term before": swamped.before,
            "term with the others": swamped.together,
            "term alone": swamped.alone,
            "others before": swamped.others_before,
            "others after": swamped.others_after,
        },
        limits=ALONE.limits(swamped.together),
        reason="Steps follow the sum: a term whose gradient is far larger than another's is satisfied first, and what "
        "satisfies it may leave nothing for the other to learn from. A posterior that equals the prior is an example.",
        remedy="# make every term a mean over the same numbers, or give the term that falls to nothing a factor far "
        "below 1, which may grow during training",
    )


@rule("term-dominates", quantity=TRAINING_LOSS)
def hides_the_examples(evidence: Evidence) -> Iterator[Finding]:
    """Terms of the loss under which nothing is learned of the examples, although the largest term alone learns of them.

    Outputs may as well be another example's after the network's own run, and after 160 steps of Adam on eight examples
    (loss-not-decreasing); with the largest term alone they differ by then, by 15 % of the loss or more. Severe. A
    variational autoencoder whose code is all noise at first, and which is only slow to leave that, tells eight
    examples apart by then.
    """
    trial = evidence.trial
    runs = None if trial is None else without_learning(trial)
    alone = None if runs is None else runs[1].alone
    if trial is None or runs is None or alone is None or NOT_APART.is_severe(alone.gain):
        return
    if trial.swamped is not None and trial.swamped.are_of_weights:
        return  # weight-decay-dominates reports a penalty of the weights
    *_, of_few = runs
    yield Finding(
        rule="term-dominates",
        severity="severe",
        basis="tried",
        summary=f"with all terms of the loss, {PLATEAU_STEPS} steps of Adam do not tell a handful of examples "
        f"apart (the loss is {number(of_few.loss)}, and {number(of_few.of_others)} with the outputs of others); with "
        f"the largest term alone they do ({number(alone.loss)} and {number(alone.of_others)}).",
        evidence={"gain with all terms": of_few.gain, "gain with the largest term alone": alone.gain},
        limits=NOT_APART.limits(),
        reason="Steps follow the sum: a term whose gradient is far larger than another's is satisfied first, and what "
        "satisfies it may leave nothing for the other to learn from. A posterior that equals the prior is an example.",
        remedy="# make every term a mean over the same numbers, or give the terms next to the largest one a factor far "
        "below 1, which may grow during training",
    )


@rule("term-dominates", quantity=TRAINING_LOSS)
def bonus_dominates(evidence: Evidence) -> Iterator[Finding]:
    """A bonus of the outputs alone, as of their entropy, that keeps a term from falling which falls without it.

    It is ten times as large as all other terms, as large after the network's own run as before, and does not depend on
    which example outputs belong to. The largest term that does falls clearly in a run of the same length without the
    others, on each of several batches. Severe.
    """
    bonus = None if evidence.trial is None else evidence.trial.bonus
    if bonus is None:
        return
    yield Finding(
        rule="term-dominates",
        severity="severe",
        basis="tried",
        summary=f"a term of the loss that depends on the outputs alone is {number(bonus.before)}, and "
        f"{number(bonus.after)} after a run; another goes from {number(bonus.term)} to {number(bonus.together)} with "
        f"it and to {number(bonus.alone)} without it, in the same number of steps.",
        evidence={
            "bonus before": bonus.before,
            "bonus after": bonus.after,
            "term before": bonus.term,
            "term with all": bonus.together,
            "term alone": bonus.alone,
        },
        reason="Steps follow the sum. A bonus that has its best value from the start, as the entropy of even odds, "
        "holds the outputs there.",
        remedy="# give the bonus a factor that makes it a tenth of the other terms or less: 0.01 is usual for entropy",
    )


@rule("term-dominates", quantity=TRAINING_LOSS)
def pulls_harder(evidence: Evidence) -> Iterator[Finding]:
    """A term of 100 or more whose gradient is a thousand times that of another, in the parameters that both train.

    An error of numbers in thousands next to a cross-entropy, say: what the two share is trained for the one alone. A
    warning; severe from four thousand times on, or if the trial does not show that the network trains. A penalty that
    is small on purpose has no such large term next to it; and the error of inputs that are too large is that of
    unscaled-input.
    """
    terms = None if evidence.behavior is None else evidence.behavior.uneven_terms
    if terms is None or not PULL.is_warning(terms.ratio) or not terms.largest > LARGE.at:
        return
    if evidence.inspection is not None and any(map(is_badly_scaled, evidence.inspection.inputs)):
        return  # what is to be given back is as large as these
    is_untrained = evidence.trial is not None and not evidence.trial.trains
    yield Finding(
        rule="term-dominates",
        severity="severe" if PULL.is_severe(terms.ratio) or is_untrained else "warning",
        basis="measured",
        summary=f"a term of the loss is {number(terms.largest)}, another {number(terms.smallest)}, and its gradient is "
        f"{number(terms.ratio)} times the other's in the parameters that they share.",
        evidence={"larger term": terms.largest, "smaller term": terms.smallest, "ratio of gradients": terms.ratio},
        reason="Steps follow the sum: of the smaller term they see next to nothing, and Adam divides by the size of "
        "the larger one.",
        remedy="# scale what the larger term compares to a standard deviation of 1 (targets, returns, boxes), or give "
        "the term a factor that makes both gradients alike",
    )
