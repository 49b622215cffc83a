"""Rules about scales: weights as they start, signals that grow or die with depth, and numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import Inspection
from wellcond.diagnosis.inspection.signals import Signal
from wellcond.diagnosis.inspection.weights import Weight
from wellcond.diagnosis.rule import of_symptom, rule
from wellcond.network.norms import is_norm
from wellcond.results import number

FROM_WEIGHTS = (
    "exploding-gradient", "vanishing-gradient", "saturated-activation", "saturated-output", "dying-neurons",
    "full-neurons", "activation-drift", "rank-collapse", "attention-saturation", "learning-rate-too-high",
    "learning-rate-too-low", "loss-not-decreasing", "non-finite", "diverging", "ill-conditioned-input",
    "weight-domination", "last-layer-drift", "labels-unrelated",
)  # fmt: skip
"""What weights of a wrong scale make."""
LARGE_GAIN = 8.0
"""rms·√fan_in. He starts at 1.4; the networks of `healthy.json`, fresh and trained, have 0.08 to 7.9."""
SMALL_GAIN = 0.05
"""Of rms·√fan_in. torch starts at 0.58, N(0, 0.02²) at 0.14 for 48 inputs; trained ones keep what they had."""
ONE_SIGN = 0.5
"""|mean| over RMS of a weight: √3/2 of one drawn from 0 to 1, and 1/√n of n numbers drawn around 0."""
SMALL_SIGNAL, LARGE_SIGNAL = 0.05, 5.0
"""What varies of a layer's outputs, and their RMS, between which its weights fit its inputs, whatever their scale."""
OUTWEIGHS = 5.0
"""Standard deviations of what a layer makes of its inputs, by which a bias puts a unit on one side for good."""
LARGE_LOSS = 3.0
"""The loss over that of the best constant, at which outputs are too large to be a start: logits of standard deviation s
cost s²/2 more than log C. Of those in `healthy.json` 95 % are below 1.4."""
SOME_SURPRISE = 0.1
"""Nats of the best constant, below which the labels hardly vary, as those of a generator's judge: it says nothing."""
EXCESS = 3.0
"""Nats above the best constant, beside it: s = 2.4."""


HE_WEIGHTS = """\
for layer in model.modules():
    if isinstance(layer, (torch.nn.Linear, torch.nn.modules.conv._ConvNd)):
        torch.nn.init.kaiming_normal_(layer.weight)"""
NORMS = "model = wc.nn.with_norms(model, inputs)  # a BatchNorm behind every hidden layer; make the optimizer anew"
DRIFTED, DRIFTING = 1e6, 1e2
"""The largest RMS of a layer's outputs over the smallest; up to 194, in a trained one."""


