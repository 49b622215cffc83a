"""dying-neurons: ReLUs that are off on every example.

Wrong:
    nn.init.constant_(layer.bias, -5.0)
    model = nn.Sequential(layer, nn.ReLU(), head)
Right:
    nn.init.zeros_(layer.bias)
    model = nn.Sequential(layer, nn.ReLU(), head)
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.nonlinearities import RECTIFIERS
from wellcond.diagnosis.reading import start_before
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import limits_of_symptom, of_symptom
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results.quantities import DEAD_SHARE

SHARE = Threshold(
    "share of a layer's ReLUs that are off on all examples", 0.7, 0.95, healthy=("dead units, relu",),
    origin="healthy networks reach 0.56",
)  # fmt: skip
ENOUGH_ROWS = Condition("rows", 64, origin="a unit that is on in one row of ten is off in all 64 once in 800 times")
FEW_UNITS = Condition("units of a layer", 4, origin="of fewer, all must be off: one of three is no share")


@rule("dying-neurons", quantity=DEAD_SHARE)
def dying_neurons(evidence: Evidence) -> Iterator[Finding]:
    """ReLUs that are off on every example: no gradient passes through them, so they stay off.

    Severe from 95 % of a layer's units, a warning from 70 %.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    last = inspection.signals[-1] if inspection.signals else None
    has_learned = evidence.trial is not None and evidence.trial.has_learned
    for signal in inspection.signals:
        if signal.kind not in RECTIFIERS or signal.rows < ENOUGH_ROWS.at or signal.not_finite:
            continue
        dead = evidence.dead_units(signal)
        share = float(dead.double().mean()) if len(dead) else 0.0
        if share < SHARE.warn or (signal.units < FEW_UNITS.at and share < 1):
            continue
        examples = inspection.examples if evidence.neurons is None else evidence.neurons.examples
        yield Finding(
            rule="dying-neurons",
            layer=signal.name,
            severity=of_symptom(evidence, is_far=share >= SHARE.severe),
            basis="measured",
            summary=f"{int(dead.sum())} of the {len(dead)} ReLUs after {signal.name or 'the input'} are off on all "
            f"{examples} examples.",
            evidence={"dead units": float(dead.sum()), "units": float(len(dead)), "share": share},
            limits=limits_of_symptom(evidence, SHARE.limits(), is_far=share >= SHARE.severe),
            reason="Where a ReLU is off its slope is 0, so the weights before it get no gradient (huang2020, figure "
            "XIII).",
            treatment="logits" if signal is last else "leaky-relu" if has_learned else start_before(evidence, signal),
            remedy="# leave out the ReLU after the last layer"
            if signal is last
            else f"# put a leaky ReLU after {signal.name}, and train at a smaller rate on inputs of mean 0",
        )
