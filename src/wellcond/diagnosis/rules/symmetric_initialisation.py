"""symmetric-initialisation: units that start alike, get the same gradient and so stay alike.

Wrong: `nn.init.constant_(layer.weight, 0.1)`. Right: `nn.init.kaiming_normal_(layer.weight)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.weights import Weight
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Threshold

DISTINCT = Threshold(
    "share of a layer's units that differ, by weights and gradients", float("nan"), 0.5, bad="below",
    origin="drawn at random, no two rows are the same to float32's rounding",
)  # fmt: skip


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
        layer = f"layer {w.layer}" if w.layer.isdigit() else w.layer
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
def alike_slices(evidence: Evidence) -> Iterator[Finding]:
    """The same of parameters that the model multiplies by itself, such as the weights of stacked experts, (E, in, out).

    Along one dimension all slices are the same, and so are their gradients: factors of users and items that all start
    at one number stay copies of one factor. Zeros are not reported.
    """
    inspection = evidence.inspection
    same = [] if inspection is None else [w for w in inspection.weights if w.alike and w.gradient and w.rms]
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


def _are_same(w: Weight, *, is_stuck: bool) -> bool:
    """Whether units are the same, and nothing tells them apart."""
    if w.units < 2 or w.distinct is None or w.distinct_rows is None:
        return False
    if w.gradient is None and w.is_trainable:  # as with a NaN: only the weights can be compared
        return w.distinct_rows == 1 and w.rms > 0
    return w.distinct <= int(DISTINCT.severe * w.units) and (bool(w.gradient) or w.rms > 0 or is_stuck)
