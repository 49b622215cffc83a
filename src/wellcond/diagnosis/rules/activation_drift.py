"""activation-drift: activations that grow or shrink with depth.

Wrong: twenty plain layers whose weights scale every signal by 0.7. Right: weights drawn for their fan-in, or norms.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import is_embedding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import of_symptom
from wellcond.diagnosis.threshold import Threshold
from wellcond.network.norms import is_norm
from wellcond.results import number
from wellcond.results.quantities import SIGNAL_RMS

RATIO = Threshold(
    "largest RMS of a layer's outputs / smallest", 2e2, 1e6, healthy=("RMS: largest / smallest layer",),
    origin="healthy networks have 5 in the median and reach 194, in a trained one; float32 has 7 digits",
)  # fmt: skip


@rule("activation-drift", quantity=SIGNAL_RMS)
def activation_drift(evidence: Evidence) -> Iterator[Finding]:
    """Activations whose scale drifts with depth: the RMS of one layer's outputs is 200 times another's.

    Severe from a million-fold, or if the network trains at no rate that was tried.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    layers = [s for s in inspection.weighted() if s.rms > 0 and math.isfinite(s.rms) and not is_embedding(s)]
    if len(layers) < 2:
        return
    low, high = min(layers, key=lambda s: s.rms), max(layers, key=lambda s: s.rms)
    ratio = high.rms / low.rms
    if not RATIO.is_warning(ratio):
        return
    grows = layers.index(high) > layers.index(low)
    first, last = (low, high) if grows else (high, low)
    stands_still = evidence.trial is not None and evidence.trial.stands_still
    has_norms = any(is_norm(module) for module in evidence.problem.model.modules())
    yield Finding(
        rule="activation-drift",
        layer=last.name,
        severity=of_symptom(evidence, is_far=RATIO.is_severe(ratio) or stands_still),
        basis="measured",
        summary=f"activations {'grow' if grows else 'shrink'} {number(ratio)}-fold from {first.name} (RMS "
        f"{number(first.rms)}) to {last.name} (RMS {number(last.rms)})."
        + (" The loss stays where it is at every rate that was tried." if stands_still else ""),
        evidence={"smallest RMS": low.rms, "largest RMS": high.rms},
        limits=RATIO.limits(low.rms),
        reason="λ_max of Σx, and with it the curvature of the next layer, grows with the square of the activations "
        "(huang2020, section 3)."
        if grows
        else "The gradient of the next layer's weights shrinks with the activations, and its curvature with their "
        "square (huang2020, section 3).",
        treatment="he-init" if has_norms or grows else "batchnorm",
    )
