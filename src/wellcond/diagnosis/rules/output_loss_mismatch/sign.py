"""Losses that do not see the sign of the outputs, or reward wrong ones."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.data import is_badly_scaled
from wellcond.diagnosis.reading import outputs_of
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.loss_not_decreasing import without_learning
from wellcond.diagnosis.rules.output_loss_mismatch.mismatch import is_flattened_apart, mismatch, seen_by_loss
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.remedies.loss_code import wrapped_loss
from wellcond.results import number

REWARD = Threshold(
    "(loss of perfect outputs − that of the best constant) / that of the best constant", math.nan, 0.1,
    origin="perfect outputs have the lowest loss of all",
)  # fmt: skip
SOME_NATS = Condition(
    "nats", 0.3, origin="what confident logits may cost beyond the best constant if labels hardly vary"
)

GOES_ON = Condition(
    "fall of the loss in the last quarter of a run on a handful / fall in the quarter before", 0.5,
    origin="1 or more where it falls for ever; an approach to a lowest value has less in every quarter",
)  # fmt: skip

FAR = Condition(
    "fall of the loss of a handful / loss", 0.5, origin="what comes to rest near where it began has found its lowest"
)
NEGATIVE = Condition(
    "share of outputs, or targets, below zero", 0.05, origin="one in twenty is no rounding, and no exception"
)

AVOIDED = Threshold(
    "correlation of rewards with the slope of the loss in the log-probabilities of actions", 0.9, math.nan,
    origin="-1 to -0.93 in 46 steps of tests/examination with the right sign, whatever their baselines and bonuses; 1 "
    "in the four without the minus",
)  # fmt: skip


@rule("output-loss-mismatch")
def ignores_sign(evidence: Evidence) -> Iterator[Finding]:
    """A loss that stays the same if outputs change their sign, or does not depend on those below zero.

    It takes |f|, f² or a ReLU of the outputs. Severe if targets that are numbers are below zero, and for a loss that
    does not see the outputs below zero which the model has.
    """
    if (known := seen_by_loss(evidence)) is None or not known[2].is_by_example or known[2].ignores_targets:
        return
    inspection, output, sight = known
    targets, outputs = inspection.targets, inspection.outputs
    is_compared = len(targets) == 1 and not targets[0].is_index and output.shape == output.target_shape
    if sight.is_even and is_compared and output.low_target < -NEGATIVE.at * output.high_target < 0:
        yield mismatch(
            inspection,
            output,
            f"the loss is the same if all outputs change their sign, but targets go from {number(output.low_target)} "
            f"to {number(output.high_target)}.",
            "The absolute value or the square of an output never comes near a negative target.",
            "# compare the outputs themselves with the targets, without abs() or a square",
            layer="",
        )
    elif sight.ignores_negative and len(outputs) == 1 and output.low < -NEGATIVE.at * abs(output.high):
        yield mismatch(
            inspection,
            output,
            f"the loss does not depend on outputs below zero, and the model's go from {number(output.low)} to "
            f"{number(output.high)}.",
            "A ReLU or a clamp inside the loss has no gradient there: what is below zero stays there.",
            "# leave out the ReLU or the clamp of the outputs inside the loss",
            layer="",
        )


@rule("output-loss-mismatch")
def rewards_errors(evidence: Evidence) -> Iterator[Finding]:
    """A loss that is larger for perfect outputs than for a constant: its sign is wrong.

    It falls for ever, or below zero, where a loss of distances, whose right class has the lowest output, does not. One
    that has another reason to be large for perfect outputs is not reported here.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output = both
    sight = None if evidence.behavior is None else evidence.behavior.sight
    if sight is not None and (sight.is_even or sight.is_crossed or sight.ignores_targets or sight.least >= 0):
        return
    perfect, constant = output.perfect_loss, output.uninformed_loss
    if perfect is None or constant is None or output.reshaped_loss is not None or is_flattened_apart(output):
        return
    if len(inspection.targets) > 1:  # advantages or other weights below zero reward what is wrong on purpose
        return
    if output.loss_kind not in ("cross-entropy", "bce-logits", "squared"):  # perfect outputs of others are not known
        return
    margin = REWARD.severe * abs(constant) + (1e-6 if output.loss_kind == "squared" else SOME_NATS.at)
    if perfect > constant + margin:
        yield mismatch(
            inspection,
            output,
            f"the loss of perfect outputs, {number(perfect)}, exceeds that of the best constant, {number(constant)}.",
            "Minimizing it makes the outputs worse: is there a minus sign too many, or one missing?",
            wrapped_loss("reward", "-reward(outputs, targets)"),
            layer="",
            loss_of_right_outputs=perfect,
        )


@rule("output-loss-mismatch")
def minimized_score(evidence: Evidence) -> Iterator[Finding]:
    """A bounded loss that is lower for outputs on the wrong side of binary targets: a score such as a dice or an IoU.

    Outputs that are never below zero, and have no bound above as probabilities do, may be distances, which are small
    for what belongs together: they are not judged.
    """
    if (known := seen_by_loss(evidence)) is None or not known[2].rewards_wrong:
        return
    reach = None if evidence.behavior is None else evidence.behavior.reach
    if reach is not None and reach.low >= 0 and not reach.high <= 1:
        return
    inspection, output, _ = known
    yield mismatch(
        inspection,
        output,
        "the loss is lowest for outputs that are all on the wrong side of the targets, and highest for the right ones.",
        "Minimizing a score, such as a dice or an overlap, makes the outputs worse: its complement is the loss.",
        wrapped_loss("score", "1 - score(outputs, targets)"),
        layer="",
    )


