"""Weights and biases whose scale does not fit their inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.diagnosis.reading import is_trained, normalized_layers, spread
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.bad_initialisation.sizes import LARGE_GAIN, LARGE_SIGNAL, OWN_GAIN
from wellcond.diagnosis.severity import of_symptom
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number

SMALL_GAIN = Threshold(
    "rms·√fan_in of a weight", 0.05, 0.01, bad="below", healthy=("gain, weight", "gain, recurrent"),
    origin="torch starts at 0.58, N(0, 0.02²) at 0.14 for 48 inputs; healthy networks go down to 0.079",
)  # fmt: skip
BIAS = Threshold(
    "RMS of a bias / standard deviation of its layer's outputs", math.nan, 5.0,
    origin="one normal number in 3 million is five standard deviations away: a unit never changes sides",
)  # fmt: skip
LARGE_BIAS = Condition("RMS of a bias", 1.0, origin="activations have an RMS of about 1")
ONE_SIGN = Condition(
    "|mean| / RMS of a weight", 0.5, origin="√3/2 for numbers drawn from 0 to 1, 1/√n for n numbers drawn around 0"
)
FLAT = Condition(
    "share of flat values of the tanhs and sigmoids in it", 0.5,
    origin="the medians of healthy networks are 0.23 (tanh) and 0.33 (sigmoid)",
)  # fmt: skip
SMALL_SIGNAL = Condition("RMS of what varies in a layer's outputs", 0.05, origin="above it weights fit their inputs")
PHASE = Threshold(
    "RMS of what differs between examples in the argument of a hidden sine", math.nan, 2 * math.pi,
    origin="a whole period; 1 by the initialization of sine networks (Sitzmann et al. 2020), 12 by torch's default "
    "times 30",
)  # fmt: skip


@rule("bad-initialisation")
def large_bias(evidence: Evidence) -> Iterator[Finding]:
    """Biases above 1 that are five times as large as what varies in the outputs of their hidden layer.

    Every unit is then on one side of its nonlinearity for all examples: a ReLU is always on or always off, a tanh flat.
    Before a sigmoid at the end such a bias is the rate of a rare class.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    normalized = normalized_layers(evidence, inspection)
    hidden = {s.name for s in inspection.signals if s.is_nonlinearity}
    outputs = {s.name: s for s in inspection.weighted()[:-1] if s.variation is not None}
    for w in inspection.weights:
        signal = outputs.get(w.layer)
        if w.role != "bias" or w.not_finite or signal is None or w.layer not in hidden or w.layer in normalized:
            continue
        varying = spread(signal)
        if w.rms > max(LARGE_BIAS.at, BIAS.severe * varying):
            yield Finding(
                rule="bad-initialisation",
                layer=w.layer,
                severity=of_symptom(evidence, is_far=True),
                basis="measured",
                summary=f"the biases of {w.layer} have an RMS of {number(w.rms)}, but its outputs vary by only "
                f"{number(varying)}: every unit is always on or always off.",
                evidence={"RMS of the bias": w.rms, "std of outputs": varying},
                reason="After such a bias a ReLU is the identity or zero, and a tanh or sigmoid is flat.",
                treatment="zero-biases",
                remedy=f"torch.nn.init.zeros_(model.get_parameter({w.name!r}))",
            )


@rule("bad-initialisation")
def wrong_gain(evidence: Evidence) -> Iterator[Finding]:
    """Weights whose scale blows signals up, or lets them die, unless a norm follows.

    A unit scales independent inputs by rms·√fan_in: √2 keeps the signals of a ReLU network as they are (He), 1 those of
    a linear or tanh network (LeCun, Glorot). Weights of one sign scale what their inputs have in common by
    |mean|·fan_in. Weights that are all zero are intended, in a last layer, a residual branch or an adapter, and those
    that training has aligned, or that are frozen, are no initialization. Weights fit their inputs if the outputs have
    an RMS below 5, or vary between the examples by 0.05 or more; or if what the next layers take does, after a factor
    in the model's code. A last layer that starts near zero, as that of a policy, says nothing yet and learns from its
    first step: it is a note unless the trial stands still.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    normalized = normalized_layers(evidence, inspection)
    outputs = {s.name: s for s in inspection.weighted() if s.kind != "MultiheadAttention"}
    for w in inspection.weights:
        gain = w.gain
        if w.role != "weight" or gain is None or w.order is None or w.layer in normalized or w.rms == 0:
            continue
        if w.not_finite or is_trained(w) or not w.is_trainable:
            continue
        if abs(w.mean) > ONE_SIGN.at * w.rms:
            gain = max(gain, abs(w.mean) * w.fan_in)
        output = outputs.get(w.layer)
        if SMALL_GAIN.warn < gain < LARGE_GAIN.warn or output is None:
            continue
        if output.rms < LARGE_SIGNAL.at if gain > 1 else spread(output) > SMALL_SIGNAL.at:
            continue
        if gain < 1 and _made_up_for(inspection, output) > SMALL_SIGNAL.at:
            continue
        is_quiet_end = gain < 1 and not any(w.layer in each.after for each in inspection.weighted())
        he = math.sqrt(2 / w.fan_in)
        yield Finding(
            rule="bad-initialisation",
            layer=w.layer,
            severity="note"
            if is_quiet_end and not (evidence.trial is not None and evidence.trial.stands_still)
            else of_symptom(evidence, is_far=LARGE_GAIN.is_severe(gain) or SMALL_GAIN.is_severe(gain)),
            basis="measured",
            summary=f"the weights of {w.layer or 'the model'} have an RMS of {number(w.rms)}, which scales signals by "
            f"{number(gain)}; for {w.fan_in} inputs an RMS of {number(he)} keeps their size.",
            evidence={"RMS of the weight": w.rms, "gain": gain, "RMS that keeps the scale": he},
            reason="Every layer multiplies a signal by rms·√fan_in, and a gradient by the same factor on the way back "
            "(He et al. 2015; huang2020, theorem 1).",
            treatment="unit-signals",
            remedy=f"torch.nn.init.kaiming_normal_(model.get_parameter({w.name!r}), nonlinearity='relu')",
        )


def _made_up_for(inspection: Inspection, layer: Signal) -> float:
    """RMS of what varies in a layer's outputs where they are used: after sin(30·h) in a sine network, or 30·h."""
    taken = [s.taken or 0.0 for s in inspection.weighted() if s.after == (layer.name,)]
    if not taken and layer is inspection.weighted()[-1] and inspection.output is not None and layer.rms:
        return spread(layer) * inspection.output.rms / layer.rms
    return min(taken, default=0.0)


