"""activation-drift: activations that grow or shrink with depth.

Wrong:
    for layer in layers:
        nn.init.normal_(layer.weight, std=0.05)  # each multiplies its input by 0.7
Right:
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight)  # or a norm after every layer

Wrong:
    x = torch.relu(adjacency @ layer(x))  # in every layer, a sum over twenty neighbors
Right:
    x = torch.relu(adjacency @ layer(x) / adjacency.sum(1, keepdim=True))
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.growth import FACTOR, growing_layers, grows_by_layers
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.diagnosis.reading import is_embedding, layer_named
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import limits_of_symptom, of_symptom, trains_at_no_rate
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import OUT_OF_HAND
from wellcond.network.norms import is_norm
from wellcond.results import number
from wellcond.results.quantities import SIGNAL_RMS

RATIO = Threshold(
    "largest RMS of a layer's outputs / smallest", 2e2, 1e6, healthy=("RMS: largest / smallest layer",),
    origin="healthy networks have 5 in the median and reach 194, in a trained one; float32 has 7 digits",
)  # fmt: skip

GROWTH = Threshold(
    "growth of a layer's outputs beyond its weights'", FACTOR, math.nan,
    origin="of 3,000 small set-ups, sound or with other faults, none has two layers above 2 on one path; sums over 10 "
    "to 30 neighbors have 3.5 to 14",
)  # fmt: skip
FAR_ABOVE = Condition(
    "loss / loss of the best constant", 3.0, origin="95 % of healthy networks start below 1.43, as for "
    "bad-initialisation",
)  # fmt: skip


@rule("activation-drift", quantity=SIGNAL_RMS)
def activation_drift(evidence: Evidence) -> Iterator[Finding]:
    """Activations whose scale drifts with depth: the RMS of one layer's outputs is 200 times that of one before it.

    Severe from a million-fold, or if the network trains at no rate that was tried. Compared are layers that are
    trained, along one path: where paths meet, the one with the largest activations, which sets the scale of the sum. A
    last layer that starts small, as the head of a policy does, is no drift unless the loss stays where it is.
    """
    inspection = evidence.inspection
    if inspection is None or grows_by_layers(evidence):
        return
    stands_still = evidence.trial is not None and evidence.trial.stands_still
    pairs = [pair for pair in _along_paths(inspection) if stands_still or not _is_small_head(inspection, *pair)]
    if not pairs:
        return
    first, last = max(pairs, key=lambda pair: abs(math.log(pair[1].rms / pair[0].rms)))
    grows = last.rms > first.rms
    low, high = (first, last) if grows else (last, first)
    ratio = high.rms / low.rms
    if not RATIO.is_warning(ratio):
        return
    is_far = RATIO.is_severe(ratio) or stands_still
    is_untrained = not is_far and trains_at_no_rate(evidence)
    has_norms = any(is_norm(module) for module in evidence.problem.model.modules())
    yield Finding(
        rule="activation-drift",
        layer=_where(inspection, first, last) if grows else last.name,
        severity=of_symptom(evidence, is_far=is_far),
        basis="measured",
        summary=f"activations {'grow' if grows else 'shrink'} {number(ratio)}-fold from {first.name} (RMS "
        f"{number(first.rms)}) to {last.name} (RMS {number(last.rms)})."
        + (" The loss stays where it is at every rate that was tried." if stands_still else "")
        + (" The network trains at no rate that was tried." if is_untrained else ""),
        evidence={"smallest RMS": low.rms, "largest RMS": high.rms},
        limits=limits_of_symptom(evidence, RATIO.limits(low.rms), is_far=RATIO.is_severe(ratio)),
        reason="λ_max of Σx, and with it the curvature of the next layer, grows with the square of the activations "
        "(huang2020, section 3)."
        if grows
        else "The gradient of the next layer's weights shrinks with the activations, and its curvature with their "
        "square (huang2020, section 3).",
        treatment="unit-signals" if has_norms or grows else "batchnorm",
    )


@rule("activation-drift", quantity=SIGNAL_RMS)
def grows_layer_by_layer(evidence: Evidence) -> Iterator[Finding]:
    """Outputs that grow threefold or more in each of several layers, beyond what the weights of each make of its input.

    A sum over neighbors, positions or copies that is not divided by their number, layer after layer. Severe if the loss
    starts at three times a constant's and the trial does not show that the network trains, or if the loss shoots up to
    twice what it was. Not reported if the network trains well without that.
    """
    inspection, trial = evidence.inspection, evidence.trial
    if inspection is None or not grows_by_layers(evidence):
        return
    steps = growing_layers(inspection)
    first, last = steps[0].before, steps[-1].layer
    least, most = (f"{choose(step.ratio for step in steps):.2g}" for choose in (min, max))
    shoots_up = trial is not None and trial.spike > OUT_OF_HAND
    starts_high = trial is not None and trial.loss > FAR_ABOVE.at * (trial.constant or math.inf) and not trial.trains
    yield Finding(
        rule="activation-drift",
        layer=steps[0].layer.name,
        severity=of_symptom(evidence, is_far=shoots_up or starts_high),
        basis="tried" if shoots_up else "measured",
        summary=f"activations grow {least}- to {most}-fold in each of {len(steps)} layers, from "
        f"{layer_named(first.name)} (RMS {number(first.rms)}) to {layer_named(last.name)} (RMS {number(last.rms)}), "
        f"although their weights scale signals by no more than {max(step.gain for step in steps):.2g}: what comes "
        "between the layers makes them grow." + (" The loss shoots up at once." if shoots_up else ""),
        evidence={
            "smallest RMS": first.rms,
            "largest RMS": last.rms,
            "least growth beyond the weights'": min(step.unexplained for step in steps),
        },
        reason="A sum over many neighbors or positions multiplies what they have in common by their number, in every "
        "layer, and curvature grows with the square of the activations (huang2020, section 3).",
        remedy="# divide sums over neighbors or positions by their number, as adjacency / adjacency.sum(1, "
        "keepdim=True), or add a norm after every layer",
    )


def _where(inspection: Inspection, first: Signal, last: Signal) -> str:
    """The module with matrices of its own, between two layers, where the limit is first exceeded; else the second."""
    own = {w.layer for w in inspection.weights if w.role == "other" and len(w.shape) > 1}
    between = inspection.signals[inspection.signals.index(first) : inspection.signals.index(last)]
    return next((s.name for s in between if s.name in own and RATIO.is_warning(s.rms / first.rms)), last.name)


def _is_small_head(inspection: Inspection, before: Signal, last: Signal) -> bool:
    """Whether the second layer, which none comes after, makes its outputs small itself, for the larger part."""
    if last.rms > before.rms or any(last.name in each.after for each in inspection.weighted()):
        return False
    taken = max((each.rms for each in inspection.weighted() if each.name in last.after), default=0.0)
    return taken > math.sqrt(before.rms * last.rms)


def _along_paths(inspection: Inspection) -> Iterator[tuple[Signal, Signal]]:
    """Trained layers, each with those before it on the path of the largest activations."""
    trained = {w.layer for w in inspection.weights if w.is_trainable and w.role in ("weight", "recurrent")}
    signals = {s.name: s for s in inspection.weighted()}
    counted = {name for name, s in signals.items() if name in trained and 0 < s.rms < math.inf and not is_embedding(s)}
    for name in counted:
        before, passed = signals[name], {name}
        while above := [signals[each] for each in before.after if each in signals and each not in passed]:
            before = max(above, key=lambda s: s.rms)
            passed.add(before.name)
            if before.name in counted:
                yield before, signals[name]
