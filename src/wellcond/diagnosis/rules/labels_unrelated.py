"""labels-unrelated: inputs that do not predict the targets.

Wrong:
    inputs = inputs[torch.randperm(n)]  # and the labels stay where they are
Right:
    order = torch.randperm(n)
    inputs, labels = inputs[order], labels[order]

Wrong:
    image, mask = flip(image), mask  # a random flip of one of the two
Right:
    image, mask = flip(torch.stack([image, mask]))
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.after_runs import HeldOut
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import Trial
from wellcond.results import number
from wellcond.results.quantities import TRAINING_LOSS

CHANCE = Threshold(
    "the best of four probes, in standard deviations of shuffled targets", math.nan, 4.0, bad="below",
    origin="chance exceeds it once in 30,000 probes; data sets of the benchmarks have 5 to 230",
)  # fmt: skip
EXAMPLES = Threshold(
    "examples, or twice those that are not of the commonest class",
    128,
    256,
    origin="with fewer, the probes do not see the relation of the smallest data sets of the benchmarks",
)
STRUCTURE = Condition(
    "λ_max of the inputs' correlations / Marchenko-Pastur edge", 1.5,
    origin="inputs with no more in common than noise leave the probes nothing to go by",
)  # fmt: skip
PER_FEATURE = Condition(
    "examples per feature", 16, origin="with as few as that a smooth fit of numbers still has power"
)
SLOW = Condition("share of the targets' variance that slow directions predict", 0.1, origin="see ill-conditioned-input")

BY_HEART = Condition(
    "loss after / before, of the batches that were trained on", 0.8, origin="enough to be learned, and not noise"
)
OF_USE = Condition(
    "loss after / before, of the other batches",
    0.86,
    origin="0.88 to 1.06 for pairs from two shuffles; 0.73 to 0.87 for networks that chase moving targets",
)
PAIRED = Condition("loss of these with other pairs / loss", 1.2, origin="what was learned are the pairs")
OF_OTHERS = Threshold(
    "loss of other batches with other pairs / loss", 1.05, math.nan, bad="below",
    origin="0.96 to 1.03 if they are no pairs; 1.3 and more where much was learned in some fifty steps, 1.08 to 1.2 "
    "where a target network has only begun to move",
)  # fmt: skip
HARDLY_TOLD = Condition(
    "the best of four probes, in standard deviations of shuffled targets", 8.0,
    origin="4.4 for images that are flipped while their side is the label, 6.4 for sorted sentences by their lengths",
)  # fmt: skip
AGAINST = Condition(
    "the same, from which on down exchanging labels helps",
    0.95,
    origin="a loss that part of the network is trained to raise, as by reversed gradients, is no measure of pairs",
)
OF_OTHER_PARTNERS = Threshold(
    "the same of a contrastive loss", math.nan, 1.05, bad="below",
    origin="chance alone; two views of the same example have more in common than that",
)  # fmt: skip
OF_ITS_OWN = Condition(
    "loss of its own batches with other partners / loss", 1.5, origin="most of what could be learned by heart was"
)
TURNED = Threshold(
    "fit of masks that are all turned alike / each on its own", 0.75, math.nan, bad="below",
    origin="0.92 to 1 for masks that lie on their images, 0.3 to 0.6 where images are turned or mirrored by themselves",
)  # fmt: skip
OF_ITS_OWN_IMAGE = Condition(
    "fit of masks that are each turned on its own, to their images and less that to others", 0.15,
    origin="0.2 to 0.5 where images are turned by themselves; 0 where masks have nothing to do with images",
)  # fmt: skip
MOVED = Threshold(
    "fit of masks as they are / each moved on its own", 0.3, math.nan, bad="below",
    origin="0.5 and more for masks on their images, also of faint objects next to bright ones; below 0.2 where images "
    "are moved by themselves",
)  # fmt: skip
FITS = Condition(
    "fit of masks that are each turned on its own", 0.5, origin="enough to tell ways to lie from each other"
)
FITS_MOVED = Condition(
    "fit of masks that are each moved on its own", 0.65,
    origin="0.4 for blobs moved on images of noise, 0.6 if it is smooth; 0.75 and more for objects that stand out",
)  # fmt: skip
OWN = Condition(
    "what a function made for one image leaves of its mask / of another one, where masks are turned", 0.4,
    origin="0.5 to 0.9 where images are turned; 0.1 to 0.3 where colors mean something else in every image",
)  # fmt: skip
OWN_MOVED = Condition(
    "the same, where masks are moved", 0.9, origin="0.97 and more where images are moved; otherwise as above"
)


@rule("labels-unrelated", quantity=TRAINING_LOSS)
def labels_unrelated(evidence: Evidence) -> Iterator[Finding]:
    """Inputs that do not predict the targets: neither neighbors nor a fit do better than chance.

    Three leave-one-out probes, by the nearest neighbor, a linear and a smooth fit, and the correlation of every single
    feature lie within four standard deviations of shuffled targets, for at least 128 examples (256: severe); if one
    class has more than half of them, the others count twice. The inputs must have structure beyond the Marchenko-Pastur
    edge, or at least 16 examples per feature, with which a smooth fit has power, and targets that are numbers; for
    classes it is a warning then, if they are learned by heart: what a run learns of half of the batches is of no use
    for the others. Of sequences of tokens with a label for every position, it is compared how often each token and each
    label occurs in a sequence. For one label of a whole sequence, the features are tokens, tokens at their places, and
    pairs of neighbors; without structure in the tokens, as in an exercise like parity, it is a warning, since such a
    label may depend on more. Numbers count by their values or their ranks, whichever is predicted better. Not reported
    if the network has learned something or learns what is of use for other batches; a warning if its own run learns,
    unless the other batches' loss is the same with labels of other examples.
    """
    trial = evidence.trial
    relation = None if trial is None else trial.relation or trial.token_relation
    if trial is None or relation is None or trial.has_learned:
        return
    is_crowded = relation.examples >= max(EXAMPLES.severe, PER_FEATURE.at * relation.features)
    is_dense = relation.is_regression and is_crowded
    is_structured = relation.structure >= STRUCTURE.at or is_dense
    is_open = (relation.is_of_whole or (is_crowded and trial.learns_by_heart)) and not is_structured
    has_power = relation.effective >= (EXAMPLES.severe if is_open else EXAMPLES.warn) and (is_structured or is_open)
    is_slow = relation.slow is not None and relation.slow.rest > SLOW.at
    if not has_power or relation.best > CHANCE.severe or is_slow:
        return
    is_learned = trial.own is not None and trial.outcome(trial.own) == "learns"
    if is_learned and not trial.learns_by_heart:
        return
    yield Finding(
        rule="labels-unrelated",
        severity="severe"
        if relation.effective >= EXAMPLES.severe
        and not is_open
        and (not is_learned or _is_same_for_others(trial.held_out))
        else "warning",
        basis="measured",
        summary=f"over {relation.examples} examples the inputs do not predict the targets: the nearest neighbor's "
        f"target is {number(relation.neighbor)}, a linear fit {number(relation.linear)} and a smooth fit "
        f"{number(relation.smooth)} standard deviations better than chance, and no single feature is correlated with "
        "them.",
        evidence={
            "examples": float(relation.examples),
            "nearest neighbor, in σ": relation.neighbor,
            "linear fit, in σ": relation.linear,
            "smooth fit, in σ": relation.smooth,
            "most correlated feature, in σ": relation.single,
            "structure of the inputs, in noise edges": relation.structure,
        },
        reason="Targets that can be learned from inputs are similar for neighbors; shuffled or sorted targets are "
        "not. The usual cause is an index that shuffles or sorts one of the two.",
        remedy="# look at some inputs next to their labels: are both in one order, and shuffled by one index?",
    )


@rule("labels-unrelated", quantity=TRAINING_LOSS)
def learned_by_heart(evidence: Evidence) -> Iterator[Finding]:
    """Pairs that are learned of half of the batches and are no pairs in the others, where the probes see hardly any.

    With the optimizer as it is, the loss of the first half falls by a fifth, and is 1.2 times as high if their
    labels, or second views, are those of other examples; for the other half that makes no difference, a twentieth or
    less, and it has not fallen by a seventh. A warning: a task may need more data than were read. Severe for a
    contrastive loss of 256 examples or more, if other partners make 1.5 times the loss there and 1.05 times here: two
    views of an example have more in common. Not reported where each user or item has a row of its own in a table,
    which is learned by heart on purpose.
    """
    trial, inspection = evidence.trial, evidence.inspection
    if trial is None or inspection is None or any(True for _ in labels_unrelated(evidence)):
        return
    if any(each is not None and each.best >= HARDLY_TOLD.at for each in (trial.relation, trial.token_relation)):
        return
    held, indices = trial.held_out, [each for each in inspection.inputs if each.is_index]
    single = [each for each in indices if len(each.shape) == 1]
    is_table = bool(single) and (len(single) > 1 or len(single) == len(indices))
    if held is None or held.exchanged is None or is_table or not 0 < held.seen < BY_HEART.at * held.before:
        return
    seen, unseen = held.exchanged
    is_of_use = held.unseen < OF_USE.at * held.before
    if (
        is_of_use
        or unseen < AGAINST.at * held.unseen
        or not seen > PAIRED.at * held.seen
        or not _is_same_for_others(held)
    ):
        return
    yield Finding(
        rule="labels-unrelated",
        severity="severe" if _are_no_partners(evidence, held, trial) else "warning",
        basis="tried",
        summary=f"trained on half of the batches, the loss of these is {number(held.seen)}, and {number(seen)} if each "
        f"example has the label, or the partner, of another; in the others {number(held.unseen)} and {number(unseen)}: "
        "what is learned is of no use for other examples.",
        evidence={
            "loss of its batches": held.seen,
            "the same, exchanged": seen,
            "loss of the others": held.unseen,
            "loss of the others, exchanged": unseen,
        },
        limits=OF_OTHERS.limits(held.unseen),
        reason="What belongs together in one batch does so in the others, unless an index shuffles or sorts one of the "
        "two alone: then only single examples can be learned, by heart.",
        remedy="# look at some inputs next to their labels: are both in one order, and shuffled by one index?",
    )


@rule("labels-unrelated", quantity=TRAINING_LOSS)
def lie_elsewhere(evidence: Evidence) -> Iterator[Finding]:
    """Masks of a segmentation that do not lie on their images: each fits if it is turned, or moved, by itself.

    A mask is compared with what a linear function of the image's local values makes of it. As they are, or all turned
    or mirrored alike, masks fit less than three quarters as well as if each is turned or mirrored in its own way, and
    these fit their own images better than those of others. Or they fit less than a third as well as if each is moved
    across the image by itself, and no function made for one image tells its mask from another. A warning: a task may
    ask for what is elsewhere. Not reported if the network has learned, or halves the loss in a trial. That each fits
    better in another way is proven by the data; where they are moved, blobs may fit other blobs.
    """
    trial = evidence.trial
    masks = None if trial is None else trial.masks
    if trial is None or masks is None or trial.has_learned or trial.halves:
        return
    if masks.are_moved:
        threshold, change, fit = MOVED, "moved", max(masks.as_they_are, masks.by_one)
        is_certain = masks.by_each >= FITS_MOVED.at and masks.left_by_own >= OWN_MOVED.at
    else:
        threshold, change, fit = TURNED, "turned or mirrored", masks.by_one
        is_certain = masks.by_each >= max(FITS.at, masks.of_others + OF_ITS_OWN_IMAGE.at)
        is_certain = is_certain and masks.left_by_own >= OWN.at
    if not is_certain or not threshold.is_warning(fit / masks.by_each):
        return
    yield Finding(
        rule="labels-unrelated",
        severity="warning",
        basis="measured" if masks.are_moved else "proven",
        summary=f"over {masks.examples} examples masks do not lie on their images: their fit is {number(fit)}, and "
        f"{number(masks.by_each)} if each is {change} in a way of its own.",
        evidence={
            "examples": float(masks.examples),
            "fit as they are": masks.as_they_are,
            "fit, all changed alike": masks.by_one,
            "fit, each changed on its own": masks.by_each,
            "fit to other images": masks.of_others,
        },
        limits=threshold.limits(masks.by_each),
        reason="A pixel's label belongs to what is there. An image that is flipped, turned or moved at random without "
        "its mask, or with random numbers of its own, has its objects elsewhere.",
        remedy="# change image and mask together: draw the flip, the turn or the shift once, and use it for both",
    )


def _is_same_for_others(held: HeldOut | None) -> bool:
    """Whether batches that were not trained on have the same loss with the labels of other examples."""
    return held is not None and held.exchanged is not None and OF_OTHERS.is_warning(held.exchanged[1] / held.unseen)


def _are_no_partners(evidence: Evidence, held: HeldOut, trial: Trial) -> bool:
    """Whether a contrastive loss of many examples shows that partners in other batches have nothing in common."""
    is_contrastive = evidence.behavior is not None and evidence.behavior.mixed_similarities is not None
    examples = (trial.examples or 0) * len(trial.before) / 2
    if held.exchanged is None or not is_contrastive or examples < EXAMPLES.severe:
        return False
    seen, unseen = held.exchanged
    return seen > OF_ITS_OWN.at * held.seen and OF_OTHER_PARTNERS.is_severe(unseen / held.unseen)
