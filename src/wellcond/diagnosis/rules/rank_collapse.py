"""rank-collapse: a layer that maps all examples to nearly the same point.

Wrong:
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.01)  # twenty layers, with biases
Right:
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(layer.bias)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.diagnosis.reading import is_embedding, layer_named
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import limits_of_symptom, of_symptom
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.network.norms import is_norm
from wellcond.results import number
from wellcond.results.quantities import VARIATION

SIMILARITY = Threshold(
    "E‖h − E h‖²/E‖h‖² over examples", 1e-6, 1e-9, bad="below", healthy=("variation, Linear", "variation, Conv2d"),
    origin="healthy networks go down to 6e-6; float32 rounds h to 1e-7, whose square is 1e-14",
)  # fmt: skip
ENOUGH_EXAMPLES = Condition("examples", 32, origin="of a few examples all may be alike")

OF_ROUNDING = Condition(
    "RMS of what differs between examples in a layer's input / RMS of its output",
    1e-6,
    origin="the mean over examples is rounded to 1e-7",
)

ROUNDING = Condition(
    "the same",
    1e-13,
    origin="the square of float32's rounding is 1e-14: no bias that is meant outweighs the rest so far",
)
LARGER_PART = Condition(
    "RMS of the last layer's bias / RMS of its outputs", 0.5, origin="the larger part of the outputs"
)

RIGHT_FOR_ALL = Condition(
    "loss if all examples had the same outputs / loss", 0.01, origin="above 0.5 if outputs are compared with targets"
)
DRIVEN = Condition(
    "loss after the run, also of other examples' outputs / loss before", 0.1,
    origin="outputs of others are no better than at the start if the network tells examples apart",
)  # fmt: skip
TOLD_APART = Condition(
    "gain of the right outputs over other examples' after the run", 0.15,
    origin="1e-7 and less in 14 networks that collapse, and from 0.2 on in those that begin alike and train",
)  # fmt: skip


@rule("rank-collapse", quantity=VARIATION)
def rank_collapse(evidence: Evidence) -> Iterator[Finding]:
    """A layer that maps all examples to nearly the same point, although the inputs differ.

    The variation E‖h − E h‖²/E‖h‖² over at least 32 examples: severe below 1e-9, a warning below 1e-6. A bias of the
    last layer that is the mean of the targets, and outweighs what varies, is intended if the network trains. Where a
    module gives all examples exactly the same, the layers after it are not to blame; nor is a layer that gets the same
    for all, as a learned query of an attention, next to others whose outputs vary. A note if outputs tell examples
    apart after the network's own run, as where all examples begin with one entry of a codebook.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.examples < ENOUGH_EXAMPLES.at or any(True for _ in blank(evidence)):
        return
    zero = {w.layer for w in inspection.weights if w.role == "weight" and w.rms == 0}  # their output is their bias
    layers = [
        s for s in inspection.weighted() if s.variation is not None and not is_embedding(s) and s.name not in zero
    ]
    trains = evidence.trial is None or evidence.trial.trains
    for before, signal in itertools.pairwise(layers):
        is_last = not any(signal.name in each.after for each in layers)
        is_rounding = (signal.variation or 0.0) < ROUNDING.at
        if is_last and trains is not False and _is_offset(inspection, signal) and not is_rounding:
            continue
        if _is_fed_a_parameter(signal, layers[layers.index(signal) + 1 :]):
            continue
        variation = signal.variation or 0.0
        passes = _tells_apart(evidence)
        is_far = SIMILARITY.is_severe(variation)
        if SIMILARITY.is_warning(variation) and signal.rms > 0:
            yield Finding(
                rule="rank-collapse",
                layer=signal.name,
                severity="note" if passes else of_symptom(evidence, is_far=is_far),
                basis="measured",
                summary=f"{layer_named(signal.name)} maps all {inspection.examples} examples to nearly the same "
                f"outputs: they vary by {number(variation)} of their size, those of {layer_named(before.name)} by "
                f"{number(before.variation or 0.0)}." + (" Training tells them apart." if passes else ""),
                evidence={"variation": variation, "variation before": before.variation or 0.0},
                limits={} if passes else limits_of_symptom(evidence, SIMILARITY.limits(), is_far=is_far),
                reason="No later layer can distinguish examples that one layer maps to one point (the ordered phase "
                "of mean-field theory).",
                treatment="he-init" if any(map(is_norm, evidence.problem.model.modules())) else "batchnorm",
            )
            return


