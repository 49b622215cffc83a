"""Rules about inputs and targets: their scale, and whether they vary at all."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.data import TensorFacts
from wellcond.diagnosis.inspection.inspect import Inspection
from wellcond.diagnosis.inspection.signals import CELLS
from wellcond.diagnosis.rule import of_symptom, rule
from wellcond.diagnosis.rules.outputs import FROM_OUTPUTS, NAME
from wellcond.network.norms import is_norm
from wellcond.results import number

LARGE_INPUT = 10.0
"""RMS of inputs. Initializations are made for E x² = 1; at 10 the curvature of the first layer is 100 times as large
and its stable rate a hundredth, since λ_max of Σx grows with the square. Pixels in [0, 1] have 0.1 to 0.6, standardized
data 1, raw pixels some 130."""
LARGER_INPUT = 4.0
"""RMS from which it costs speed: a sixteenth of the rate."""
DOMINANCE = 100.0
"""RMS of the largest feature over that of the median one; κ of Σx is then 10⁴ or more by the scales alone."""
ORDINARY_SIGNAL = 3.0
"""RMS of what the first layer makes of the inputs: if it is no larger, the weights have been made for these inputs."""
BOUNDED = ("LSTM", "GRU", "RNN")
"""Layers whose outputs are never above 1: that they are small says nothing."""
SMALL_INPUT = 0.05
"""Largest |x|, below which biases outweigh inputs."""
LARGE_TARGET = 30.0
"""RMS of targets that a fresh network's outputs, of size 1, have to grow to. The squared error's gradient is as many
times larger than that of standardized targets."""
LARGER_TARGET = 10.0
"""RMS from which it costs speed."""
CONSTANT_SHARE = 0.5
"""Of the features, above which it is worth a warning in a table; a third of MNIST's pixels never vary."""
ENOUGH_EXAMPLES = 32
"""To say of a feature that it never varies, or of labels that they are sorted."""

FROM_SCALE = (
    "exploding-gradient", "vanishing-gradient", "saturated-activation", "saturated-output", "dying-neurons",
    "full-neurons", "ill-conditioned-input", "activation-drift", "bad-initialisation", "rank-collapse",
    "weight-domination", "learning-rate-too-high", "learning-rate-too-low", "non-finite", "diverging",
    "loss-not-decreasing", "last-layer-drift", "labels-unrelated",
)  # fmt: skip
"""What inputs or targets of another scale make."""


@rule("unscaled-input", explains=(*FROM_SCALE, "constant-feature"))
def unscaled_input(evidence: Evidence) -> Iterator[Finding]:
    """Inputs whose scale is far from 1, or differs between the features a hundredfold.

    Severe from an RMS of 10, or where one feature of a table is 100 times the median one: λ_max of Σx, and with it the
    curvature of the first layer, grows with the square of the scale, and κ of Σx with that of the ratio. Images in
    [0, 1], one-hot and binary features and tokens are of ordinary scale. A norm in front makes it nothing, and a first
    layer whose weights are made for such inputs (its outputs have an RMS below 3) no more than a note.
    """
    inspection = evidence.inspection
    if inspection is None or _starts_with_norm(evidence, inspection):
        return
    first = next((s for s in inspection.signals if s.is_weighted or s.kind in CELLS), None)
    for fact in inspection.inputs:
        if fact.is_index or not fact.features or fact.is_binary or fact.is_one_hot:
            continue
        largest, median = float(fact.feature_rms.max()), float(fact.feature_rms.median())
        is_table = len(fact.shape) == 2 and fact.features > 1
        ratio = largest / median if median > 0 else math.inf
        dominates = is_table and ratio > DOMINANCE and fact.rms > 2
        reach = max(abs(fact.low), abs(fact.high))
        if fact.rms > LARGER_INPUT or dominates:
            is_adapted = first is not None and first.kind not in (*BOUNDED, *CELLS) and first.rms < ORDINARY_SIGNAL
            is_far = fact.rms > LARGE_INPUT or dominates
            severity = "note" if is_adapted else of_symptom(evidence, is_far=is_far)
            spread = f", and its features from {number(float(fact.feature_rms.min()))} to {number(largest)}"
            summary = (
                f"the {fact.name} reach {number(reach)} with an RMS of {number(fact.rms)}"
                f"{spread if is_table else ''}, where weights are made for about 1"
            )
        elif 0 < reach < SMALL_INPUT:
            is_lost = first is not None and first.variation is not None and first.variation < 1e-3
            severity = of_symptom(evidence, is_far=is_lost)
            summary = f"the {fact.name} are no larger than {number(reach)}, so biases outweigh them"
        else:
            continue
        numbers: dict[str, float | str] = {"RMS": fact.rms, "largest": reach}
        numbers |= {"RMS of the largest feature": largest, "RMS of the median feature": median}
        yield Finding(
            rule="unscaled-input",
            layer="",
            severity=severity,
            confidence=0.95 if fact.rms > LARGE_INPUT else 0.85,
            summary=f"{summary}.",
            evidence=numbers | _counterfactual(inspection),
            reason="The curvature of the first layer grows with the square of the inputs' scale (Σx of huang2020, section 3), "
            "so one rate cannot suit both it and the other layers.",
            remedy=_scaling(fact),
        )


