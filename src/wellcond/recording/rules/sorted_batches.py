"""sorted-batches: batches of one class each, where they were mixed before.

Wrong:
    loader = DataLoader(dataset, batch_size=64)  # of the second phase, without shuffle=True
Right:
    loader = DataLoader(dataset, batch_size=64, shuffle=True)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition
from wellcond.recording.judging.levels import began, finite, median, mostly_since
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.shares import severity_of
from wellcond.results.quantities import BATCH_PURITY, COMMONEST_LABEL

PURE = Condition(
    "share of the commonest label in a batch, the median over batches", 0.95,
    origin="sorted batches have 1, but for those across a boundary",
)  # fmt: skip
MIXED = Condition(
    "the same before", 0.75, origin="of two classes a shuffled batch of 8 has 0.64, more classes and examples less"
)
BETWEEN = Condition("share that tells batches apart", 0.85, origin="halfway between both")
ENOUGH = Condition("batches that are looked at, before and since", 4, origin="their median is not that of one")
CLASSES = Condition("classes that batches have had since", 2, origin="examples of one class alone are not sorted")


@run_rule("sorted-batches", quantity=BATCH_PURITY)
def sorted_batches(evidence: RunEvidence) -> Iterator[Finding]:
    """Batches with labels of one class each, now of one class and now of another, where they were mixed before.

    Every 32nd batch is looked at. Severe if the loss has lost a third of what was learned; otherwise a warning.
    Batches that are pure from the start, as those of a critic, or that hold a rare class, are not reported, nor those
    of a single class.
    """
    shares = finite(evidence.history.series(BATCH_PURITY))
    start = mostly_since(shares.values > BETWEEN.at)
    before, since = shares.values[:start], shares.values[start:]
    if min(len(before), len(since)) < ENOUGH.at or median(since) < PURE.at or median(before) > MIXED.at:
        return
    labels = finite(evidence.history.series(COMMONEST_LABEL)).since(int(shares.steps[start]))
    classes = len(np.unique(labels.values))
    if classes < CLASSES.at:
        return
    begin = began(shares, start)
    yield Finding(
        rule="sorted-batches",
        severity=severity_of(evidence, is_far=True),
        basis="measured",
        summary=f"since step {begin} {median(since):.0%} of a batch have one label, now one and now another; before "
        f"that {median(before):.0%} had: the data are sorted by it.",
        evidence={"share of the commonest label": median(since), "share before": median(before)},
        limits={"pure": PURE.at},
        reason="Every step then unlearns the other classes: the gradient of a batch does not estimate that of all "
        "data.",
        remedy=f"# shuffle the examples of the loader or sampler that is in use from step {begin} on",
        step=begin,
    )