@rule("symmetric-initialisation", explains=(*FROM_WEIGHTS, "no-gradient", "bad-initialisation", "constant-feature"))
def symmetric_initialization(evidence: Evidence) -> Iterator[Finding]:
    """Units of a hidden layer that have the same weights and get the same gradient, and so stay the same for ever.

    Told by the rows of the weight and of its gradient together, so a zero-initialized last layer, residual branch or
    adapter, whose gradients differ, is none. Where all gradients are zero, so that nothing breaks the tie, zeros count.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    weights = [w for w in inspection.weights if w.role in ("weight", "recurrent") and w.order is not None]
    last = max((w.order for w in weights if w.order is not None), default=0)
    is_stuck = bool(weights) and not any(w.gradient for w in weights)
    for w in weights:
        if w.units < 2 or w.distinct is None or w.distinct_rows is None or (w.order == last and len(weights) > 1):
            continue
        if w.gradient is None and w.is_trainable:
            is_same = w.distinct_rows == 1 and w.rms > 0  # without a gradient, as under a NaN, only the weights tell
        else:
            is_same = w.distinct <= w.units // 2 and (bool(w.gradient) or w.rms > 0 or is_stuck)
        if is_same:
            yield Finding(
                rule="symmetric-initialisation",
                layer=w.layer,
                severity="severe",
                confidence=0.97,
                summary=f"the {w.units} units of {w.layer} have {w.distinct} different weights and gradients, so they stay the "
                "same for ever.",
                evidence={"units": float(w.units), "different ones": float(w.distinct), "RMS of the weight": w.rms},
                reason="Units that start alike and get the same gradient are one unit: the layer is as wide as the number of "
                "different ones.",
                remedy=_initialize(w),
            )


def _initialize(w: Weight) -> str:
    where = (
        f"model.{w.name}"
        if not any(part.isdigit() for part in w.name.split("."))
        else f'model.get_parameter("{w.name}")'
    )
    return f"torch.nn.init.kaiming_normal_({where}, nonlinearity='relu')"


@rule("bad-initialisation", explains=FROM_WEIGHTS)
def large_start(evidence: Evidence) -> Iterator[Finding]:
    """A loss far above that of the best constant prediction: log C for C classes.

    Severe from three times it and three nats above it: the logits are large and wrong, where a fresh network should say
    that it does not know; a warning where one layer alone is trained, as a head on fixed features, since its loss is
    convex. The layer is the first whose outputs have an RMS above 5, or the last one.
    """
    inspection = evidence.inspection
    output = None if inspection is None else inspection.output
    if inspection is None or output is None or output.loss_kind not in ("cross-entropy", "nll", "bce-logits"):
        return
    loss, constant = inspection.loss, output.best_constant
    if loss is None or constant is None or not loss < math.inf:
        return
    if constant < SOME_SURPRISE or not (loss > LARGE_LOSS * constant and loss > constant + EXCESS):
        return
    weighted = inspection.weighted()
    large = next((s.name for s in weighted if s.rms > LARGE_SIGNAL and not s.kind.startswith("Embedding")), None)
    name = large if large is not None else weighted[-1].name if weighted else ""
    classes = output.classes or 2
    trained = {w.layer for w in inspection.weights if w.role in ("weight", "recurrent", "embedding") and w.gradient}
    yield Finding(
        rule="bad-initialisation",
        layer=name,
        severity="severe" if len(trained) != 1 else "warning",
        confidence=0.85,
        summary=f"the loss is {number(loss)}, where a constant has {number(constant)} (log {classes} is "
        f"{number(math.log(classes))}): the outputs, with an RMS of {number(output.rms)}, are too large and wrong.",
        evidence={"loss": loss, "loss of the best constant": constant, "RMS of outputs": output.rms},
        reason="A network that knows nothing yet should give every class the same, at a loss of log C.",
        remedy=f"with torch.no_grad():\n    model.get_submodule({name!r}).weight *= {1 / max(output.rms, 1):.2g}",
    )


@rule("bad-initialisation", explains=FROM_WEIGHTS)
def wrong_gain(evidence: Evidence) -> Iterator[Finding]:
    """Weights whose scale blows signals up, or lets them die, where no norm behind them puts it right.

    With independent inputs a unit scales them by rms·√fan_in: √2 keeps a ReLU network's signals as they are (He), 1 a
    linear or tanh one's (LeCun, Glorot). Outside of 0.05 to 8 none of `healthy.json` lies, trained or not. Weights of
    one sign scale what their inputs have in common by |mean|·fan_in.
    Weights that are all zero are meant so, in a last layer, a residual branch or an adapter; and weights are made for
    their inputs whose outputs have an RMS below 5, or vary between the examples by 0.05 or more.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    normalized = _normalized(evidence, inspection)
    outputs = {s.name: s for s in inspection.weighted() if s.kind != "MultiheadAttention"}
    for w in inspection.weights:
        gain = w.gain
        if w.role != "weight" or gain is None or w.order is None or w.layer in normalized or w.rms == 0:
            continue
        if abs(w.mean) > ONE_SIGN * w.rms:
            gain = max(gain, abs(w.mean) * w.fan_in)
        output = outputs.get(w.layer)
        if SMALL_GAIN < gain < LARGE_GAIN or output is None:
            continue
        if output.rms < LARGE_SIGNAL if gain > 1 else _varying(output) > SMALL_SIGNAL:
            continue
        wanted = math.sqrt(2 / w.fan_in)
        is_far = gain > 2 * LARGE_GAIN or gain < SMALL_GAIN / 5
        yield Finding(
            rule="bad-initialisation",
            layer=w.layer,
            severity=of_symptom(evidence, is_far=is_far),
            confidence=0.8,
            summary=f"the weights of {w.layer or 'the model'} have an RMS of {number(w.rms)}, which scales signals by "
            f"{number(gain)}; for {w.fan_in} inputs {number(wanted)} keeps them as they are.",
            evidence={"RMS of the weight": w.rms, "gain": gain, "RMS that keeps the scale": wanted},
            reason="A signal is multiplied by rms·√fan_in in every layer, and a gradient on its way back by as much (He et "
            "al. 2015; huang2020, theorem 1).",
            remedy=_initialize(w),
        )


