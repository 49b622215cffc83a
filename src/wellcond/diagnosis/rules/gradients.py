"""Rules about gradients: how they change on their way back, through layers and through time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor, nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import Inspection
from wellcond.diagnosis.inspection.signals import Signal
from wellcond.diagnosis.rule import has_learned, of_symptom, rule
from wellcond.results import number

VANISHED = 1e-5
"""‖∂ℓ/∂h‖·‖h‖ of the first layer over that of the last hidden one. Eight plain layers, as torch
starts them, have 0.008; of the first over the last layer, those of `healthy.json` have 1.6e-4 to 47."""
FADING = 1e-3
"""From which it is worth a warning."""
FADING_UNTRAINED = 0.1
"""And if the network is seen not to train."""
MANY = 6
"""Hidden layers from which the first half stands for the first one."""
EXPLODED, GROWING = 1e6, 1e4
"""The same upwards."""
FLAT_OUTPUT = 1e-4
"""E‖f − E f‖²/E‖f‖² of outputs that hardly depend on inputs."""
SHORT_MEMORY, SOME_MEMORY = 0.05, 0.25
"""Shares of a sequence's steps that get a thousandth of the largest gradient. A fresh LSTM, GRU or RNN forgets by half
in one to two steps, so it sees 12 to 14 steps: of 28 enough, of 500 not."""
LONG, LONGER = 100, 40
"""Steps from which a sequence is long, and from which it may be for a network that does not train."""
NEAR = 10.0
"""Times the rate, up to which it may be taken for the same training."""
FEW_NORMS = 4
"""LayerNorms on the residual stream; a pre-norm transformer has one, and one behind its embeddings."""
SMALL_CHANGE, LARGE_CHANGE = 0.1, 0.2
NEGLIGIBLE = 1e-3
"""Of the median layer's relative update."""
GROWN = 10.0
"""rms·√fan_in of a weight, 7 times what He gives, that has outgrown its updates."""

FROM_GRADIENTS = (
    "learning-rate-too-low",
    "learning-rate-too-high",
    "loss-not-decreasing",
    "diverging",
    "last-layer-drift",
)


def _hidden(inspection: Inspection) -> list[Signal]:
    """Layers with weights that a gradient comes back to, without embeddings and the last one."""
    layers = [s for s in inspection.weighted() if s.sensitivity is not None and not s.kind.startswith("Embedding")]
    return layers[:-1]


def _is_blocked(inspection: Inspection) -> bool:
    """Whether a weight of zeros, as in a zero-initialized last layer, keeps gradients from passing for now."""
    return any(w.role == "weight" and w.rms == 0 for w in inspection.weights)


