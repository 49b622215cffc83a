"""constant-feature: inputs, or some of their features, that never vary.

Wrong:
    def __getitem__(self, index):
        return self.x[0], self.y[index]
Right:
    def __getitem__(self, index):
        return self.x[index], self.y[index]
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.data import TensorFacts
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold

SHARE = Threshold(
    "share of a table's features that never vary", 0.5, math.nan,
    origin="some constant columns are ordinary in one-hot tables; a third of MNIST's pixels never vary",
)  # fmt: skip
ENOUGH_EXAMPLES = Condition(
    "examples", 32, origin="a feature that differs in one example of ten is the same in all 32 in 3 % of all draws"
)
BATCH = Condition("examples in a batch", 8, origin="fewer may be copies of one example, as of a prompt, on purpose")

SHOWN = 5
"""Columns that a summary names."""


@rule("constant-feature")
def constant_feature(evidence: Evidence) -> Iterator[Finding]:
    """Inputs, or some of their features, that never vary.

    Severe if all examples are the same, or those of each batch of at least 8, as where a data set fills one buffer
    again and again. A warning if more than half of a table's features never vary over at least 32 examples, and a note
    if they are fewer, or always 0 while the trial learns something. Pixels that are always background, and categories
    that do not occur, are ordinary: up to half of the features may all be 0, or the lowest value of the table.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.examples < ENOUGH_EXAMPLES.at:
        return
    if inspection.inputs and all(_never_varies(fact) for fact in inspection.inputs):
        yield Finding(
            rule="constant-feature",
            severity="severe",
            basis="proven",
            summary=f"all {inspection.examples} examples have the same inputs, so that the best output is one "
            "constant.",
            evidence={"examples": float(inspection.examples)},
            reason="A network cannot distinguish inputs that do not differ.",
            remedy="# look at what the data set returns: every example has the same inputs",
        )
        return
    if inspection.batch_size >= BATCH.at and inspection.inputs and all(map(_is_one_row, inspection.inputs)):
        yield Finding(
            rule="constant-feature",
            severity="severe",
            basis="proven",
            summary=f"all {inspection.batch_size} examples of a batch have the same inputs, and other batches have "
            "others.",
            evidence={"batch size": float(inspection.batch_size)},
            reason="A network cannot distinguish inputs that do not differ. A buffer that is filled in place is filled "
            "for every example that was made of it.",
            remedy="# return a tensor of its own for every example: buffer.clone()",
        )
        return
    learns_nothing = evidence.trial is not None and evidence.trial.learns_nothing
    for fact in inspection.inputs:
        constant = fact.constant
        if not len(constant) or fact.features < 2 or len(fact.shape) != 2:
            continue
        values = fact.feature_low[constant]
        are_background = any(bool((values == value).all()) for value in (0.0, fact.low))
        is_much = SHARE.is_warning(len(constant) / fact.features)
        if are_background and not is_much:
            continue
        names = ", ".join(map(str, constant[:SHOWN].tolist())) + (" …" if len(constant) > SHOWN else "")
        yield Finding(
            rule="constant-feature",
            severity="warning" if is_much and (learns_nothing or bool(values.any())) else "note",
            basis="proven",
            summary=f"{len(constant)} of {fact.features} features of the {fact.name} never vary (columns {names}).",
            evidence={"constant features": float(len(constant)), "features": float(fact.features)},
            reason="A feature that never varies only adds a constant to the first layer, which has a bias for that.",
            treatment="scale-inputs",
            remedy=f"# drop these features of the {fact.name} where the data set is made",
        )


def _is_one_row(fact: TensorFacts) -> bool:
    return fact.is_same_within_batches and fact.low < fact.high


def _never_varies(fact: TensorFacts) -> bool:
    return fact.is_same_within_batches and (fact.is_index or bool((fact.feature_low == fact.feature_high).all()))