@rule("output-loss-mismatch")
def upside_down(evidence: Evidence) -> Iterator[Finding]:
    """A loss that falls without a bound, ever faster, while steps up its gradient come to rest: its sign is wrong.

    Shown by Adam on a handful of examples, down and up for the same number of steps: the loss falls below -10, and five
    times as far as it rises. A loss without any bound, like that of a critic or a policy, goes equally far both ways.
    What another network with weights makes of the outputs has no bound either, and is not judged.
    """
    few = None if evidence.trial is None else evidence.trial.few
    if few is None or not few.is_upside_down or few.uphill is None or any(True for _ in rewards_errors(evidence)):
        return
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="tried",
        summary=f"the loss of a handful of examples falls without a bound, from {number(few.before)} to "
        f"{number(few.after)} in {len(few.run.losses)} steps; up the gradient it ends at {number(few.uphill)}.",
        evidence={"loss before": few.before, "loss after": few.after, "loss after steps uphill": few.uphill},
        reason="A loss is least for the best fit, and for a worse one as large as you like; here it is the other way "
        "round: a likelihood or a score is minimized in place of its negative.",
        remedy="# change the sign of the loss, or of its term that is a likelihood or a score",
    )


@rule("output-loss-mismatch")
def pays_for_any_answer(evidence: Evidence) -> Iterator[Finding]:
    """A loss that falls below zero without a bound, whatever the answer: a term of it has the wrong sign.

    After the network's own run, and after one on a handful of examples, outputs may as well be another example's
    (loss-not-decreasing), and yet both losses are below zero, and that of the handful still falls in the last quarter
    of its run at least half as far as in the one before. A likelihood falls below zero too, but for the right answers
    only. Not judged where inputs are badly scaled, which may be what is to be given back.
    """
    trial = evidence.trial
    if trial is None or (runs := without_learning(trial)) is None:
        return
    if evidence.inspection is not None and any(map(is_badly_scaled, evidence.inspection.inputs)):
        return
    own, few, _, _ = runs
    losses = few.run.losses
    middle, late = (losses[len(losses) * quarter // 4] for quarter in (2, 3))
    goes_on = late - losses[-1] > GOES_ON.at * max(middle - late, 0.0)
    falls_far = few.before - few.after > FAR.at * abs(few.before)
    if not goes_on or not falls_far or max(own.loss, few.after) >= 0 or few.is_upside_down:
        return
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="tried",
        summary=f"the loss falls without a bound, to {number(own.loss)} in {len(own.run.losses)} steps, and for a "
        f"handful of examples from {number(few.before)} to {number(few.after)}, but outputs may as well be another "
        "example's.",
        evidence={"loss before": trial.loss, "loss after": own.loss, "handful, loss after": few.after},
        reason="A term that may be as low as you like, whatever the error, has the wrong sign: a log variance without "
        "a division of the error by the variance, or a divergence or an entropy that is subtracted.",
        remedy="# look for the term that falls below zero: (y - mean)**2 * exp(-log_var) + log_var, and + for a KL",
    )


@rule("output-loss-mismatch")
def avoids_rewards(evidence: Evidence) -> Iterator[Finding]:
    """A policy whose step makes actions less likely the more they are rewarded.

    A reward is a variable, or an entry of the batch, that the script calls reward, advantage, return, payoff, gain or
    profit, or where drawn actions equal what the batch holds. The slope of the loss in the log-probabilities of the
    actions, or in the probabilities of all, follows it (correlation 0.9 or more), and is above zero for the rewarded
    ones. A cost, a regret or a penalty
    is to be avoided, and an optimizer that maximizes climbs: neither is reported. A warning: a name may mislead, and
    what an action equals may be what it is to avoid.
    """
    odds = None if evidence.behavior is None else evidence.behavior.lowered_odds
    if odds is None or odds.slope <= 0 or not AVOIDED.is_warning(odds.correlation) or _climbs(evidence):
        return
    what = f"the higher `{odds.name}` is" if odds.name else "where they equal what the batch holds"
    yield Finding(
        rule="output-loss-mismatch",
        severity="warning",
        basis="measured",
        summary=f"a step makes actions less likely {what}: the slope of the loss in their probabilities correlates "
        f"with it by {number(odds.correlation)}.",
        evidence={"correlation": odds.correlation, "mean slope where it is high / mean size of slopes": odds.slope},
        limits=AVOIDED.limits(),
        reason="Training descends: a policy that is to be rewarded takes the negative of log-probability times reward. "
        "Without the minus it learns to avoid rewards.",
        remedy="# loss = -(dist.log_prob(action) * advantage).mean()",
    )


def _climbs(evidence: Evidence) -> bool:
    groups = [] if evidence.optimizer is None else evidence.optimizer.param_groups
    return any(group.get("maximize") for group in groups)