@rule(
    "vanishing-gradient",
    explains=("learning-rate-too-low", "loss-not-decreasing", "last-layer-drift", "labels-unrelated"),
)
def vanishing_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Gradients that shrink on their way back from the last hidden layer to the first.

    Compared is ‖∂ℓ/∂h‖·‖h‖, what a relative change of a layer's output does to the loss, which norms and poolings leave
    alone. Severe below 1e-5, a warning below 1e-3; where the network is seen not to train, from 0.1. A weight of zeros
    in between stops all gradients until its first step, and is meant so.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    layers = _hidden(inspection)
    if len(layers) < 2 or _is_blocked(inspection):
        return
    # queries and keys of a fresh attention get next to nothing: the largest of some layers counts
    early = layers[: len(layers) // 2 if len(layers) >= MANY else 1]
    first, last = (max(s.sensitivity or 0.0 for s in part) for part in (early, layers[len(early) :]))
    if not 0 < last < math.inf:
        return
    per_layer = (first / last) ** (1 / (len(layers) - len(early)))
    ratio = per_layer ** (len(layers) - 1)
    untrained = evidence.trial is not None and evidence.trial.trains is False
    if not ratio < (FADING_UNTRAINED if untrained else FADING):
        return
    squashing = [s for s in inspection.signals if s.is_nonlinearity and s.kind in ("sigmoid", "tanh")]
    yield Finding(
        rule="vanishing-gradient",
        layer=layers[0].name,
        severity=of_symptom(evidence, is_far=ratio < VANISHED),
        confidence=0.85 if ratio < FADING else 0.6,
        summary=f"the gradient falls to {number(ratio)} of the last hidden layer's on its way back to {layers[0].name}, "
        f"{number(per_layer)} a layer"
        + (f", through {len(squashing)} {squashing[0].kind}s." if len(squashing) > 1 else "."),
        evidence={"ratio": ratio, "a layer": per_layer, "layers": float(len(layers))},
        reason="Every layer multiplies a gradient by its mean-field χ; a product of factors below 1 is lost after a few "
        "(a sigmoid's slope is 1/4 at most).",
        remedy=_remedy(squashes=bool(squashing)),
    )


def _remedy(*, squashes: bool) -> str:
    if squashes:
        return "nn.ReLU()  # for hidden sigmoids and tanhs, with\ntorch.nn.init.kaiming_normal_(layer.weight)"
    return "x = x + layer(norm(x))  # a residual path with a norm, or\ntorch.nn.init.kaiming_normal_(layer.weight)"


@rule("vanishing-gradient", explains=("learning-rate-too-low", "loss-not-decreasing", "labels-unrelated"))
def fading_sigmoids(evidence: Evidence) -> Iterator[Finding]:
    """Two or more hidden sigmoids behind which the outputs hardly depend on the inputs any more.

    Each passes a quarter at most of what varies, forwards and backwards. A warning where the outputs vary by less than
    1e-4 of their size; severe where a trial does not show that the network trains all the same, as at a high rate.
    """
    inspection = evidence.inspection
    output = None if inspection is None else inspection.output
    if inspection is None or output is None or output.variation is None or has_learned(evidence):
        return
    sigmoids = [s for s in inspection.signals if s.kind == "sigmoid" and s.is_nonlinearity]
    sigmoids = sigmoids[:-1] if output.tail[:1] == ("Sigmoid",) else sigmoids
    layers = inspection.weighted()
    if len(sigmoids) < 2 or output.variation > FLAT_OUTPUT or not layers or _is_blocked(inspection):
        return
    first, last = layers[0].sensitivity or 0.0, layers[-1].sensitivity or 0.0
    ratio = first / last if last else 0.0
    is_doubtful = evidence.trial is not None and not evidence.trial.trains
    yield Finding(
        rule="vanishing-gradient",
        layer=layers[0].name,
        severity="severe" if is_doubtful else "warning",
        confidence=0.7,
        summary=f"behind {len(sigmoids)} hidden sigmoids the outputs vary by {number(output.variation)} of their size, and "
        f"{layers[0].name} gets {number(ratio)} of the last layer's gradient.",
        evidence={
            "variation of outputs": output.variation,
            "ratio of gradients": ratio,
            "sigmoids": float(len(sigmoids)),
        },
        reason="A sigmoid's slope is 1/4 at most, so a stack of them passes little on, either way.",
        remedy=_remedy(squashes=True),
    )


@rule("vanishing-gradient", explains=("learning-rate-too-low", "loss-not-decreasing", "labels-unrelated"))
def forgetting(evidence: Evidence) -> Iterator[Finding]:
    """A recurrent layer, or a cell in a loop, to whose early steps no gradient comes back.

    Over 100 steps or more, a warning where a quarter of them or less gets a thousandth of the largest gradient, severe
    from a twentieth. Over 40 or more, severe where the trial shows besides that the network gets no further than a
    tenth below a constant's loss, at up to ten times its rate: what it needs lies where it does not hear. A network
    that learns all the same, from its last steps, is none of it.
    """
    trial = evidence.trial
    for name, over_time in _recurrent(evidence):
        steps = len(over_time)
        largest = float(over_time.max())
        heard = int((over_time > 1e-3 * largest).sum())
        near = [] if trial is None else [each for each in trial.attempts if each.factor <= NEAR]
        is_stuck = trial is not None and not trial.trains and bool(near) and not any(map(trial.learns, near))
        if not largest > 0 or steps < (LONGER if is_stuck else LONG) or heard > SOME_MEMORY * steps:
            continue
        early = float(over_time[: steps // 10].max()) / largest
        half = _steps_to_half(over_time)
        yield Finding(
            rule="vanishing-gradient",
            layer=name,
            severity=of_symptom(evidence, is_far=is_stuck or heard <= SHORT_MEMORY * steps),
            confidence=0.9,
            summary=f"of {steps} steps of {name or 'the sequence'}, {heard} get a thousandth of the largest gradient, which "
            f"halves every {number(half)} steps back; the first tenth gets {number(early)} of it.",
            evidence={
                "steps": float(steps),
                "steps with a gradient": float(heard),
                "steps to half": half,
                "first tenth": early,
            },
            reason="In every step back a gradient is multiplied by the recurrent weight and a slope below 1, or by the forget "
            "gate, 1/2 in a fresh LSTM (Hochreiter 1997).",
            remedy=_longer_memory(evidence, name),
        )


def _steps_to_half(over_time: Tensor) -> float:
    """Steps back in which the gradient halves, by its fall from the largest to a thousandth."""
    last = int(over_time.argmax())
    back = over_time[: last + 1].flip(0) / over_time[last]
    below = (back < 1e-3).nonzero()
    end = int(below[0]) if len(below) else len(back) - 1
    fall = float(back[end].clamp_min(1e-30).log2())
    return -end / fall if fall < 0 else math.inf


def _longer_memory(evidence: Evidence, name: str) -> str:
    module = dict(evidence.problem.model.named_modules()).get(name)
    if isinstance(module, nn.LSTM):
        return (
            f"hidden = model.{name}.hidden_size\n"
            f"with torch.no_grad():\n    model.{name}.bias_ih_l0[hidden:2 * hidden] = 5  # open forget gates"
        )
    if isinstance(module, nn.GRU):
        return (
            f"hidden = model.{name}.hidden_size\n"
            f"with torch.no_grad():\n    model.{name}.bias_ih_l0[hidden:2 * hidden] = 5  # gates that keep the state"
        )
    return "self.rnn = nn.LSTM(inputs, hidden, batch_first=True)  # its forget gates open: bias_ih_l0[h:2 * h] = 5"


@rule("exploding-gradient", explains=(*FROM_GRADIENTS, "non-finite"))
def exploding_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Gradients that grow on their way back, through layers or through time: severe from a million-fold."""
    inspection = evidence.inspection
    if inspection is None:
        return
    layers = _hidden(inspection)
    last = (layers[-1].sensitivity or 0.0) if layers else 0.0
    if len(layers) > 1 and last > 0:
        most = max(layers, key=lambda s: s.sensitivity or 0.0)
        ratio = (most.sensitivity or 0.0) / last
        if ratio > GROWING:
            yield _exploding(evidence, most.name, ratio, "that of the last hidden layer", len(layers))
    for name, over_time in _recurrent(evidence):
        late = float(over_time[-max(1, len(over_time) // 10) :].max())
        ratio = float(over_time.max()) / late if late > 0 else 0.0
        if ratio > GROWING:
            yield _exploding(evidence, name, ratio, "that of the last steps", len(over_time))


def _exploding(evidence: Evidence, name: str, ratio: float, than: str, count: int) -> Finding:
    return Finding(
        rule="exploding-gradient",
        layer=name,
        severity=of_symptom(evidence, is_far=ratio > EXPLODED),
        confidence=0.85,
        summary=f"the gradient grows to {number(ratio)} times {than} at {name or 'the first step'}, over {count} of them.",
        evidence={"ratio": ratio},
        reason="Every layer or step multiplies a gradient by its mean-field χ; a product of factors above 1 explodes.",
        remedy="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before optimizer.step(); or smaller weights",
    )


def _recurrent(evidence: Evidence) -> Iterator[tuple[str, Tensor]]:
    inspection = evidence.inspection
    if inspection is None:
        return
    layers = [(s.name, s.gradient_over_time) for s in inspection.signals if s.gradient_over_time is not None]
    yield from ((name, over_time) for name, over_time in layers if over_time is not None)
    if not layers and inspection.gradient_over_time is not None:
        yield "", inspection.gradient_over_time


@rule("learning-rate-too-high", explains=("loss-not-decreasing", "diverging", "vanishing-gradient", "labels-unrelated"))
def without_warm_up(evidence: Evidence) -> Iterator[Finding]:
    """A deep post-norm transformer that Adam trains at its full rate from the first step.

    Adam's first steps change every entry by lr, and so what a unit adds to a stream of size 1 by lr·√fan_in. On a
    residual stream that is normalized after every sum these changes add up over the layers, N·lr·√fan_in, where
    pre-norm adds up their logarithm (Xiong et al. 2020; Wang et al. 2022). At 0.27 (6 layers of width 512, or 24 of
    width 32, at 1e-3) training fails without a warm-up, and at 0.06 it does not; severe from 0.2, a warning from 0.1,
    nothing where a trial goes down.
    """
    inspection, optimizer = evidence.inspection, evidence.optimizer
    if inspection is None or inspection.output is None or optimizer is None or inspection.output.post_norms < FEW_NORMS:
        return
    if not type(optimizer).__name__.startswith(("Adam", "NAdam", "Adamax", "RMSprop")):
        return
    weights = [w for w in inspection.weights if w.role == "weight" and w.lr and w.rms]
    changes = sorted((w.lr or 0.0) * math.sqrt(w.fan_in) for w in weights)
    if not changes or (evidence.trial is not None and evidence.trial.trains) or has_learned(evidence):
        return
    count = inspection.output.post_norms
    change = count * changes[len(changes) // 2]
    if change < SMALL_CHANGE:
        return
    lr = max(w.lr or 0.0 for w in weights)
    yield Finding(
        rule="learning-rate-too-high",
        layer="",
        severity="severe" if change > LARGE_CHANGE else "warning",
        confidence=0.75,
        summary=f"at a rate of {number(lr)} Adam's first steps change {count} post-norm layers by {number(change)} of their "
        "stream in all: this needs a warm-up, or norms before the layers.",
        evidence={"lr": lr, "post-norm layers": float(count), "change in all": change},
        reason="Behind every sum a LayerNorm passes all of a layer's change on, so those of Adam's first steps add up (Xiong "
        "et al. 2020).",
        remedy="nn.TransformerEncoderLayer(…, norm_first=True)  # or a warm-up:\n"
        "scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=1000)",
    )


@rule("weight-domination")
def weight_domination(evidence: Evidence) -> Iterator[Finding]:
    """A layer whose weight has grown until its updates are nothing beside it (huang2020, section 4.1).

    Told by lr·‖∂L/∂W‖/‖W‖, a thousandth of the median layer's or less, in a weight with rms·√fan_in above 10. Of plain
    SGD, whose updates are proportional to gradients.
    """
    inspection, optimizer = evidence.inspection, evidence.optimizer
    if inspection is None or optimizer is None or type(optimizer).__name__ != "SGD":
        return
    weights = [w for w in inspection.weights if w.role == "weight" and w.gradient and w.rms and w.lr]
    relative = {w.name: (w.lr or 0.0) * (w.gradient or 0.0) / w.rms for w in weights}
    if len(relative) < 3:
        return
    median = sorted(relative.values())[len(relative) // 2]
    for w in weights:
        if (w.gain or 0.0) > GROWN and relative[w.name] < NEGLIGIBLE * median:
            yield Finding(
                rule="weight-domination",
                layer=w.layer,
                severity="warning",
                confidence=0.7,
                summary=f"a step changes the weight of {w.layer} by {number(relative[w.name])} of itself, where other layers "
                f"move by {number(median)}: it has grown to {number(w.gain or 0.0)} times its inputs' scale.",
                evidence={"relative update": relative[w.name], "median of all layers": median, "gain": w.gain or 0.0},
                reason="Behind a norm a gradient is proportional to 1/‖W‖: the larger a weight, the less it moves (huang2020, "
                "theorem 2).",
                remedy="optimizer = torch.optim.SGD(model.parameters(), lr=lr, weight_decay=5e-4)  # keeps them small",
            )
