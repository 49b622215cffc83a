"""last-layer-drift: a last layer whose curvature outweighs that of all others.

Wrong:
    model = nn.Sequential(*residual_blocks, nn.Linear(64, 10))
Right:
    model = nn.Sequential(*residual_blocks, nn.BatchNorm1d(64), nn.Linear(64, 10))
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import Row, number
from wellcond.results.quantities import KRONECKER

RATIO = Threshold(
    "λ_max(Σx)·λ_max(Σ∇h) of the last layer / the largest of the others", 30.0, math.nan,
    origin="it is the curvature of the layer's Fisher block (huang2020, proposition 1): the last layer alone then "
    "sets the stable rate, thirty times below that of the others",
)  # fmt: skip
LAYERS = Condition("layers", 4, origin="in a shallow network one layer always has the largest curvature")


@rule("last-layer-drift")
def last_layer_drift(evidence: Evidence) -> Iterator[Finding]:
    """A last layer whose curvature is thirty times that of every other layer, because of the size of its inputs.

    λ_max(Σx)·λ_max(Σ∇h) is the curvature of the layer's block of the Fisher matrix (huang2020, proposition 1). In
    residual networks without a last norm the input of the last layer grows with depth (huang2020, figure XV).
    """
    table = evidence.conditioning
    if table is None or len(table) < LAYERS.at:
        return
    whole = {name: (layer.x, layer.g) for name, layer in table.items() if layer.x is not None}
    curvature = {name: x.lambda_max * g.lambda_max for name, (x, g) in whole.items() if g is not None}
    received = {name: x.lambda_max for name, (x, g) in whole.items() if g is not None}
    if len(curvature) < LAYERS.at:
        return
    *others, last = curvature
    rest = max(curvature[name] for name in others)
    largest = max(received[name] for name in others)
    if not (rest > 0 and RATIO.is_warning(curvature[last] / rest) and received[last] > RATIO.warn * largest):
        return
    yield Finding(
        rule="last-layer-drift",
        layer=last,
        severity="warning",
        basis="measured",
        summary=f"the curvature of the last layer, {last}, is {number(curvature[last] / rest)} times that of any "
        f"other; λ_max of its inputs is {number(received[last])}.",
        evidence={"λ_max(Σx)": received[last], "curvature over the next": curvature[last] / rest},
        limits=RATIO.limits(rest),
        reason="One layer then sets the stable rate of all (huang2020, section 5: a BatchNorm before the last layer).",
        treatment="last-bn",
        rows=tuple(Row(None, name, KRONECKER.lambda_max, value, "") for name, value in curvature.items()),
    )
