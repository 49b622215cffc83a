"""Losses that compare outputs with the targets of other examples, or with none."""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import outputs_of
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.output_loss_mismatch.mismatch import is_flattened_apart, mismatch, seen_by_loss
from wellcond.diagnosis.threshold import Condition
from wellcond.results import number

PREDICTS = Condition(
    "the best of three probes of the data, in standard deviations of shuffled targets", 8.0,
    origin="chance exceeds 4 once in 30,000 probes; only inputs that predict targets need to be compared with them",
)  # fmt: skip

TWO = Condition("values of the targets", 2, origin="without one of two labels, one answer is right for all")


@rule("output-loss-mismatch")
def unpaired(evidence: Evidence) -> Iterator[Finding]:
    """A loss that stays the same if the targets are given to other examples, although the inputs predict them.

    It compares every output with all targets, as `(N,) − (N, 1)` does, or a mean over the batch with another. Distances
    between two sets of samples, as a generator's, are like that by design: there the inputs predict nothing. A loss
    that uses no targets at all is severe if it is a likelihood or a squared error, and a warning if it is another,
    unless examples are compared with each other, as in contrastive losses.
    """
    known = seen_by_loss(evidence)
    relation = None if evidence.trial is None else evidence.trial.relation
    if known is None or relation is None or not relation.best > PREDICTS.at:
        return
    inspection, output, sight = known
    if sight.is_unpaired:
        yield mismatch(
            inspection,
            output,
            f"the loss is the same if the targets of a batch are given to other examples: outputs of shape "
            f"{list(output.shape)} are not compared each with its own target, of shape "
            f"{list(output.target_shape or ())}.",
            "A constant is the best answer to such a loss: either shapes are broadcast to one number for each pair of "
            "examples, or a mean over the batch is taken before the comparison.",
            "# compare outputs and targets of one shape, and take the mean after that",
            layer="",
        )
    elif sight.ignores_targets and sight.is_by_example:
        yield mismatch(
            inspection,
            output,
            "the loss is the same whatever the targets are, although the inputs predict them.",
            "What the loss does not depend on is not learned.",
            "# use the targets in the loss",
            severity="warning" if output.loss_kind == "other" else "severe",
            layer="",
        )


@rule("output-loss-mismatch")
def all_with_the_first(evidence: Evidence) -> Iterator[Finding]:
    """A contrastive loss that singles out the first example of a batch: it is said to be the partner of all others.

    The loss changes if the first example changes places with another, and stays as it is if two others do.
    """
    if evidence.behavior is None or not evidence.behavior.first_is_special:
        return
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe",
        basis="proven",
        summary="the loss compares all examples of a batch with the first: it depends on which one comes first, and "
        "not on the order of the others.",
        reason="Of a matrix of similarities the right entries are on its diagonal: labels of zeros belong to rows "
        "whose first entry is the right one, as with a queue of negatives.",
        remedy="# label the pairs by their place: torch.arange(len(logits))",
    )


@rule("output-loss-mismatch")
def scattered(evidence: Evidence) -> Iterator[Finding]:
    """A loss that compares the class of one place with outputs of several: it reshapes where it should transpose.

    Two places of a sequence or an image that exchange their classes change gradients at others. `logits.view(N, C, T)`
    gives (N, T, C) outputs the shape that cross-entropy wants, but cuts across places and classes.
    """
    if (known := seen_by_loss(evidence)) is None or not known[2].is_scattered:
        return
    inspection, output, _ = known
    yield mismatch(
        inspection,
        output,
        f"the loss compares the target of one place with outputs of several places: it reshapes outputs of shape "
        f"{list(output.shape)} where it should exchange two dimensions.",
        "view and reshape keep the order of the numbers in memory: what was one class at all places becomes a part of "
        "several classes at a few.",
        "# exchange dimensions by transpose or permute: F.cross_entropy(outputs.transpose(1, 2), targets), or flatten "
        "both: F.cross_entropy(outputs.flatten(0, 1), targets.flatten())",
        layer="",
    )


@rule("output-loss-mismatch")
def flattened_apart(evidence: Evidence) -> Iterator[Finding]:
    """Outputs with the steps in front and labels with the examples in front that are both flattened as they lie.

    Correct outputs have the lowest loss for labels in the order of their numbers, and not for those of the same step
    and example.
    """
    if (both := outputs_of(evidence)) is None or not is_flattened_apart(both[1]):
        return
    inspection, output = both
    yield mismatch(
        inspection,
        output,
        f"outputs of shape {list(output.shape)} have the steps in front, and labels of shape "
        f"{list(output.target_shape or ())} the examples: the loss flattens both as they lie, and compares outputs "
        "with labels of other steps and examples.",
        "Flattened numbers belong together only if both tensors count in one order.",
        "# turn one of them before both are flattened: F.cross_entropy(outputs.flatten(0, 1), targets.T.flatten())",
        layer="",
    )


@rule("output-loss-mismatch")
def crossed(evidence: Evidence) -> Iterator[Finding]:
    """A loss that compares an example's outputs with the target of another: one of the two is reordered inside it.

    Another target for the first example changes the gradients by other examples' outputs, and not by its own.
    """
    if (known := seen_by_loss(evidence)) is None or not known[2].is_crossed:
        return
    inspection, output, _ = known
    yield mismatch(
        inspection,
        output,
        "the loss compares the outputs of an example with the target of another one: it reorders one of the two.",
        "Targets in another order than the inputs cannot be learned from them.",
        "# keep outputs and targets in one order: no flip, sort or shuffle of one of them",
        layer="",
    )


@rule("output-loss-mismatch")
def unheard(evidence: Evidence) -> Iterator[Finding]:
    """A loss that depends on one example of a batch only, or on none with one of the labels, whatever the outputs are.

    Severe for `loss(outputs[0], targets[0])`, and where one of two labels does not count, as if 0 and 1 are given to a
    hinge that takes -1 and 1; a warning where one of several does not, as by `ignore_index`. Negative indices are
    ignored by design.
    """
    heard = None if evidence.behavior is None else evidence.behavior.heard
    if heard is None or (not heard.is_at_end and heard.value is None):
        return
    one = f"one of the {heard.examples} examples of a batch"
    label = f"examples with the target {number(heard.value or 0.0)}, {heard.share:.0%} of a batch"
    yield Finding(
        rule="output-loss-mismatch",
        severity="severe" if heard.is_at_end or heard.values == TWO.at else "warning",
        basis="proven",
        summary=f"the loss depends on {one} only, whatever the outputs of the others are."
        if heard.is_at_end
        else f"the loss does not depend on {label}, whatever their outputs are.",
        evidence={"examples": float(heard.examples), "examples that count": float(heard.count)},
        reason="What the loss does not depend on is not learned."
        if heard.is_at_end
        else "An index that is ignored, a weight of zero, or labels 0 and 1 where a loss takes -1 and 1, leave a class "
        "without a gradient.",
        remedy="# take the mean over all examples of a batch"
        if heard.is_at_end
        else "# look at ignore_index and weight of the loss, and at the labels it takes: 2 * targets - 1 are -1 and 1",
    )
