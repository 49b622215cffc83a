"""symmetric-initialisation: units that start alike, get the same gradient and so stay alike.

Wrong:
    nn.init.constant_(layer.weight, 0.1)
Right:
    nn.init.kaiming_normal_(layer.weight)
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.weights import Weight
from wellcond.diagnosis.reading import layer_named
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import network_has_learned
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number

DISTINCT = Threshold(
    "share of a layer's units that differ, by weights and gradients", float("nan"), 0.5, bad="below",
    origin="drawn at random, no two rows are the same to float32's rounding",
)  # fmt: skip

ONE_SIDED = Threshold(
    "|mean| of a weight / its RMS", 0.97, float("nan"),
    origin="0 for ordinary initializations, 0.87 for entries drawn between 0 and 1",
)  # fmt: skip
COPIES = Threshold(
    "units that are alike, in each of several groups of the last layer", 2, 3,
    origin="0 for classes, values and labels, whose gradients differ; the number of components for a mixture of zeros",
)  # fmt: skip
ENOUGH = Condition("units of a layer, and inputs of each", 4, origin="of a few numbers all may be alike by chance")


@rule("symmetric-initialisation")
def symmetric_initialization(evidence: Evidence) -> Iterator[Finding]:
    """Units of a hidden layer that have the same weights and get the same gradient, and so stay the same for ever.

    Rows of the weight and of its gradient are compared together, so a zero-initialized last layer, residual branch or
    adapter, whose gradients differ, is not reported. Where all gradients are zero, so that nothing breaks the tie,
    zeros count.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    weights = [w for w in inspection.weights if w.role in ("weight", "recurrent") and w.order is not None]
    last = max((w.order for w in weights if w.order is not None), default=0)
    is_stuck = bool(weights) and not any(w.gradient for w in weights)
    hidden = [w for w in weights if w.order != last or len(weights) == 1]
    same = [w for w in hidden if _are_same(w, is_stuck=is_stuck)]
    are_affine = all(w.role == "weight" for w in same)
    names = ", ".join(repr(w.name) for w in same)
    for w in same:
        layer = layer_named(w.layer)
        yield Finding(
            rule="symmetric-initialisation",
            layer=w.layer,
            severity="severe",
            basis="proven",
            summary=f"all {w.units} units of {layer} are identical, in weights and gradients, and stay identical."
            if w.distinct == 1
            else f"only {w.distinct} of the {w.units} units of {layer} differ in weights and gradients; the "
            "others stay identical.",
            evidence={"units": float(w.units), "different units": float(w.distinct or 0), "RMS of the weight": w.rms},
            reason="Units that start identical and get the same gradient are one unit: the layer is only as wide "
            "as the number of different ones.",
            treatment="he-init" if are_affine else "",
            remedy=f"for name in [{names}]:\n    torch.nn.init.xavier_normal_(model.get_parameter(name))",
        )


@rule("symmetric-initialisation")
def alike_components(evidence: Evidence) -> Iterator[Finding]:
    """A last layer whose units come in groups of copies, in weights and gradients, as the components of a mixture.

    There are two such groups or more with a gradient, as the means and the deviations of all components, all of one
    size, and no unit with a gradient has no copy: severe from three copies on, a warning for two. The units of a
    classifier or of several numbers that start at zero differ by their targets; classes that no example has are alike,
    next to others that are not.
    """
    inspection = evidence.inspection
    weights = (
        [] if inspection is None else [w for w in inspection.weights if w.role == "weight" and w.order is not None]
    )
    last = max((w.order for w in weights if w.order is not None), default=0)
    for w in weights:
        if w.order != last or len(weights) == 1 or not COPIES.is_warning(w.copies):
            continue
        yield Finding(
            rule="symmetric-initialisation",
            layer=w.layer,
            severity="severe" if COPIES.is_severe(w.copies) else "warning",
            basis="proven",
            summary=f"the {w.units} units of {layer_named(w.layer)} come in groups of {w.copies} that are identical, "
            "in weights and gradients, and stay identical.",
            evidence={"units": float(w.units), "copies": float(w.copies), "RMS of the weight": w.rms},
            limits=COPIES.limits(),
            reason="Components of a mixture that start identical get the same gradient, and stay one component.",
            remedy=f"torch.nn.init.xavier_normal_(model.get_parameter({w.name!r}))",
        )


