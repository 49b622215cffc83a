"""padding-in-loss: padded places that count in the loss.

Wrong:
    criterion = nn.CrossEntropyLoss()  # on targets padded with 0
Right:
    criterion = nn.CrossEntropyLoss(ignore_index=0)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.probes.padding import Padding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Threshold
from wellcond.results import number

SHARE = Threshold(
    "share of padded places in what counts", 0.1, 0.5,
    origin="below a tenth it moves the loss by as little; from a half on the answer that lowers it most is the padding",
)  # fmt: skip
SHARE_OF_NUMBERS = Threshold(
    "the same, for targets that are numbers", 0.5, math.nan, origin="zeros that are zeros may be meant"
)
OF_ABRUPT_ENDS = Threshold(
    "the same, for numbers that end far from what fills the rest", 0.25, math.nan,
    origin="a constant that fits such targets is a quarter of the way to the padding",
)  # fmt: skip
HIDDEN = Threshold(
    "share of targets that a mask hides", 0.25, 0.5,
    origin="a constant that fits such targets is a quarter of the way to zero, or half of it",
)  # fmt: skip


MARKED = Threshold(
    "share of targets that are marked", 0.1, math.nan, origin="below a tenth it moves the answers by as little"
)


@rule("padding-in-loss")
def padding_in_loss(evidence: Evidence) -> Iterator[Finding]:
    """Padded places, with one target for all of them, that the loss depends on.

    A warning if they are a tenth of what counts, severe from a half on; of numbers a warning from a half on, or
    from a quarter on where they vary and end abruptly. Padding is
    what fills the ends of sequences of different lengths and occurs nowhere else, or what a mask or lengths in the
    batch say to be padding. An `ignore_index`, or weights of zero, are sound.
    """
    padding = None if evidence.behavior is None else evidence.behavior.padding
    if padding is None:
        return
    of_numbers = OF_ABRUPT_ENDS if padding.is_abrupt else SHARE_OF_NUMBERS
    threshold = of_numbers if padding.label is None else SHARE
    if not threshold.is_warning(padding.in_loss):
        return
    yield Finding(
        rule="padding-in-loss",
        severity="severe" if threshold.is_severe(padding.in_loss) else "warning",
        basis="proven",
        summary=f"{padding.in_loss:.0%} of what the loss is a mean over are padded places"
        + (f", with the target {padding.label}." if padding.label is not None else "."),
        evidence={"share in the loss": padding.in_loss, "share of padding": padding.share},
        limits=threshold.limits(),
        reason="Padding is easy to predict: it lowers the loss and outweighs what is to be learned, the more so the "
        "longer the longest sequence of a batch is.",
        remedy=_remedy(evidence.problem.loss, padding),
    )


@rule("padding-in-loss")
def unmeasured_targets(evidence: Evidence) -> Iterator[Finding]:
    """Targets of zero that count in the loss, although a mask next to them says that they are not there.

    A mask of zeros and ones has the shape of the targets, which are zero where it is, and nowhere else; the loss does
    not depend on it. A warning from a quarter of the targets on, severe from a half on if the trial learns nothing at
    any rate: a flag of what is not zero may stand there for something else.
    """
    share = None if evidence.behavior is None else evidence.behavior.unmeasured
    if share is None or not HIDDEN.is_warning(share):
        return
    is_lost = evidence.trial is not None and evidence.trial.learns_nothing
    yield Finding(
        rule="padding-in-loss",
        severity="severe" if HIDDEN.is_severe(share) and is_lost else "warning",
        basis="proven",
        summary=f"{share:.0%} of the targets are zeros that a mask next to them hides, and the loss counts them: it "
        "does not depend on the mask.",
        evidence={"share of hidden targets": share},
        limits=HIDDEN.limits(),
        reason="What was not measured is learned as zero, and pulls the answers for what was.",
        remedy="# multiply the loss of each target by the mask: (error * mask).sum() / mask.sum()",
    )


@rule("padding-in-loss")
def marked_targets(evidence: Evidence) -> Iterator[Finding]:
    """Targets that are marked as missing, by a number such as -1 or -999, and count in the loss as that number.

    The others are many different numbers, all on one side of it, half of their standard deviation away at least. A
    warning from a tenth of the targets on. Zero is no such number.
    """
    marked = None if evidence.behavior is None else evidence.behavior.marked
    if marked is None or not MARKED.is_warning(marked.share):
        return
    yield Finding(
        rule="padding-in-loss",
        severity="warning",
        basis="proven",
        summary=f"{marked.share:.0%} of the targets are {number(marked.number)}, far from all others, and count in the "
        "loss: it looks like a mark for what is missing.",
        evidence={"number": marked.number, "share of the targets": marked.share},
        limits=MARKED.limits(),
        reason="A mark is learned like any other target, and pulls the answers for what was measured towards it.",
        remedy=f"# leave these out of the loss: is_there = targets != {marked.number:g}, and then "
        "(error * is_there).sum() / is_there.sum()",
    )


def _remedy(loss: object, padding: Padding) -> str:
    if type(loss) is nn.CrossEntropyLoss and padding.label is not None and padding.is_free:
        return f"loss = nn.CrossEntropyLoss(ignore_index={padding.label})"
    if padding.label is not None:
        return (
            "# set the targets of padded places to -100, which cross_entropy ignores, or multiply each loss by the mask"
        )
    return "# multiply the loss of each place by the mask, and divide the sum by the number of real places"
