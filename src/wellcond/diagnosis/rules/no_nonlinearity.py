"""no-nonlinearity: layers with nothing nonlinear between them, which together are one linear layer.

Wrong:
    h = self.fc1(x)
    F.relu(h)  # the result is not used
    return self.fc2(h)
Right:
    h = F.relu(self.fc1(x))
    return self.fc2(h)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.diagnosis.probes.linearity import Linearity
from wellcond.diagnosis.reading import is_embedding, listed
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import network_has_learned
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import HALF, Trial
from wellcond.results.quantities import CURVATURE_BEFORE

LINEAR_FIT = Threshold(
    "linear fit of the targets, in standard deviations of shuffled targets", math.nan, 4.0, bad="below",
    origin="chance exceeds it once in 30,000 fits; data sets of the benchmarks have 5 to 230",
)  # fmt: skip

CURVED = Threshold(
    "what a linear fit gets wrong / what the nearest neighbor or a smooth fit does", math.nan, 2.0,
    origin="1 on a linear function with noise; 3 and more on spirals, rings and products",
)  # fmt: skip
MANY_LAYERS = Condition("layers of a product", 4, origin="a linear autoencoder has two, and three with a layer between")


@rule("no-nonlinearity", quantity=CURVATURE_BEFORE)
def no_nonlinearity(evidence: Evidence) -> Iterator[Finding]:
    """Two or more layers with nothing nonlinear between them: the network is one affine map.

    Its graph shows it, or midpoints of examples, which every stretch between layers maps to midpoints: the result of an
    activation may be dropped, or the activation change nothing here, like LeakyReLU(1.0) or a clamp that is never
    reached. Severe if a trial does not learn and a linear fit predicts the targets no better than chance (or the loss
    stands still at every rate); and if no run gets below half of a constant's loss, while a linear fit gets more than
    half of what a constant does wrong, and twice as much as another fit. A warning if that is not known, if an
    activation is called in vain, or if a layer is wider than both ends, which is of no use in a product, unless a
    linear fit is the best; otherwise a note if an affine map is enough. The last operation may be a softmax or a
    sigmoid. A BatchNorm is affine in use. Layers narrower than both ends, as in a linear autoencoder, are a product of
    low rank, which one layer is not: a note, but a warning from four layers on, of which two would do. ReLUs that are
    always on or off are other rules'; and branches with a gate of zero, as in ReZero, are bent once it opens.
    """
    inspection = evidence.inspection
    if inspection is None or _are_full(inspection):
        return
    layers = [s for s in inspection.weighted() if not is_embedding(s)]
    names = [s.name for s in layers]
    functions = _between(inspection, layers)
    is_shown = inspection.output is not None and inspection.output.is_affine and not functions and len(names) > 1
    if not is_shown:
        linearity = None if evidence.behavior is None else evidence.behavior.linearity
        is_gated = any(w.rms == 0 and w.role == "other" and w.is_trainable for w in inspection.weights)
        if linearity is None or not linearity.is_affine or (functions and is_gated):
            return
        names = [name for name in linearity.before if name not in map(_name, filter(is_embedding, inspection.signals))]
    if len(names) < 2:
        return
    is_bottleneck = len(layers) > 1 and min(s.units for s in layers[:-1]) < min(layers[-1].units, _features(inspection))
    is_surplus = is_bottleneck and len(layers) >= MANY_LAYERS.at and not network_has_learned(evidence)
    lack = _lack(evidence)
    is_wider = len(layers) > 1 and max(s.units for s in layers[:-1]) > max(layers[-1].units, _features(inspection))
    relation = None if evidence.trial is None else evidence.trial.relation
    is_enough = relation is not None and relation.linear > relation.neighbor
    # a linear fit of all inputs says nothing of one through a few units
    is_meant = not network_has_learned(evidence) and (bool(functions) or is_surplus or (is_wider and not is_enough))
    but = (
        f" The {functions[0]} makes no difference: it changes nothing here, or its result is not used."
        if functions
        else ""
    )
    yield Finding(
        rule="no-nonlinearity",
        layer=names[0],
        severity="note" if is_bottleneck and not is_surplus else "warning" if is_meant and lack == "note" else lack,
        basis="proven",
        summary=f"there is no nonlinearity between {listed(names)}: together they are one linear layer.{but}",
        evidence=_probes(evidence) | {"layers": float(len(names))},
        reason="A product of matrices is a matrix: depth without a nonlinearity adds nothing that can be represented.",
        treatment="nonlinearity",
        remedy="# put a ReLU after every layer but the last, and use what it returns: h = torch.relu(h)",
    )


@rule("no-nonlinearity", quantity=CURVATURE_BEFORE)
def lost_between_two(evidence: Evidence) -> Iterator[Finding]:
    """Two linear layers with nothing nonlinear between them, in a network that has nonlinearities elsewhere.

    By midpoints of examples. A warning if the first is wider than both ends, which is of no use in a product, or if the
    trial shows that the network does not train, but fits a handful of examples; otherwise a note. Not reported: a first
    layer that is narrower than both ends (a product of low rank), convolutions over several positions or with groups,
    whose product is none of their kind, outputs that several layers read, such as queries and keys, and layers with a
    module between them that has a matrix of its own, such as a recurrent layer.
    """
    inspection, trial = evidence.inspection, evidence.trial
    linearity = None if evidence.behavior is None else evidence.behavior.linearity
    if inspection is None or linearity is None or linearity.is_affine or _are_full(inspection):
        return
    if inspection.output is not None and inspection.output.is_affine:
        return
    signals = {s.name: s for s in inspection.weighted()}
    fan_in = {w.layer: w.fan_in for w in inspection.weights if w.role == "weight"}
    readers = [before for s in signals.values() for before in s.after]
    for second in signals.values():
        if len(second.after) != 1 or not linearity.is_straight(second.name) or second.kind != "Linear":
            continue
        first = signals[second.after[0]]
        between = _from_to(linearity, first, second)
        are_linear = first.kind == "Linear" and bool(between) and (linearity.layers & signals.keys()) >= between
        ends = fan_in.get(first.name, 0), second.units
        if not are_linear:
            continue
        if readers.count(first.name) > 1 or first.units < min(ends):
            continue
        fails = trial is not None and trial.trains is False and trial.few is not None and trial.few.is_fitted
        yield Finding(
            rule="no-nonlinearity",
            layer=first.name,
            severity="warning" if first.units > max(ends) or fails else "note",
            basis="proven",
            summary=f"there is no nonlinearity between {first.name} and {second.name}: together they are one linear "
            "layer.",
            evidence={"units between": float(first.units), "inputs": float(ends[0]), "outputs": float(ends[1])},
            reason="A product of two matrices is a matrix: the layer between adds nothing that can be represented.",
            remedy=f"# put an activation between {first.name} and {second.name}, and use what it returns",
        )


def _from_to(linearity: Linearity, first: Signal, second: Signal) -> set[str]:
    """Two layers and all called between them: blocks with weights of their own, as on a residual stream, may bend."""
    names = list(linearity.before)
    return set(names[names.index(first.name) : names.index(second.name) + 1]) if first.name in names else set()


def _name(signal: Signal) -> str:
    return signal.name


def _are_full(inspection: Inspection) -> bool:
    """Whether every ReLU of some layer is always on or always off, which is another rule's."""
    return any(len(s.full) and bool((s.full | s.dead).all()) for s in inspection.signals)


