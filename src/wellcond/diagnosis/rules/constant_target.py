"""constant-target: targets that are all the same, so that there is nothing to learn.

Wrong:
    def __getitem__(self, index):
        return self.x[index], self.y[0]
Right:
    def __getitem__(self, index):
        return self.x[index], self.y[index]
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.inspection.data import TensorFacts
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition
from wellcond.diagnosis.worth import TELLS_APART
from wellcond.results import number

ENOUGH_EXAMPLES = Condition("examples", 64, origin="a class of one example in ten is missing from 64 once in 850 draws")
FEW_CLASSES = Condition(
    "classes", 2, origin="one of two classes may be as rare as fraud; all but one of three or more are not"
)

SOLVED = Condition("loss after the trial / before", 0.05, origin="no task is learned in some fifty steps")
CROSS_ENTROPIES = ("bce", "bce-logits", "cross-entropy")
IMAGES = 4
"""Dimensions of a batch of images."""


@rule("constant-target")
def constant_target(evidence: Evidence) -> Iterator[Finding]:
    """Targets that are the same for all examples, of which at least 64 are read, but for negative indices.

    Severe for labels of three classes or more. A warning for two, of which one may be rare, for targets per pixel or
    token, and for numbers. A note for numbers that are all 0 or all 1: a GAN's labels, or a residual that is to vanish;
    but severe if they are masks of the size of the images: those of a GAN are coarser. A warning if the loss is a
    cross-entropy, or every example may have the outputs of another, all of the model is trained, and a few steps take
    the loss to a twentieth. Severe, too, if a whole epoch was read, and they are labels of examples or that is so.
    """
    inspection = evidence.inspection
    if inspection is None or len(inspection.targets) != 1:
        return
    fact = inspection.targets[0]
    if fact.examples < ENOUGH_EXAMPLES.at or not fact.is_constant or fact.not_finite:
        return
    yield Finding(
        rule="constant-target",
        severity=_severity(evidence, inspection, fact),
        basis="proven",
        summary=f"all {fact.name} of {fact.examples} examples that were read are {number(fact.high)}"
        + (", but for negative ones, which losses leave out" if fact.low < fact.high else "")
        + ": a constant output is right.",
        evidence={"examples": float(fact.examples), "target": fact.high},
        reason="The loss falls to zero without a look at the inputs. Either the targets are wrong, or the data are "
        "sorted by them and not shuffled.",
        remedy="# look at what the data set returns as target, and shuffle the data",
    )


def _is_solved(evidence: Evidence, inspection: Inspection) -> bool:
    """Whether outputs are right at once, without a judge among the frozen weights, as a generator has.

    These are of labels, or such that every example may have those of another.
    """
    own = None if evidence.trial is None else evidence.trial.own
    are_alike = own is not None and own.paired is not None and own.paired.gain < TELLS_APART
    is_of_labels = inspection.output is not None and inspection.output.loss_kind in CROSS_ENTROPIES
    is_whole = all(w.is_trainable for w in inspection.weights)
    return (
        (is_of_labels or are_alike)
        and is_whole
        and own is not None
        and evidence.trial is not None
        and own.loss < SOLVED.at * evidence.trial.loss
    )


def _severity(evidence: Evidence, inspection: Inspection, fact: TensorFacts) -> Severity:
    is_per_example = len(fact.shape) == 1 or fact.shape[1:] == (1,)
    is_solved = _is_solved(evidence, inspection)
    if fact.is_of_epoch and (is_solved or (fact.is_index and is_per_example)):
        return "severe"
    if not fact.is_index and is_solved:
        return "warning"
    if not fact.is_index:
        is_mask = any(len(each.shape) == IMAGES and each.shape[2:] == fact.shape[-2:] for each in inspection.inputs)
        return ("severe" if is_mask else "note") if fact.is_binary else "warning"
    classes = None if inspection.output is None else inspection.output.classes
    return "severe" if is_per_example and classes is not None and classes > FEW_CLASSES.at else "warning"