def _starts_with_norm(evidence: Evidence, inspection: Inspection) -> bool:
    """Whether the first layer that the data meet normalizes them."""
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
    if fact.is_whole and fact.low >= 0 and 128 < fact.high <= 255:
        return f"{fact.name} = {fact.name} / 255"
    dims = tuple(d for d in range(len(fact.shape)) if d != fact.feature_dim)
    over = "0" if dims == (0,) else str(dims)
    keep = "" if over == "0" else ", keepdim=True"
    return (
        f"mean, std = x.mean({over}{keep}), x.std({over}{keep}).clamp_min(1e-6)  # x: all training {fact.name}\n"
        f"{fact.name} = ({fact.name} - mean) / std"
    )


@rule("unscaled-target", explains=FROM_SCALE)
def unscaled_target(evidence: Evidence) -> Iterator[Finding]:
    """Targets of a regression that are far larger than what the network gives.

    Severe from an RMS of 30 while the outputs are below a fifth of that: the gradient of a squared error is
    proportional to it, and outputs of order 1 have to grow first. A network that gives such values already, trained or
    with a scale of its own, is none of it. Where there are several targets, each is compared with the outputs of its
    size.
    """
    inspection = evidence.inspection
    output = None if inspection is None else inspection.output
    if inspection is None or (output is not None and output.loss_kind not in ("squared", "other")):
        return
    for fact in inspection.targets:
        alike = [each for each in inspection.outputs if math.prod(each.shape) == math.prod(fact.shape)]
        given = min(alike, key=lambda each: each.shape != fact.shape, default=None)
        if fact.is_index or fact.is_binary or not fact.features or given is None:
            continue
        is_small_beside = not given.rms > 0.2 * fact.rms
        if fact.rms > LARGER_TARGET and is_small_beside:
            severity = of_symptom(evidence, is_far=fact.rms > LARGE_TARGET)
            summary = f"the {fact.name} have an RMS of {number(fact.rms)}, the outputs {number(given.rms)}"
        elif 0 < fact.std < 0.01 and given.std > 10 * fact.std and fact.rms < 0.1:
            severity = of_symptom(evidence, is_far=False)
            summary = f"the {fact.name} vary by {number(fact.std)}, the outputs of the network by {number(given.std)}"
        else:
            continue
        yield Finding(
            rule="unscaled-target",
            layer="",
            severity=severity,
            confidence=0.9,
            summary=f"{summary}: standardize the targets.",
            evidence={"RMS of targets": fact.rms, "std of targets": fact.std, "RMS of outputs": given.rms},
            reason="The gradient of a squared error is proportional to the distance of outputs from targets, which a fresh "
            "network's outputs, of size 1, must first cover.",
            remedy=f"mean, std = y.mean(0), y.std(0)  # y: all training {fact.name}\n"
            f"{fact.name} = ({fact.name} - mean) / std  # and predictions back: outputs * std + mean",
        )


