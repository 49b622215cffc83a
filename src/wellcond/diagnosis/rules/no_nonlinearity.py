"""no-nonlinearity: layers with nothing nonlinear between them, which together are one linear layer.

Wrong: `self.fc2(self.fc1(x))`. Right: `self.fc2(torch.relu(self.fc1(x)))`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.inspection.inspect import Inspection
from wellcond.diagnosis.reading import is_embedding, listed
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import network_has_learned
from wellcond.diagnosis.threshold import Threshold

LINEAR_FIT = Threshold(
    "linear fit of the targets, in standard deviations of shuffled targets", math.nan, 4.0, bad="below",
    origin="chance exceeds it once in 30,000 fits; data sets of the benchmarks have 5 to 230",
)  # fmt: skip


@rule("no-nonlinearity")
def no_nonlinearity(evidence: Evidence) -> Iterator[Finding]:
    """Two or more layers with nothing nonlinear between them: the graph shows that the network is one affine map.

    Severe if a trial does not learn, and a linear fit predicts the targets no better than chance (or the loss stands
    still at every rate); a warning if that is not known; a note if an affine map is enough. The last operation may be a
    softmax or a sigmoid. A BatchNorm is affine in use. Layers narrower than both ends, as in a linear autoencoder, are
    a product of low rank, which one layer is not.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.output is None or not inspection.output.is_affine:
        return
    layers = [s for s in inspection.weighted() if not is_embedding(s)]
    if len(layers) < 2 or any(s.is_nonlinearity for s in inspection.signals[: inspection.signals.index(layers[-1])]):
        return
    is_bottleneck = min(s.units for s in layers[:-1]) < min(layers[-1].units, _features(inspection))
    yield Finding(
        rule="no-nonlinearity",
        layer=layers[0].name,
        severity="note" if is_bottleneck else _lack(evidence),
        basis="proven",
        summary=f"there is no nonlinearity between {listed([s.name for s in layers])}: together they are one linear "
        "layer.",
        evidence=_probes(evidence) | {"layers": float(len(layers))},
        reason="A product of matrices is a matrix: depth without a nonlinearity adds nothing that can be represented.",
        treatment="nonlinearity",
        remedy="# put a ReLU after every layer but the last",
    )


def _lack(evidence: Evidence) -> Severity:
    """How much an affine map lacks for these data."""
    trial = evidence.trial
    if network_has_learned(evidence):
        return "note"
    if trial is None:
        return "warning"
    if trial.has_learned or any(trial.outcome(each) == "learns" for each in trial.attempts):
        return "note"
    if trial.relation is None:
        return "severe" if trial.fails else "warning"
    if trial.relation.linear > max(LINEAR_FIT.severe, trial.relation.neighbor):
        return "note"
    return "severe" if LINEAR_FIT.is_severe(trial.relation.linear) else "warning"


def _probes(evidence: Evidence) -> dict[str, float | str]:
    relation = None if evidence.trial is None else evidence.trial.relation
    return (
        {} if relation is None else {"nearest neighbor, in σ": relation.neighbor, "linear fit, in σ": relation.linear}
    )


def _features(inspection: Inspection) -> int:
    """How many numbers an example has."""
    return sum(math.prod(fact.shape[1:]) for fact in inspection.inputs)