@rule("rank-collapse", quantity=VARIATION)
def blank(evidence: Evidence) -> Iterator[Finding]:
    """A norm that gives every example the same but for rounding, or another module that does so exactly, in all calls.

    A norm over single values subtracts each from itself: one channel per group after a global pooling, or one feature.
    Activations, softmaxes and dropouts are other rules'.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.examples < ENOUGH_EXAMPLES.at:
        return
    for signal in inspection.signals:
        if signal.is_blank and not signal.kind.endswith(("ReLU", "ReLU6", "Softmax", "Dropout")):
            module = evidence.problem.model.get_submodule(signal.name)
            is_of_norm = "norm" in signal.kind.lower() or is_norm(module)
            yield Finding(
                rule="rank-collapse",
                layer=signal.name,
                severity=of_symptom(evidence, is_far=True),
                basis="measured",
                summary=f"{signal.name or 'the model'} ({signal.kind}) gives all {inspection.examples} examples the "
                "same, although its inputs differ.",
                evidence={"variation": 0.0, "RMS": signal.rms},
                reason="Minus its own mean a single value is 0: a norm needs several values to normalize together."
                if is_of_norm
                else "No later layer can distinguish examples that one module maps to one point.",
                remedy="# normalize over more than one value: fewer groups, all channels, or before the pooling"
                if is_of_norm
                else f"# print what {signal.name or 'the model'} gets and returns for two examples",
                begins_here=is_of_norm,  # others may be flat on inputs that are far too large
            )
            return


@rule("rank-collapse", quantity=VARIATION)
def empty_table(evidence: Evidence) -> Iterator[Finding]:
    """An embedding of zeros that is not trained: pretrained vectors that were looked up under names that do not match.

    Zeros that are trained get a gradient, and differ after a step.
    """
    inspection = evidence.inspection
    for w in () if inspection is None else inspection.weights:
        is_left_out = not w.is_trainable or w.is_held is False
        if w.role == "embedding" and w.rms == 0 and w.order is not None and is_left_out:
            yield Finding(
                rule="rank-collapse",
                layer=w.layer,
                severity=of_symptom(evidence, is_far=True),
                basis="measured",
                summary=f"the table of {w.layer}, of shape {list(w.shape)}, is all zeros and is not trained: every "
                "index gets the same.",
                evidence={"variation": 0.0, "RMS": 0.0},
                reason="No later layer can distinguish examples that one table maps to one point.",
                remedy=f"# print how many rows of {w.layer} are not zero: words of the vocabulary and keys of the "
                "vectors may be spelled differently",
                begins_here=True,
            )


@rule("rank-collapse", quantity=VARIATION)
def driven_to_one_point(evidence: Evidence) -> Iterator[Finding]:
    """A loss that is lowest where all examples have the same outputs, and a run that goes there.

    Pairs that all belong together, without any that do not. Severe if the same outputs for all examples have less than
    1 % of the loss, or it only compares outputs with each other, and the network's own run ends below 10 % of it, also
    with the outputs of other examples.
    """
    trial = evidence.trial
    own = None if trial is None else trial.own
    if trial is None or own is None or own.paired is None or trial.of_one_point is None:
        return
    is_right_for_all = 0 <= trial.of_one_point < RIGHT_FOR_ALL.at * trial.loss
    if not (is_right_for_all or own.paired.compares_views) or trial.loss <= 0:
        return
    if max(own.paired.of_others, own.loss) > DRIVEN.at * trial.loss:
        return
    yield Finding(
        rule="rank-collapse",
        severity="severe",
        basis="tried",
        summary=f"training maps all examples to one point: the loss is {number(trial.of_one_point)} if they have the "
        f"same outputs, and goes from {number(trial.loss)} to {number(own.loss)} in {len(own.run.losses)} steps, with "
        f"the outputs of other examples to {number(own.paired.of_others)}.",
        evidence={"loss of one point": trial.of_one_point, "loss before": trial.loss, "loss after": own.loss},
        reason="A loss that only draws pairs together is lowest where all are one: nothing keeps others apart.",
        remedy="# give the loss pairs that do not belong together (negatives), or targets that differ",
    )


def _is_fed_a_parameter(signal: Signal, later: list[Signal]) -> bool:
    """Whether a layer gets the same for all examples, but later ones do not, so that it is no part of their path."""
    if signal.taken is None or signal.taken > OF_ROUNDING.at * signal.rms:
        return False
    return any(not SIMILARITY.is_warning(each.variation or 0.0) for each in later)


def _tells_apart(evidence: Evidence) -> bool:
    """Whether the outputs belong to their examples after the network's own run."""
    own = None if evidence.trial is None else evidence.trial.own
    return own is not None and own.paired is not None and own.paired.gain > TOLD_APART.at


def _is_offset(inspection: Inspection, last: Signal) -> bool:
    """Whether the outputs of the last layer are mostly its bias."""
    biases = [w.rms for w in inspection.weights if w.layer == last.name and w.role == "bias"]
    return max(biases, default=0.0) > LARGER_PART.at * last.rms