def _varying(signal: Signal) -> float:
    """RMS of what differs between examples; of all where that is not known."""
    return signal.rms * math.sqrt(1.0 if signal.variation is None else signal.variation)


@rule("bad-initialisation", explains=FROM_WEIGHTS)
def large_bias(evidence: Evidence) -> Iterator[Finding]:
    """Biases that outweigh what a hidden layer makes of its inputs fivefold, and exceed 1.

    Every unit is then on one side of its nonlinearity for all examples: a ReLU is the identity or nothing, a tanh flat.
    By the normal distribution, one value in 3 million is five standard deviations away.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    normalized = _normalized(evidence, inspection)
    bent = {s.name for s in inspection.signals if s.is_nonlinearity}
    outputs = {s.name: s for s in inspection.weighted() if s.variation is not None}
    for w in inspection.weights:
        signal = outputs.get(w.layer)
        if w.role != "bias" or signal is None or w.layer not in bent or w.layer in normalized:
            continue
        varying = _varying(signal)
        if w.rms > max(1.0, OUTWEIGHS * varying):
            yield Finding(
                rule="bad-initialisation",
                layer=w.layer,
                severity=of_symptom(evidence, is_far=True),
                confidence=0.85,
                summary=f"the biases of {w.layer} have an RMS of {number(w.rms)}, where what it makes of its inputs varies by "
                f"{number(varying)}: no unit ever changes sides.",
                evidence={"RMS of the bias": w.rms, "what varies": varying},
                reason="Behind such a bias a ReLU is always on or always off, and a tanh or sigmoid is flat.",
                remedy=f"torch.nn.init.zeros_(model.get_parameter({w.name!r}))",
            )


def _normalized(evidence: Evidence, inspection: Inspection) -> set[str]:
    """Layers whose output goes straight into a norm, which takes their scale away."""
    modules = dict(evidence.problem.model.named_modules())
    found, last = set(), None
    for signal in inspection.signals:
        module = modules.get(signal.name)
        if signal.is_weighted:
            last = signal.name
        elif last is not None and module is not None and not signal.is_nonlinearity:
            if is_norm(module):
                found.add(last)
            last = None
    return found


@rule(
    "activation-drift",
    explains=("exploding-gradient", "vanishing-gradient", "ill-conditioned-input", "learning-rate-too-high"),
)
def activation_drift(evidence: Evidence) -> Iterator[Finding]:
    """Signals whose scale drifts with depth: the RMS of one layer's outputs is a hundred times another's.

    Severe from a million-fold, or where the loss stays where it is at every rate that was tried. Networks of
    `healthy.json` have 7 in the median and up to 194.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    layers = [
        s for s in inspection.weighted() if s.rms > 0 and math.isfinite(s.rms) and not s.kind.startswith("Embedding")
    ]
    if len(layers) < 2:
        return
    low, high = min(layers, key=lambda s: s.rms), max(layers, key=lambda s: s.rms)
    ratio = high.rms / low.rms
    if ratio > DRIFTING:
        grows = layers.index(high) > layers.index(low)
        first, last = (low, high) if grows else (high, low)
        is_flat = evidence.trial is not None and evidence.trial.is_flat
        has_norms = any("Norm" in s.kind for s in inspection.signals)
        stays = " The loss stays where it is at every rate that was tried." if is_flat else ""
        yield Finding(
            rule="activation-drift",
            layer=last.name,
            severity=of_symptom(evidence, is_far=ratio > DRIFTED or is_flat),
            confidence=0.9 if is_flat else 0.75,
            summary=f"the signal {'grows' if grows else 'falls'} {number(ratio)}-fold on its way, from an RMS of "
            f"{number(first.rms)} at {first.name} to {number(last.rms)} at {last.name}.{stays}",
            evidence={"smallest RMS": low.rms, "largest RMS": high.rms},
            reason="λ_max of Σx, and with it the next layer's curvature, grows with its square (huang2020, section 3)."
            if grows
            else "The gradient of the next layer's weights falls with the signal, and its curvature with its square "
            "(huang2020, section 3).",
            remedy=HE_WEIGHTS if has_norms else NORMS,
        )


