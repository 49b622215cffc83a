"""sorted-batches: batches of one class each.

Wrong:
    loader = DataLoader(dataset, batch_size=64)  # of data sorted by label
Right:
    loader = DataLoader(dataset, batch_size=64, shuffle=True)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition
from wellcond.results import number

BATCH = Condition("examples in a batch", 8, origin="8 examples are of one class out of two once in 128 batches")
EXAMPLES = Condition(
    "examples", 16, origin="two batches of 8 are of one class each, and not of the same, once in 32,768 times"
)
PURITY = Condition(
    "share of the commonest label in a batch, the mean over batches", 0.8,
    origin="of ten classes a shuffled batch of 32 has 0.2; sorted ones have 1 but for those across a boundary",
)  # fmt: skip
GROUPING = Condition(
    "χ² of labels by batches, in standard deviations", 8.0,
    origin="a shuffle gives less than 5 once in a million times, also where one class is rare and most batches lack it",
)  # fmt: skip


@rule("sorted-batches")
def sorted_batches(evidence: Evidence) -> Iterator[Finding]:
    """Batches of few labels, while other batches have others: the data are sorted and not shuffled.

    Severe if four fifths of a batch have one label, in the mean, and a shuffle would not give such batches (χ² of
    labels by batches is 8 standard deviations above its mean); so some batches may lie across a boundary. Severe too if
    labels never fall, or never rise, from the first batch to the last; a warning if numbers do not. Batches must hold
    at least 8 examples. Lengths are no labels: batches of sequences of one length are made on purpose. No more than a
    warning for whole numbers in the batch of a training step, which may be tasks or places that take turns.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.batch_size < BATCH.at:
        return
    for fact in (*inspection.targets, *inspection.labels_of_step):
        if (
            fact.examples < max(EXAMPLES.at, inspection.batch_size + 1)
            or not fact.low < fact.high
            or fact.may_be_lengths
        ):
            continue
        is_grouped = fact.grouping > GROUPING.at
        is_pure = fact.purity > PURITY.at and (fact.is_same_within_batches or is_grouped)
        is_ordered = fact.is_ordered and (is_grouped if fact.is_index else not fact.is_binary)
        if not is_pure and not is_ordered:
            continue
        numbers = {"batch size": float(inspection.batch_size), "lowest label": fact.low, "highest label": fact.high}
        numbers |= {"share of the commonest label in a batch": fact.purity} if is_pure else {}
        yield Finding(
            rule="sorted-batches",
            severity="severe" if fact.is_index and inspection.targets else "warning",
            basis="proven",
            summary=(
                f"every batch of {inspection.batch_size} has labels of one class only, and other batches have others."
                if fact.is_same_within_batches
                else f"{fact.purity:.0%} of a batch of {inspection.batch_size} have one label, and other batches have "
                "another: the data are sorted by it."
            )
            if is_pure
            else f"the {fact.name} go from {number(fact.low)} to {number(fact.high)} in order over {fact.examples} "
            "examples: the data are sorted by them.",
            evidence=dict(numbers),
            reason="Every step then unlearns the other classes: the gradient of a batch does not estimate that of "
            "all data.",
            remedy=_shuffled(evidence.problem.loader),
        )


def _shuffled(loader: Any) -> str:
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or loader.batch_size is None:
        return "# shuffle the examples before they are put into batches"
    return """\
loader = torch.utils.data.DataLoader(
    loader.dataset, loader.batch_size, shuffle=True, num_workers=loader.num_workers, collate_fn=loader.collate_fn,
    pin_memory=loader.pin_memory, drop_last=loader.drop_last,
)"""