def _between(inspection: Inspection, layers: list[Signal]) -> list[str]:
    """Kinds of the nonlinearities that are called before the last layer."""
    if not layers:
        return []
    before = inspection.signals[: inspection.signals.index(layers[-1])]
    return [s.kind for s in before if s.is_nonlinearity]


def _lack(evidence: Evidence) -> Severity:
    """How much an affine map lacks for these data."""
    trial = evidence.trial
    if network_has_learned(evidence):
        return "note"
    if trial is None:
        return "warning"
    if _is_curved(trial):
        return "severe"
    if trial.has_learned or any(trial.outcome(each) == "learns" for each in trial.attempts):
        return "note"
    if trial.relation is None:
        return "severe" if trial.fails else "warning"
    if trial.relation.linear > max(LINEAR_FIT.severe, trial.relation.neighbor):
        return "note"
    return "severe" if LINEAR_FIT.is_severe(trial.relation.linear) else "warning"


def _is_curved(trial: Trial) -> bool:
    """Whether a linear fit, like every run, leaves half of what a constant gets wrong, and another fit does not."""
    relation, constant = trial.relation, trial.constant
    if relation is None or constant is None or trial.has_learned:
        return False
    is_unlearned = all(not each.loss < HALF * constant for each in trial.attempts)
    lacks = relation.linear_error > max(HALF, CURVED.severe * relation.other_error)
    return is_unlearned and lacks


def _probes(evidence: Evidence) -> dict[str, float | str]:
    relation = None if evidence.trial is None else evidence.trial.relation
    return (
        {} if relation is None else {"nearest neighbor, in σ": relation.neighbor, "linear fit, in σ": relation.linear}
    )


def _features(inspection: Inspection) -> int:
    """How many numbers an example has."""
    return sum(math.prod(fact.shape[1:]) for fact in inspection.inputs)