@rule("bad-initialisation")
def wrapped_phase(evidence: Evidence) -> Iterator[Finding]:
    """Hidden sines or cosines whose arguments go round more than once between two examples.

    What comes out is as good as random, and its slope has no relation to the next example's. The first layer is not
    judged: its frequencies are chosen for the data. Reported unless the trial shows that the network trains.
    """
    inspection, trial = evidence.inspection, evidence.trial
    if inspection is None or (trial is not None and trial.trains_well):
        return
    trained = {w.layer for w in inspection.weights if is_trained(w)}
    layers = [s for s in inspection.signals if s.phase is not None]
    for signal in layers[1:]:
        phase = signal.phase or 0.0
        if not PHASE.is_severe(phase) or signal.name in trained or (signal.is_weighted and not signal.after):
            continue
        yield Finding(
            rule="bad-initialisation",
            layer=signal.name,
            severity=of_symptom(evidence, is_far=trial is not None),
            basis="measured",
            summary=f"the arguments of the sine after {signal.name} vary by {number(phase)}, more than a whole period.",
            evidence={"RMS of the phase": phase},
            reason="A sine network keeps its signals with weights from ±√(6/fan_in)/ω, whose phases vary by 1 "
            "(Sitzmann et al. 2020); beyond a period neighbors are mapped to points that have nothing in common.",
            remedy=f"for p in model.get_submodule({signal.name!r}).parameters():\n    p.data /= {phase:.2g}",
        )


@rule("bad-initialisation")
def own_matrices(evidence: Evidence) -> Iterator[Finding]:
    """Large matrices in a module of one's own, in which tanhs or sigmoids are flat at half of their values or more.

    The median over all of them counts: the state of an LSTM goes through a tanh that is never flat. Which of the two
    sides of such a matrix is the inputs is not known: the smaller one counts. Tables, codes and learned queries may
    have entries of any size, and are followed by nothing that they flatten.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    squashing: list[float] = []
    flat: dict[str, list[float]] = {}
    for signal in inspection.signals:  # a module comes after what it calls, in its first call
        if signal.saturated is None:
            flat.setdefault(signal.name, squashing)
            squashing = []
        elif signal.name in flat:
            flat[signal.name].append(signal.saturated)
        else:
            squashing.append(signal.saturated)
    for w in inspection.weights:
        shape = evidence.problem.model.get_parameter(w.name).shape
        if w.role != "other" or len(shape) != 2 or w.not_finite or is_trained(w) or w.order is None:
            continue
        gain = w.rms * math.sqrt(min(shape))
        share = median(flat.get(w.layer) or [0.0])
        if gain < OWN_GAIN.at or share < FLAT.at:
            continue
        fitting = 1 / math.sqrt(min(shape))
        yield Finding(
            rule="bad-initialisation",
            layer=w.layer,
            severity=of_symptom(evidence, is_far=False),
            basis="measured",
            summary=f"{w.name} has an RMS of {number(w.rms)}, which scales signals by {number(gain)}; the tanhs and "
            f"sigmoids of {w.layer or 'the model'} are flat at {share:.0%} of their values.",
            evidence={"RMS of the weight": w.rms, "gain": gain, "saturated share": share},
            reason="A matrix multiplies a signal by rms·√fan_in; where that is large, what squashes the signal is flat "
            "and passes no gradient on.",
            remedy=f"torch.nn.init.normal_(model.get_parameter({w.name!r}), std={fitting:.2g})",
        )
