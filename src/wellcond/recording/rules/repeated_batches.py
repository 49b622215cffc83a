"""repeated-batches: a loader that gives the same batches again and again.

Wrong:
    for step in range(1000):
        inputs, targets = next(iter(loader))  # starts the loader anew
Right:
    for epoch in range(10):
        for inputs, targets in loader:
            train_step(inputs, targets)
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.judging.levels import finite, last_before, median
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import REPEATED_BATCHES, VALIDATION_LOSS

IN_A_ROW = Threshold(
    "steps in a row whose batch was among the last ones", 16, float("nan"),
    origin="a shuffled epoch of few batches repeats a handful at its start",
)  # fmt: skip
START = Condition(
    "step until which repetition counts as from the start", 64,
    origin="full batches and small sets in a fixed order repeat from their second epoch on, on purpose",
)  # fmt: skip
APART = Condition("validation loss / training loss", 2.0, origin="what is learned holds for these batches only")


@run_rule("repeated-batches", quantity=REPEATED_BATCHES)
def repeated_batches(evidence: RunEvidence) -> Iterator[Finding]:
    """16 steps or more in a row whose batches were all among the last ones seen.

    A warning if that begins in the middle of a run. From the start on it is a note, since full batches repeat too, and
    a warning if the validation loss is twice the training loss.
    """
    counts = finite(evidence.history.series(REPEATED_BATCHES))
    if not len(counts) or not counts.values[-1] > IN_A_ROW.warn:
        return
    start = last_before(counts.values > 0)
    begin = int(counts.steps[start] - counts.values[start] + 1)
    validation = finite(evidence.history.series(VALIDATION_LOSS)).since(begin)
    is_apart = len(validation) > 2 and median(validation.values[-3:]) > APART.at * abs(evidence.loss.level())
    severity: Severity = "warning" if begin > START.at or is_apart else "note"
    yield Finding(
        rule="repeated-batches",
        severity=severity,
        basis="proven",
        summary=f"since step {begin} every batch is one that was just seen, {number(float(counts.values[-1]))} in a row"
        + ("." if begin > START.at else ": full batches, a small data set in a fixed order, or a loader that repeats."),
        evidence={"batches in a row": float(counts.values[-1])},
        limits=IN_A_ROW.limits(),
        reason="A network that sees a few batches learns those by heart, and nothing of the rest.",
        remedy="for inputs, targets in loader:  # not next(iter(loader)), which starts it anew\n    ...",
        step=max(1, begin),
    )
