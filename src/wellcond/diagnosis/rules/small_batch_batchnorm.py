"""small-batch-batchnorm: BatchNorm over a handful of examples.

Wrong:
    loader = DataLoader(dataset, batch_size=2)
    norm = nn.BatchNorm2d(64)
Right:
    loader = DataLoader(dataset, batch_size=2)
    norm = nn.GroupNorm(8, 64)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import and_more, batchnorms
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Threshold

BATCH = Threshold(
    "values of a unit in a batch", 4, 2, bad="below",
    origin="the variance of n values is known to √(2/(n−1)): to 80 % for four, to 140 % for two, not at all for one; "
    "lange2022, figures 4 and 5: BN does not train with batches of one",
)  # fmt: skip


@rule("small-batch-batchnorm")
def small_batch(evidence: Evidence) -> Iterator[Finding]:
    """BatchNorm over at most four examples.

    The variance of n values is known to √(2/(n−1)). Severe for one example, whose statistics are its own: training
    normalizes every example by itself and evaluation by others (lange2022, figures 4 and 5: BN does not train there);
    and where a unit has two values in a batch, or in a part of it that a step passes by itself, which a norm turns into
    −1 and 1: all but their order is lost.
    """
    inspection = evidence.inspection
    couples = evidence.problem.couples_examples
    norms = [name for name, m in batchnorms(evidence.problem.model).items() if m.training or couples]
    if inspection is None or not inspection.batch_size or not norms:
        return
    per_batch = inspection.batch_size / inspection.examples
    values = min(
        (s.rows * per_batch / s.calls for s in inspection.signals if s.name in norms and s.calls),
        default=float(inspection.batch_size),
    )
    # a step may give the model parts of a batch one after the other
    size = min(inspection.batch_size, math.ceil(values)) if values <= BATCH.severe else inspection.batch_size
    if size > BATCH.warn:
        return
    if size > 1 and inspection.examples <= size:
        return  # one small batch, passed for inspection, need not be like those of the training
    error = "" if size == 1 else f", so that a variance is known to {100 * (2 / (size - 1)) ** 0.5:.0f} %"
    if size == 2 and values <= size:
        error = ": it turns two values into −1 and 1, whatever they are"
    yield Finding(
        rule="small-batch-batchnorm",
        layer=norms[0],
        severity="severe" if size == 1 or values <= BATCH.severe else "warning",
        basis="proven",
        summary=f"BatchNorm ({norms[0]}{and_more(len(norms))}) sees batches of {size}{error}.",
        evidence={"batch size": float(size), "values of a unit": values, "norms": float(len(norms))},
        reason="The noise of the statistics, √(2/(n−1)) of the variance, is noise in every activation, and evaluation "
        "uses other statistics (lange2022, figures 4 and 5).",
        treatment="group-norm",
    )
