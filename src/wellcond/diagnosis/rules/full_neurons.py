"""full-neurons: ReLUs that are on for every example, so that the layer is linear on these data.

Wrong:
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), head)  # on inputs around 1000
Right:
    model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), head)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import start_before
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import of_symptom
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results.quantities import FULL_SHARE

SHARE = Threshold(
    "share of a layer's ReLUs that are on for all examples", 0.95, math.nan, healthy=("full units, relu",),
    origin="healthy networks reach 0.45",
)  # fmt: skip
ENOUGH_ROWS = Condition("rows", 64, origin="a unit that is off in one row of ten is on in all 64 once in 800 times")
FEW_UNITS = Condition("units of a layer", 4, origin="three units that are on may be chance")


@rule("full-neurons", quantity=FULL_SHARE)
def full_neurons(evidence: Evidence) -> Iterator[Finding]:
    """ReLUs that are on for every example: on these data the layer is linear.

    A note if one layer is, a warning if all are, severe if such a network trains at no rate.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    layers = [
        s
        for s in inspection.signals
        if s.is_nonlinearity and s.kind == "relu" and s.rows >= ENOUGH_ROWS.at and len(s.full)
    ]
    shares = {s.name: float(s.full.double().mean()) for s in layers}
    for signal in layers:
        if shares[signal.name] >= SHARE.warn and signal.units >= FEW_UNITS.at:
            yield Finding(
                rule="full-neurons",
                layer=signal.name,
                severity="note" if min(shares.values()) < SHARE.warn else of_symptom(evidence, is_far=False),
                basis="measured",
                summary=f"{int(signal.full.sum())} of the {signal.units} ReLUs after {signal.name or 'the input'} are "
                f"on for all {inspection.examples} examples, so the layer is linear.",
                evidence={"full units": float(signal.full.sum()), "units": float(signal.units)},
                limits=SHARE.limits(),
                reason="A ReLU that is always on is the identity (huang2020, figure XIII).",
                treatment="batchnorm"
                if evidence.trial is not None and evidence.trial.has_learned
                else start_before(evidence, signal),
            )