@rule("symmetric-initialisation")
def alike_slices(evidence: Evidence) -> Iterator[Finding]:
    """The same of parameters that the model multiplies by itself, such as the weights of stacked experts, (E, in, out).

    Along one dimension all slices are the same, and so are their gradients: factors of users and items that all start
    at one number stay copies of one factor. Zeros are reported where several parameters of one module are so, as the
    means and the scales of the parts of a mixture.
    """
    inspection = evidence.inspection
    alike = [] if inspection is None else [w for w in inspection.weights if w.alike and w.gradient]
    parts = [(w.layer, w.alike) for w in alike]
    same = [w for w in alike if w.rms or parts.count((w.layer, w.alike)) > 1]
    names = ", ".join(repr(w.name) for w in same)
    for w in same:
        yield Finding(
            rule="symmetric-initialisation",
            layer=w.layer or w.name,
            severity="severe",
            basis="proven",
            summary=f"all {w.alike} slices of {w.name} along one dimension are identical, in values and gradients, and "
            "stay identical.",
            evidence={"units": float(w.alike), "different units": 1.0, "RMS of the weight": w.rms},
            reason="Units that start identical and get the same gradient are one unit: the layer is only as wide "
            "as the number of different ones.",
            remedy=f"for name in [{names}]:\n    torch.nn.init.xavier_normal_(model.get_parameter(name))",
        )


@rule("symmetric-initialisation")
def copies_of_one_layer(evidence: Evidence) -> Iterator[Finding]:
    """Layers next to each other that start as copies of one, and get the same gradient, and so stay copies for ever.

    Experts or heads that are deep copies of one layer, whose gate starts at zero, are one expert. Copies whose
    gradients differ, as the layers of a stack do, are not reported.
    """
    inspection = evidence.inspection
    twins = [] if inspection is None else [w for w in inspection.weights if w.twins]
    if not twins:
        return
    first = max(twins, key=lambda w: len(w.twins))
    names = ", ".join(repr(name) for name in first.twins)
    yield Finding(
        rule="symmetric-initialisation",
        layer=first.layer,
        severity="severe",
        basis="proven",
        summary=f"{layer_named(first.layer)} and {len(first.twins)} other layer{'s' * (len(first.twins) > 1)} are "
        "copies of one, in weights and gradients, and stay copies.",
        evidence={"units": 1.0 + len(first.twins), "different units": 1.0, "RMS of the weight": first.rms},
        reason="Layers that start identical and get the same gradient are one layer, however many there are.",
        remedy=f"for name in [{names}]:\n    torch.nn.init.xavier_normal_(model.get_parameter(name))",
    )


@rule("symmetric-initialisation")
def nearly_alike(evidence: Evidence) -> Iterator[Finding]:
    """Weights whose entries hardly differ, so that all units of a layer are nearly the same.

    The mean of all entries is 0.97 of their RMS or more: they are drawn around 1, say, in place of 0. A warning, and
    severe if a trial does not show that the network trains. Layers of a network that has learned are not judged.
    """
    inspection = evidence.inspection
    if inspection is None or network_has_learned(evidence):
        return
    does_not_train = evidence.trial is not None and not evidence.trial.trains
    for w in inspection.weights:
        is_layer = w.role in ("weight", "recurrent") and w.is_trainable and w.order is not None and w.rms > 0
        if not is_layer or min(w.units, w.fan_in) < ENOUGH.at or _are_same(w, is_stuck=False):
            continue
        is_affine = w.role == "weight"
        if ONE_SIDED.is_warning(abs(w.mean) / w.rms):
            yield Finding(
                rule="symmetric-initialisation",
                layer=w.layer,
                severity="severe" if does_not_train else "warning",
                basis="measured",
                summary=f"all weights of {w.layer or w.name} are nearly the same: their mean is {number(w.mean)}, "
                f"their RMS {number(w.rms)}.",
                evidence={"mean of the weight": w.mean, "RMS of the weight": w.rms, "units": float(w.units)},
                limits=ONE_SIDED.limits(w.rms),
                reason="Units with nearly the same weights give nearly the same outputs, and get nearly the same "
                "gradient: a layer is as wide as its units differ.",
                treatment="he-init" if is_affine else "",
                remedy=f"torch.nn.init.xavier_normal_(model.get_parameter({w.name!r}))",
            )


def _are_same(w: Weight, *, is_stuck: bool) -> bool:
    """Whether units are the same, and nothing tells them apart."""
    if w.units < 2 or w.distinct is None or w.distinct_rows is None:
        return False
    if w.gradient is None and w.is_trainable:  # as with a NaN: only the weights can be compared
        return w.distinct_rows == 1 and w.rms > 0
    return w.distinct <= int(DISTINCT.severe * w.units) and (bool(w.gradient) or w.rms > 0 or is_stuck)