@rule("constant-feature", explains=("rank-collapse", "labels-unrelated", "loss-not-decreasing"))
def constant_feature(evidence: Evidence) -> Iterator[Finding]:
    """Inputs, or some of their features, that never vary.

    Severe where all examples are the same. A warning where more than half of a table's features never vary over at
    least 32 examples; pixels that are always 0 are ordinary and no more than a note.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.examples < ENOUGH_EXAMPLES:
        return
    if inspection.inputs and all(_never_varies(fact) for fact in inspection.inputs):
        yield Finding(
            rule="constant-feature",
            layer="",
            severity="severe",
            confidence=0.98,
            summary=f"all {inspection.examples} examples have the same inputs, so the outputs can be no more than one constant.",
            evidence={"examples": float(inspection.examples)},
            reason="What does not vary cannot be told apart.",
            remedy="print(inputs.std(0))  # zero: look at what the data set returns",
        )
        return
    for fact in inspection.inputs:
        constant = fact.constant
        if not len(constant) or fact.features < 2 or len(fact.shape) != 2:
            continue
        are_zero = bool((fact.feature_low[constant] == 0).all())
        share = len(constant) / fact.features
        names = ", ".join(map(str, constant[:5].tolist())) + (" …" if len(constant) > 5 else "")
        yield Finding(
            rule="constant-feature",
            layer="",
            severity="warning" if share > CONSTANT_SHARE and not are_zero else "note",
            confidence=0.9,
            summary=f"{len(constant)} of {fact.features} features of the {fact.name} never vary (columns {names}).",
            evidence={"constant features": float(len(constant)), "features": float(fact.features)},
            reason="A feature that never varies adds a constant to the first layer, which its bias has already.",
            remedy=f"varies = x.std(0) > 0  # x: all training {fact.name}\n{fact.name} = {fact.name}[:, varies]",
        )


def _never_varies(fact: TensorFacts) -> bool:
    return fact.is_same_within_batches and (fact.is_index or bool((fact.feature_low == fact.feature_high).all()))


@rule("sorted-batches", explains=("loss-not-decreasing", "batchnorm-mode-gap", "learning-rate-too-high"))
def sorted_batches(evidence: Evidence) -> Iterator[Finding]:
    """Batches in which all labels are the same, while other batches have others: the data are sorted and not shuffled.

    By chance, 8 examples of one class out of two are seen once in 128 batches, and at least two batches are asked for.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.batch_size < 8 or inspection.examples < 2 * inspection.batch_size:
        return
    for fact in inspection.targets:
        if fact.is_index and fact.is_same_within_batches and fact.low < fact.high:
            yield Finding(
                rule="sorted-batches",
                layer="",
                severity="severe",
                confidence=0.95,
                summary=f"every batch of {inspection.batch_size} has labels of one class only, and other batches have others.",
                evidence={
                    "batch size": float(inspection.batch_size),
                    "lowest label": fact.low,
                    "highest label": fact.high,
                },
                reason="Every step then forgets the other classes: the mini-batch gradient is no estimate of the whole one.",
                remedy="loader = DataLoader(dataset, batch_size=batch_size, shuffle=True)",
            )


@rule(NAME, explains=FROM_OUTPUTS)
def turned_by_a_view(evidence: Evidence) -> Iterator[Finding]:
    """A view or reshape where a transposition was meant: (N, T, C) read as (N, C, T).

    Both shapes have the same dimensions in another order, so the numbers of one step are spread over several. Severe if
    it makes the outputs themselves, whose dimensions the loss reads, or where a trial does not show that the network
    trains; elsewhere dimensions may be of one size by chance, and a network that trains is left alone.
    """
    inspection, trial = evidence.inspection, evidence.trial
    if inspection is None or not inspection.turned:
        return
    outputs = {fact.shape for fact in inspection.outputs}
    at_end = [pair for pair in inspection.turned if pair[1] in outputs]
    if not at_end and (trial is None or trial.trains):
        return
    before, after = (at_end or inspection.turned)[0]
    layers = inspection.weighted()
    order = _order(before, after)
    yield Finding(
        rule=NAME,
        layer=layers[-1].name if at_end and layers else "",
        severity="severe",
        confidence=0.95 if at_end else 0.75,
        summary=f"a view reads {list(before)} as {list(after)}, which keeps the numbers where they are in memory: those of one "
        "position end up in several.",
        evidence={"shape before": str(list(before)), "shape after": str(list(after))},
        reason="view and reshape move no numbers; only transpose and permute put dimensions in another order.",
        remedy=f"x = x.permute({', '.join(map(str, order))})  # instead of x.view({', '.join(map(str, after))})",
    )


def _order(before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    """Which dimension each one of the result is; those of one size stay in their order."""
    left = list(range(len(before)))
    found = []
    for size in after:
        found.append(next((d for d in left if before[d] == size), left[0] if left else 0))
        left = [d for d in left if d != found[-1]]
    return found


@rule("model-fails", explains=FROM_OUTPUTS)
def model_fails(evidence: Evidence) -> Iterator[Finding]:
    """A model that raises on some of its own data: nothing else can be said of it."""
    inspection = evidence.inspection
    if inspection is None or not inspection.forward_error:
        return
    yield Finding(
        rule="model-fails",
        layer="",
        severity="severe",
        confidence=0.95,
        summary=f"the model fails on its data: {inspection.forward_error.rstrip('.')}.",
        evidence={"examples that passed": float(sum(fact.shape[0] for fact in inspection.outputs[:1]))},
        reason="A batch does not fit the model in shape, type or range, or forward() raises after some calls.",
        remedy="for inputs, _ in loader: model(inputs)  # the first that fails; then print(inputs.shape, inputs.dtype)",
    )
