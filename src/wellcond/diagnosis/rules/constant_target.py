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
from wellcond.diagnosis.trial_result import Trial
from wellcond.diagnosis.worth import TELLS_APART
from wellcond.problem.training_step import TrainingStep
from wellcond.results import number
from wellcond.results.quantities import TRAINING_LOSS

ENOUGH_EXAMPLES = Condition("examples", 64, origin="a class of one example in ten is missing from 64 once in 850 draws")
FEW_CLASSES = Condition(
    "classes", 2, origin="one of two classes may be as rare as fraud; all but one of three or more are not"
)

SOLVED = Condition("loss after the trial / before", 0.05, origin="no task is learned in some fifty steps")
MANY = Condition("examples", 256, origin="a class of one example in fifty is missing from them once in 180 draws")
SOLVED_OF_MANY = Condition(
    "the same, of many examples with labels", 0.15, origin="0.10 to 0.12 is left after 56 steps on tables of users"
)
FALLEN = Condition(
    "the same, where one answer is as good for all", 0.2, origin="0.003 to 0.08 where labels or signs are lost, by Adam"
)
AS_GOOD = Condition(
    "loss of one answer for all / loss, after its own run", 1.05, origin="the mean of equal outputs, but for rounding"
)
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
    the loss to a twentieth, or that of a cross-entropy of 256 examples to a seventh. A warning for a
    cross-entropy of labels of 256 examples that are a whole epoch; severe if a whole epoch was read, and they are
    labels of examples or a few steps take the loss there. Not reported where the loss does not use them, as where a
    model computes its own loss and the loader gives a number for form.
    """
    inspection = evidence.inspection
    if inspection is None or len(inspection.targets) != 1:
        return
    fact = inspection.targets[0]
    is_used = evidence.behavior is None or not evidence.behavior.unused_targets
    if fact.examples < ENOUGH_EXAMPLES.at or not fact.is_constant or fact.not_finite or not is_used:
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
    is_of_labels = _is_of_labels(inspection)
    is_of_many = is_of_labels and inspection.targets[0].examples >= MANY.at
    return (
        (is_of_labels or (are_alike and _is_whole(inspection)))
        and own is not None
        and evidence.trial is not None
        and own.loss < (SOLVED_OF_MANY if is_of_many else SOLVED).at * evidence.trial.loss
    )


def _is_of_labels(inspection: Inspection) -> bool:
    """Whether the loss is a cross-entropy of what the model gives, without a judge among its layers."""
    output = inspection.output
    return output is not None and output.loss_kind in CROSS_ENTROPIES and _is_whole(inspection)


def _is_whole(inspection: Inspection) -> bool:
    return all(w.is_trainable for w in inspection.weights)


@rule("constant-target", quantity=TRAINING_LOSS)
def right_for_all(evidence: Evidence) -> Iterator[Finding]:
    """A step whose loss falls to a fifth though one answer is as good for all examples, and no pairs are compared.

    The loss does not depend on which example outputs belong to, and that of one answer for all examples is no more than
    1.05 times what the network's own run has come to. A warning: what is asked for may be one answer. Reported where
    the step makes its targets itself, as a discriminator's are; without targets it is output-loss-mismatch. What
    another network judges is not reported.
    """
    trial = evidence.trial
    if trial is None or not is_right_for_all(evidence) or trial.one_answer is None or not trial.one_answer.has_goals:
        return
    yield Finding(
        rule="constant-target",
        severity="warning",
        basis="tried",
        summary=for_all_summary(trial),
        evidence={"loss before": trial.loss, "loss of one answer": trial.one_answer.loss},
        reason="Targets that a step makes are the same for all: a tensor that is filled in place is filled under every "
        "one of its names, and numbers that become integers may all be 0.",
        remedy="# print the targets that the loss gets, and make each with a tensor of its own: torch.zeros_like(ones)",
    )


@rule("constant-target")
def overwritten_targets(evidence: Evidence) -> Iterator[Finding]:
    """Hidden places of the inputs that are overwritten in the targets too, so that one number is right for all of them.

    The loss counts some places only, others in each example, whatever the outputs are. There all inputs are one number,
    and the loss asks for it. A warning: places may be meant to stay as they are.
    """
    answers = None if evidence.behavior is None else evidence.behavior.answers
    if answers is None or answers.constant is None or any(True for _ in constant_target(evidence)):
        return
    value = number(answers.constant)
    yield Finding(
        rule="constant-target",
        severity="warning",
        basis="proven",
        summary=f"the loss counts {answers.counted:.0%} of the places of examples, and at all of these it asks for "
        f"{value}, which is what the inputs hold there.",
        evidence={"share of places that count": answers.counted, "target": answers.constant},
        reason="Inputs and targets are one tensor: what hides places of the inputs in place hides them in the targets "
        "too, and a constant is right.",
        remedy="# hide places of a copy: inputs = batch.clone(); inputs[mask] = 0",
    )


def is_right_for_all(evidence: Evidence) -> bool:
    """Whether a few steps of a training step come to an answer that is the same for all examples."""
    trial, inspection = evidence.trial, evidence.inspection
    if trial is None or trial.own is None or trial.one_answer is None or inspection is None:
        return False
    own, answer = trial.own, trial.one_answer
    is_step = isinstance(evidence.problem.loss, TrainingStep)
    is_solved = 0 <= own.loss < FALLEN.at * trial.loss and not trial.only_comes_down
    return (
        is_step
        and _is_whole(inspection)
        and is_solved
        and not answer.is_compared
        and answer.loss < AS_GOOD.at * own.loss
    )


def for_all_summary(trial: Trial) -> str:
    """What a run has come to, and the loss of one answer."""
    if trial.own is None or trial.one_answer is None:
        return ""
    return (
        f"the loss goes from {number(trial.loss)} to {number(trial.own.loss)} in {len(trial.own.run.losses)} steps, "
        f"and is {number(trial.one_answer.loss)} with one answer for all examples, so that none needs an "
        "answer of its own."
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
        is_all = fact.is_of_epoch and is_per_example and fact.examples >= MANY.at and _is_of_labels(inspection)
        if is_mask and fact.is_binary:
            return "severe"
        return "note" if fact.is_binary and not is_all else "warning"
    classes = None if inspection.output is None else inspection.output.classes
    return "severe" if is_per_example and classes is not None and classes > FEW_CLASSES.at else "warning"