FROM_NOT_FINITE = (
    "loss-not-decreasing", "diverging", "learning-rate-too-high", "labels-unrelated", "vanishing-gradient",
    "exploding-gradient", "saturated-output", "activation-drift", "no-gradient",
)  # fmt: skip


@rule("non-finite", explains=FROM_NOT_FINITE)
def non_finite(evidence: Evidence) -> Iterator[Finding]:
    """NaN or infinity as the network stands, named where it comes first: data, weights, a layer, the loss, a gradient.

    No threshold: one is enough.
    """
    inspection = evidence.inspection
    if inspection is not None and (found := _first(inspection)) is not None:
        layer, summary, numbers, remedy = found
        reason = "One NaN in the loss makes every gradient NaN, and after the next step every weight."
        yield Finding(
            rule="non-finite",
            layer=layer,
            severity="severe",
            confidence=0.97,
            summary=summary,
            evidence=numbers,
            reason=reason,
            remedy=remedy,
        )


Found = tuple[str, str, dict[str, float | str], str]


def _first(inspection: Inspection) -> Found | None:
    """Layer, summary, numbers and remedy of the first place; the loss has all that comes before it in its graph."""
    for fact in (*inspection.inputs, *inspection.targets):
        if fact.not_finite:
            summary = f"the {fact.name} hold {fact.not_finite} values that are NaN or infinite."
            return (
                "",
                summary,
                {"values": float(fact.not_finite)},
                f"{fact.name} = torch.nan_to_num({fact.name})  # or drop those rows",
            )
    for w in inspection.weights:
        if w.not_finite:
            summary = (
                f"{w.name} holds {w.not_finite} values that are NaN or infinite: the run that made it has diverged."
            )
            return (
                w.layer,
                summary,
                {"values": float(w.not_finite)},
                "# start again from the last checkpoint, at a smaller rate",
            )
    for signal in inspection.signals:
        if signal.not_finite and not signal.is_nonlinearity:
            source = f"{signal.name} ({signal.kind})" if signal.has_finite_input else f"the code before {signal.name}"
            summary = f"{source} is the first to give NaN or infinity, in {signal.not_finite:.0%} of its values."
            return signal.name, summary, {"share": signal.not_finite}, _of_layer(inspection)
    return _in_loss(inspection) or _in_gradient(inspection)


def _of_layer(inspection: Inspection) -> str:
    is_half = any(w.dtype.itemsize == 2 for w in inspection.weights)
    if is_half:
        return "model.float()  # or torch.autocast, which keeps what overflows half precision (65504) in float32"
    return "# add eps inside the root, the division or the logarithm, or scale what it receives"


def _in_loss(inspection: Inspection) -> Found | None:
    if inspection.loss is None or math.isfinite(inspection.loss):
        return None
    output = inspection.output
    numbers: dict[str, float | str] = {"loss": str(inspection.loss)}
    if output is not None and output.log_low is not None and output.log_low <= 0:
        numbers["smallest argument"] = output.log_low
        what = "0" if output.log_low == 0 else f"{number(output.log_low)}, which is negative"
        summary = f"the loss is {inspection.loss}: it takes the logarithm of {what}, while all outputs are finite."
        return "", summary, numbers, "loss = torch.nn.CrossEntropyLoss()  # on logits; or torch.log(p.clamp_min(1e-8))"
    summary = f"the loss is {inspection.loss} although all outputs are finite: it is made in the loss itself."
    return "", summary, numbers, "# look for a logarithm, a root, a division by 0, or a mean over nothing in the loss"


def _in_gradient(inspection: Inspection) -> Found | None:
    broken = [w for w in inspection.weights if w.gradient_not_finite]
    if not broken:
        return None
    last = max(broken, key=lambda w: -1 if w.order is None else w.order)
    summary = (
        f"the gradient of {last.name} is NaN or infinite although the loss is finite, and so are {len(broken) - 1} "
        "others."
    )
    remedy = "# sqrt(x) and x ** p have an infinite slope at 0, and where() passes NaN on: torch.sqrt(x + 1e-8)"
    return last.layer, summary, {"parameters": float(len(broken))}, remedy
