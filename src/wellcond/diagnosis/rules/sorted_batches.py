"""sorted-batches: batches of one class each.

Wrong: `DataLoader(dataset, 64)` on data sorted by label. Right: `DataLoader(dataset, 64, shuffle=True)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition

BATCH = Condition("examples in a batch", 8, origin="8 examples are of one class out of two once in 128 batches")
BATCHES = Condition(
    "batches", 2, origin="two batches of 8 are of one class each, and not of the same, once in 32,768 times"
)


@rule("sorted-batches")
def sorted_batches(evidence: Evidence) -> Iterator[Finding]:
    """Batches in which all labels are the same, while other batches have others: the data are sorted and not shuffled.

    Batches must hold at least 8 examples, of which at least two batches are read.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.batch_size < BATCH.at:
        return
    if inspection.examples < BATCHES.at * inspection.batch_size:
        return
    for fact in inspection.targets:
        if fact.is_index and fact.is_same_within_batches and fact.low < fact.high:
            yield Finding(
                rule="sorted-batches",
                severity="severe",
                basis="proven",
                summary=f"every batch of {inspection.batch_size} has labels of one class only, and other batches have "
                "others.",
                evidence={
                    "batch size": float(inspection.batch_size),
                    "lowest label": fact.low,
                    "highest label": fact.high,
                },
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
