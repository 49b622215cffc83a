"""rank-collapse: outputs that become the same for all examples, and a loss that falls with that.

Wrong:
    loss = nn.functional.mse_loss(embed(view), embed(other_view))  # lowest where all are one point
Right:
    loss = nn.functional.mse_loss(embed(view), embed(other_view)) + spread_penalty(embed(view))
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.judging.layer_changes import around
from wellcond.recording.judging.levels import began, finite, last_before, median, smooth
from wellcond.recording.judging.rises import has_fallen
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.validation_rise import validation_rise
from wellcond.results import number
from wellcond.results.quantities import OUTPUT_SPREAD
from wellcond.results.text import named

SPREAD = Threshold(
    "spread of the outputs over examples / before", 0.05, float("nan"), bad="below",
    origin="theory: outputs that fit targets have their spread; that of batches of 8 differs by a third",
)  # fmt: skip
STOOD = Condition(
    "loss halfway until then / loss then", 1.5, origin="outputs that were too large shrink as the loss falls"
)
SHOWN = Condition(
    "spread / before, where validation gets worse with it", 0.25,
    origin="outputs that only fit the training examples have the spread of their targets",
)  # fmt: skip
FALL_SHOWN = Condition("loss / loss before, there", 0.5, origin="the examples that were learned have become easier")
ENOUGH = Condition("samples", 3, origin="one before and two since; the loss, which is always known, shows when")
BEGINS = 0.5
"""Share of the spread before, below which it has begun to shrink."""
SETTLED = Condition("steps", 100, origin="outputs of another size than the targets shrink or grow at first")
FALL = Condition(
    "loss / loss before", 0.1, origin="outputs that say nothing of their inputs do not fit targets any better"
)


@run_rule("rank-collapse", quantity=OUTPUT_SPREAD)
def rank_collapse(evidence: RunEvidence) -> Iterator[Finding]:
    """The outputs of the last layer differ 20 times less between examples than before, and the loss fell tenfold.

    A warning. Before, the loss must have fallen by a fifth since the start, and then stood: outputs that were too large
    at first shrink too. Where the validation loss rises since then, four times less and half of the loss are enough,
    and the loss need not have stood. The first 100 steps are not judged.
    """
    rise = validation_rise(evidence)
    for layer in evidence.history.layers(OUTPUT_SPREAD):
        spreads = finite(evidence.history.series(OUTPUT_SPREAD, layer)).since(int(SETTLED.at))
        if len(spreads) < ENOUGH.at:
            continue
        highest, now = float(smooth(spreads.values, 3).max()), float(spreads.values[-2:].max())
        start = last_before(spreads.values < BEGINS * highest)
        before = spreads.values[:start]
        is_shown = (
            rise is not None and start < len(spreads) and abs(rise.step - began(spreads, start)) <= around(rise.step)
        )
        if not start or not highest > 0 or not now / highest < (SHOWN.at if is_shown else SPREAD.warn):
            continue
        last = int(spreads.steps[start - 1])
        halfway, first, level = evidence.loss.level_at(last // 2), evidence.loss.level_at(last), evidence.loss.level()
        had_settled = has_fallen(evidence.loss.start, first) and (is_shown or halfway < STOOD.at * first)
        if not had_settled or not 0 < level < (FALL_SHOWN.at if is_shown else FALL.at) * first:
            continue
        begin = began(spreads, start)
        yield Finding(
            rule="rank-collapse",
            layer=layer,
            severity="warning",
            basis="measured",
            summary=f"since step {begin} the outputs of {named(layer)} become the same for all examples: they differ "
            f"by {number(now)}, before by {number(median(before))}. The loss falls with that, from {number(first)} to "
            f"{number(level)}.",
            evidence={"spread": now, "spread before": median(before), "loss before": first, "loss now": level},
            limits={"warning": SPREAD.warn * median(before)},
            reason="A loss that is lowest where all examples are one point is not the one that is meant: nothing keeps "
            "examples apart.",
            remedy=f"# look at what changes around step {begin}: weights of the loss's terms, negatives, targets",
            step=begin,
        )
