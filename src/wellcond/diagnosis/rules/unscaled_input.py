"""unscaled-input: inputs whose scale is far from 1, or differs between features.

Wrong:
    inputs = torch.stack([age, income], dim=1)  # around 40 and around 40,000
Right:
    inputs = torch.stack([age, income], dim=1)
    inputs = (inputs - inputs.mean(0)) / inputs.std(0)  # of the training set
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.growth import grows_by_layers
from wellcond.diagnosis.inspection.data import (
    DOMINATES,
    LARGE_RMS,
    SMALL_REACH,
    TensorFacts,
    is_badly_scaled,
    is_too_large,
)
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.seen import CELLS
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.diagnosis.reading import GATED, is_embedding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import of_symptom
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.network.norms import is_norm
from wellcond.problem.training_step import TrainingStep
from wellcond.remedies.batch_code import scaling_in_step
from wellcond.results import number

RMS = Threshold(
    "RMS of inputs", LARGE_RMS, 10.0, healthy=("inputs: RMS",),
    origin="initializations assume E x² = 1. λ_max of Σx, the curvature of the first layer, grows with the square "
    "(huang2020, section 3): at 4 its stable rate is a sixteenth, at 10 a hundredth. Pixels in [0, 1] have 0.1 to "
    "0.6, raw ones 130",
)  # fmt: skip
DOMINANCE = Threshold(
    "RMS of the largest feature / that of the median one", math.nan, DOMINATES, healthy=("inputs: largest / median "
    "feature",),
    origin="κ of Σx is then 10⁴ or more by the scales alone",
)  # fmt: skip
SMALL = Threshold(
    "largest |x|", SMALL_REACH, math.nan, bad="below", healthy=("inputs: RMS",),
    origin="torch draws biases up to 1/√fan_in, which is 0.05 for 400 inputs: they outweigh smaller inputs",
)  # fmt: skip
LOST = Threshold(
    "E‖h − E h‖²/E‖h‖² of the first layer's outputs, for small inputs", math.nan, 1e-3, bad="below",
    healthy=("variation, Conv2d",), origin="less than 3 % of the first layer's outputs depend on the inputs",
)  # fmt: skip
ORDINARY_SIGNAL = Condition(
    "RMS of the first layer's outputs", 3.0, origin="if it is no larger, the weights were made for these inputs"
)
OFFSET = Threshold(
    "largest standard deviation of a feature / its |mean|", math.nan, 0.02, bad="below",
    origin="pixels in [0, 1] have 0.3 to 2, temperatures in kelvin 0.03; the statistics of bytes leave pixels 0.01",
)  # fmt: skip
CONSTANT = Condition("the same", 1e-5, origin="rounding in float32: below it a feature is constant, another rule's")

BYTES = 128, 255
"""Range of the largest of many pixels in bytes."""


@rule("unscaled-input")
def unscaled_input(evidence: Evidence) -> Iterator[Finding]:
    """Inputs whose scale is far from 1, or differs between the features a hundredfold.

    Severe from an RMS of 10, or if one feature of a table is 100 times the median one: λ_max of Σx, and with it the
    curvature of the first layer, grows with the square of the scale, and κ of Σx with that of the ratio. Images in
    [0, 1], one-hot and binary features and tokens have ordinary scales. Not reported if a norm comes first, or if the
    model scales them itself, so that what its first layers take is of ordinary size. A note if the first layer has
    weights that were made for such inputs (its outputs have an RMS below 3), or if loss and gradient of standardized
    inputs are the same to 1 %. Not judged where the model's own code makes NaN of finite inputs before the first layer,
    as in a division by a deviation of 0: how it scales them is not known then.
    """
    inspection = evidence.inspection
    if inspection is None or _starts_with_norm(evidence, inspection):
        return
    first = _first_of_numbers(inspection)
    if any(not s.has_finite_input for s in first) and not any(fact.not_finite for fact in inspection.inputs):
        return
    for fact in inspection.inputs:
        if not is_badly_scaled(fact) or _scaled_by_model(evidence, fact, first):
            continue
        largest, median = float(fact.feature_rms.max()), float(fact.feature_rms.median())
        if is_too_large(fact):
            is_adapted = bool(first) and all(map(_fits, first))
            is_far = RMS.is_severe(fact.rms) or fact.is_uneven
            severity = "note" if is_adapted else of_symptom(evidence, is_far=is_far)
            features = f", their features from {number(float(fact.feature_rms.min()))} to {number(largest)}"
            summary = (
                f"the {fact.name} have an RMS of {number(fact.rms)}{features if fact.is_table else ''}, and reach "
                f"{number(fact.reach)}; expected is an RMS of about 1"
            )
        else:
            is_lost = any(s.variation is not None and LOST.is_severe(s.variation) for s in first)
            severity = of_symptom(evidence, is_far=is_lost)
            summary = f"the {fact.name} are no larger than {number(fact.reach)}, so biases outweigh them"
        if inspection.standardized is not None and inspection.standardized.changes_nothing:
            severity = "note"
        numbers: dict[str, float | str] = {"RMS": fact.rms, "largest": fact.reach}
        in_step = isinstance(evidence.problem.loss, TrainingStep) and not fact.is_uneven
        lines = scaling_in_step(evidence.problem, fact.rms) if in_step else ""
        numbers |= {"RMS of the largest feature": largest, "RMS of the median feature": median}
        yield Finding(
            rule="unscaled-input",
            layer=_that_takes_them(first),
            severity=severity,
            basis="measured",
            summary=f"{summary}.",
            evidence=numbers | _counterfactual(inspection),
            reason="The curvature of the first layer grows with the square of the inputs' scale (Σx of huang2020, "
            "section 3), so one rate cannot suit both it and the other layers.",
            treatment="" if lines else "scale-inputs",
            remedy=lines or _scaling(fact),
        )


@rule("unscaled-input")
def outweighed_by_their_mean(evidence: Evidence) -> Iterator[Finding]:
    """Inputs of ordinary size that hardly vary around their mean: by less than a fiftieth of it, in every feature.

    Pixels in [0, 1] that are normalized by the mean and the deviation of bytes are all next to -0.47. Severe if a trial
    does not show that the network trains. Not reported if a norm comes first.
    """
    inspection = evidence.inspection
    if inspection is None or _starts_with_norm(evidence, inspection):
        return
    for fact in inspection.inputs:
        if fact.is_index or fact.is_binary or not fact.has_scale or is_badly_scaled(fact):
            continue
        share = float((fact.feature_std / fact.feature_mean.abs().clamp_min(1e-30)).max())
        if not OFFSET.is_severe(share) or share < CONSTANT.at:
            continue
        yield Finding(
            rule="unscaled-input",
            layer=_that_takes_them(_first_layers(inspection)),
            severity=of_symptom(evidence, is_far=True),
            basis="measured",
            summary=f"the {fact.name} are {number(fact.mean)} ± {number(fact.std)}: their mean is "
            f"{number(abs(fact.mean) / fact.std)} times what varies in them.",
            evidence={"mean": fact.mean, "standard deviation": fact.std, "largest share of a feature": share},
            limits=OFFSET.limits(),
            reason="The first layer gets nearly the same for every example, and has to take the difference of large "
            "numbers to see what differs.",
            treatment="scale-inputs",
            remedy=_scaling(fact),
        )


@rule("unscaled-input")
def unscaled_on_the_way(evidence: Evidence) -> Iterator[Finding]:
    """Inputs of a first layer with an RMS above 4 (severe: 10) where those of the model have ordinary scales.

    A number that the model takes as a whole number, or makes of its inputs, is passed on as it is: a time step from 0
    to 999 next to features of size 1. Not reported if the outputs of the layer have an RMS below 3, or if parameters
    that are no layer's come before it; nor where activations go on growing from layer to layer (`activation-drift`), or
    from call to call of the layer, which then takes what it made itself (`exploding-gradient`).
    """
    inspection, table = evidence.inspection, evidence.conditioning
    if inspection is None or table is None or _starts_with_norm(evidence, inspection) or grows_by_layers(evidence):
        return
    if any(map(is_badly_scaled, inspection.inputs)):
        return
    for signal in _first_layers(inspection):
        x = table[signal.name].x if signal.name in table else None
        rms = math.sqrt(x.trace / x.dimension) if x is not None and x.dimension else 0.0
        if not RMS.is_warning(rms) or _fits(signal) or signal.is_after_parameters or _grows_by_calls(signal):
            continue
        yield Finding(
            rule="unscaled-input",
            layer=signal.name,
            severity=of_symptom(evidence, is_far=RMS.is_severe(rms)),
            basis="measured",
            summary=f"what {signal.name} takes has an RMS of {number(rms)}, although the model's inputs are of "
            "ordinary size; expected is about 1.",
            evidence={"RMS": rms, "RMS of its outputs": signal.rms},
            reason="The curvature of the first layer grows with the square of the inputs' scale (Σx of huang2020, "
            "section 3). A whole number, such as a time step, that is used as a number has its scale, too.",
            remedy=f"# scale what forward() makes of its inputs before {signal.name}: divide a time step by the number "
            "of steps, or embed it",
        )


def _grows_by_calls(signal: Signal) -> bool:
    """Whether the gradient at the first of many calls is far larger than at the last: each takes what the last made."""
    over_time = signal.gradient_over_time
    return over_time is not None and len(over_time) > 2 and float(over_time[0]) > DOMINATES * float(over_time[-1])


def _first_layers(inspection: Inspection) -> list[Signal]:
    """The layers that no other one comes before: one for each branch of a network that has several."""
    layers = [s for s in inspection.signals if s.is_weighted or s.kind in CELLS]
    return [s for s in layers if not s.after] or layers[:1]


def _first_of_numbers(inspection: Inspection) -> list[Signal]:
    """The same where categories are embedded next to numbers: the layers that take both."""
    first = _first_layers(inspection)
    if not first or not all(map(is_embedding, first)):
        return first
    tables = {s.name for s in inspection.signals if is_embedding(s)}
    next_ones = [s for s in inspection.signals if s.is_weighted and s.name not in tables and tables.issuperset(s.after)]
    return next_ones or first


def _that_takes_them(first: list[Signal]) -> str:
    """The layer that takes the inputs, if it is a single one."""
    return first[0].name if len(first) == 1 else ""


def _fits(first: Signal) -> bool:
    """Whether the outputs of a first layer are of ordinary size, so that its weights were made for these inputs."""
    return first.kind not in (*GATED, *CELLS) and not first.not_finite and first.rms < ORDINARY_SIGNAL.at


def _scaled_by_model(evidence: Evidence, fact: TensorFacts, first: list[Signal]) -> bool:
    """Whether all first layers take numbers of ordinary size, and none of a few features alone."""
    table = evidence.conditioning
    taken = [table[s.name].x if table is not None and s.name in table else None for s in first]
    if not all(x is not None and x.dimension for x in taken):
        return False
    known = [x for x in taken if x is not None]
    is_ordinary = all(SMALL_REACH < math.sqrt(x.trace / x.dimension) < RMS.warn for x in known)
    kappas = [x.kappa[0.5] for x in known]
    return bool(known) and is_ordinary and (not fact.is_uneven or max(kappas) < DOMINATES**2)


def _starts_with_norm(evidence: Evidence, inspection: Inspection) -> bool:
    """Whether a norm comes before the first layer with weights."""
    modules = dict(evidence.problem.model.named_modules())
    for signal in inspection.signals:
        module = modules.get(signal.name)
        if signal.is_weighted:
            return False
        if module is not None and is_norm(module):
            return True
    return False


def _counterfactual(inspection: Inspection) -> dict[str, float | str]:
    if inspection.standardized is None or inspection.loss is None:
        return {}
    return {
        "loss as it is": inspection.loss,
        "loss with standardized inputs": inspection.standardized.loss,
        "gradient norm as it is": inspection.standardized.gradient_as_is,
        "gradient norm with standardized inputs": inspection.standardized.gradient,
    }


def _scaling(fact: TensorFacts) -> str:
    if fact.is_whole and fact.low >= 0 and BYTES[0] < fact.high <= BYTES[1]:
        return f"# divide the {fact.name} by 255 where the data set is made"
    return f"# standardize the {fact.name} where the data set is made, by mean and std of the training set"
