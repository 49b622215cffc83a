"""vanishing-gradient: gradients that shrink from layer to layer, or from step to step, on the way back.

Wrong:
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(12)]
Right:
    layers = [
        nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(12)
    ]
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor, nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import (
    flat_after,
    hidden_layers,
    is_blocked,
    layers_of,
    listed,
    read_sequences,
    zero_gradients,
)
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import limits_of_symptom, network_has_learned, of_symptom
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.network.norms import is_norm
from wellcond.results import number
from wellcond.results.quantities import SENSITIVITY

RATIO = Threshold(
    "‖∂ℓ/∂h‖·‖h‖ of the first hidden layer / that of the last", 1.5e-4, 1e-5, bad="below",
    healthy=("sensitivity: first / last layer",),
    origin="eight plain layers as torch starts them have 0.008; healthy networks go down to 1.6e-4",
)  # fmt: skip
RATIO_IF_UNTRAINED = Threshold(
    "the same, of a network that does not train", 0.1, math.nan, bad="below", healthy=("sensitivity: first / last "
    "layer",),
    origin="the median of healthy networks is 2.7",
    inside_healthy_because="it is asked only of networks that a trial shows not to train",
)  # fmt: skip
MANY_LAYERS = Condition(
    "hidden layers", 6, origin="from here on the larger of the first half stands for the first layer"
)
FLAT_OUTPUT = Threshold(
    "E‖f − E f‖²/E‖f‖² of outputs after two or more hidden sigmoids", 1e-4, math.nan, bad="below",
    healthy=("output: variation",), origin="the outputs hardly depend on the inputs; the median of healthy networks "
    "is 0.74",
    inside_healthy_because="the healthy networks below it have no hidden sigmoids",
)  # fmt: skip
MEMORY = Threshold(
    "share of a sequence's steps that get a thousandth of the largest gradient", 0.25, 0.05, bad="below",
    healthy=("gradient over time: share of steps above 1 %",),
    origin="a fresh LSTM, GRU or RNN forgets by half in one to two steps, so it sees 12 to 14: enough of 28, not of "
    "500",
)  # fmt: skip
MEMORY_IF_QUICK = Threshold(
    "the same, if the network does not train, and the gradient halves in less than 0.7 steps", 1 / 3, math.nan,
    bad="below", origin="4 of 12 steps; a thousandth is then left after seven steps at most",
)  # fmt: skip
MEMORY_IF_NOTHING = Threshold(
    "the same over 40 steps or more, if nothing is learned at any rate", 0.4, math.nan, bad="below",
    origin="the earlier half of the steps, and more, is out of reach; a fresh RNN has 0.34 of 50",
)  # fmt: skip
REACHED = Condition(
    "gradient of a step / the largest", 1e-3, origin="a thousandth is lost in the noise of mini-batches"
)
LONG = Condition("steps of a sequence", 100, origin="ten times what a fresh recurrent network sees")
LONG_IF_STUCK = Condition("steps of a sequence, if the network does not train", 40, origin="three times what it sees")
SHORT_IF_STUCK = Condition(
    "the same, if the gradient also halves in less than 0.7 steps", 10, origin="a fresh one halves it in one to two"
)
QUICK = Condition(
    "steps in which the gradient halves", 0.7, origin="0.37 of it is left after one step; of 100 small recurrent "
    "networks that train, fresh and trained, none is below 0.8",
)  # fmt: skip
AT_ONCE = Condition("the same, without any doubt", 0.5, origin="a quarter of it is left after one step")
NEAR = Condition("rate / its own", 10.0, origin="up to ten times the rate is the same training")
FORGETS = Threshold(
    "what a fresh gate keeps of a state in one step: the median of σ(bias)", 0.12, 0.05, bad="below",
    origin="torch's biases keep 0.5, and 0.73 is advised (Jozefowicz et al. 2015); σ(-2) is 0.12, σ(-3) 0.05",
)  # fmt: skip
ZERO_SHARE = Threshold(
    "share of all parameters with a gradient of exactly zero", 0.0, 0.1, origin="one small layer is less than a tenth"
)


@rule("vanishing-gradient", quantity=SENSITIVITY)
def through_layers(evidence: Evidence) -> Iterator[Finding]:
    """Gradients that shrink on the way back from the last hidden layer to the first.

    Compared is ‖∂ℓ/∂h‖·‖h‖, the effect of a relative change of a layer's output on the loss, which norms and poolings
    leave unchanged. Severe below 1e-5, a warning below 1.5e-4; of a network that does not train severe below 0.1, and a
    warning if a handful of examples can be fitted. The layer is the first, or the first of a stack that holds most of
    them. A weight of zeros in between stops all gradients until its first step, and is intended.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    layers = hidden_layers(inspection)
    if len(layers) < 2 or is_blocked(inspection):
        return
    # queries and keys of a fresh attention get almost no gradient: the largest of several layers counts
    early = layers[: len(layers) // 2 if len(layers) >= MANY_LAYERS.at else 1]
    first, last = (max(s.sensitivity or 0.0 for s in part) for part in (early, layers[len(early) :]))
    if not 0 < last < math.inf:
        return
    per_layer = (first / last) ** (1 / (len(layers) - len(early)))
    ratio = per_layer ** (len(layers) - 1)
    does_not_train = evidence.trial is not None and evidence.trial.trains is False
    threshold = RATIO_IF_UNTRAINED if does_not_train else RATIO
    if not threshold.is_warning(ratio):
        return
    squashing = [s for s in inspection.signals if s.is_nonlinearity and s.kind in ("sigmoid", "tanh")]
    through = f", through {len(squashing)} {squashing[0].kind}s" if len(squashing) > 1 else ""
    severity = of_symptom(evidence, is_far=RATIO.is_severe(ratio))
    few = None if evidence.trial is None else evidence.trial.few
    if few is not None and few.is_fitted and not RATIO.is_severe(ratio) and severity == "severe":
        severity = "warning"  # it gets through to a handful, so it may only be slow
    yield Finding(
        rule="vanishing-gradient",
        layer=_first_of_stack([s.name for s in layers]),
        severity=severity,
        basis="measured",
        summary=f"the gradient at {layers[0].name} is {number(ratio)} of that at {layers[-1].name}, the last hidden "
        f"layer: {number(per_layer)} per layer{through}.",
        evidence={"ratio": ratio, "per layer": per_layer, "layers": float(len(layers))},
        limits=limits_of_symptom(evidence, threshold.limits(last) | RATIO.limits(last), is_far=RATIO.is_severe(ratio)),
        reason="Every layer multiplies a gradient by its mean-field χ; a product of factors below 1 vanishes after a "
        "few layers (the slope of a sigmoid is 1/4 at most).",
        treatment="relu" if squashing and any(map(is_norm, evidence.problem.model.modules())) else "batchnorm",
        remedy="# add a residual path around every few layers: x + layer(norm(x))",
    )


def _first_of_stack(names: list[str]) -> str:
    """The first layer of the container that holds most of them, where gradients shrink; else the first of all."""
    stacks = [name.split(".")[0] for name in names if "." in name]
    largest = max(stacks, key=stacks.count, default="")
    if stacks.count(largest) <= len(names) / 2:
        return names[0]
    return next(name for name in names if name.startswith(f"{largest}."))


@rule("vanishing-gradient", quantity=SENSITIVITY)
def forgetting(evidence: Evidence) -> Iterator[Finding]:
    """A recurrent layer, or a cell in a loop, to whose early steps no gradient comes back.

    Over 100 steps or more, a warning if a quarter of them or less gets a thousandth of the largest gradient, severe
    from a twentieth. Over 40 or more, severe if the trial also shows that the network gets no further than a tenth
    below a constant's loss, at up to ten times its rate: the gradient does not reach the time steps that matter; and
    from 0.4 of them on, a warning where nothing at all is learned at any rate. Over 10 or more, if a step back also
    leaves less than 0.37 of the gradient, as no fresh recurrent layer does: a warning, severe if it leaves less than a
    quarter or the trial fails. If it leaves less than a quarter, it is reported also where ten times the rate gets
    further, since a few batches may be learned by heart from their last steps: severe if 50 steps at its own rate have
    gained nothing on a constant. A network that learns from its last steps alone is not reported.
    """
    trial = evidence.trial
    for name, over_time in read_sequences(evidence):
        steps = len(over_time)
        largest = float(over_time.max())
        reached = int((over_time > REACHED.at * largest).sum())
        near = [] if trial is None else [each for each in trial.attempts if each.factor <= NEAR.at]
        half = _steps_to_half(over_time)
        learning = [] if trial is None else [each for each in near if trial.outcome(each) == "learns"]
        only_faster = bool(learning) and half < AT_ONCE.at and all(each.factor > 1 for each in learning)
        is_stuck = trial is not None and not trial.trains and bool(near) and (not learning or only_faster)
        long = (SHORT_IF_STUCK if half < QUICK.at else LONG_IF_STUCK).at if is_stuck else LONG.at
        share = MEMORY_IF_QUICK if is_stuck and half < QUICK.at else MEMORY
        if is_stuck and steps >= LONG_IF_STUCK.at and trial is not None and trial.learns_nothing:
            share = MEMORY_IF_NOTHING
        if not largest > 0 or steps < long or reached > share.warn * steps:
            continue
        is_long = steps >= LONG_IF_STUCK.at and reached <= MEMORY.warn * steps
        gained = only_faster and trial is not None and not trial.has_gained_nothing
        is_sure = is_stuck and not gained and (half < AT_ONCE.at or is_long)
        early = float(over_time[: steps // 10].max()) / largest
        module = dict(evidence.problem.model.named_modules()).get(name)
        yield Finding(
            rule="vanishing-gradient",
            layer=name,
            severity=of_symptom(evidence, is_far=is_sure or reached <= MEMORY.severe * steps),
            basis="measured",
            summary=f"only {reached} of {steps} steps of {name or 'the sequence'} get a thousandth of the largest "
            f"gradient, which halves every {number(half)} steps back; the first tenth gets {number(early)} of it.",
            evidence={
                "steps": float(steps),
                "steps with a gradient": float(reached),
                "steps to half": half,
                "first tenth": early,
            },
            reason="With every step back a gradient is multiplied by the recurrent weight and a slope below 1, or by "
            "the forget gate, 1/2 in a fresh LSTM (Hochreiter 1997).",
            treatment="open-gates" if isinstance(module, (nn.LSTM, nn.GRU)) else "",
            remedy="# use an nn.LSTM in its place, whose forget gates can keep a state over many steps",
        )


def _steps_to_half(over_time: Tensor) -> float:
    """Steps back in which the gradient halves, by its fall from the largest to a thousandth."""
    last = int(over_time.argmax())
    back = over_time[: last + 1].flip(0) / over_time[last]
    below = (back < REACHED.at).nonzero()
    end = int(below[0]) if len(below) else len(back) - 1
    fall = float(back[end].clamp_min(1e-30).log2())
    return -end / fall if fall < 0 else math.inf


@rule("vanishing-gradient", quantity=SENSITIVITY)
def flat_gates(evidence: Evidence) -> Iterator[Finding]:
    """Gradients of exactly zero before gates, tanhs, sigmoids or ReLUs that are flat on all examples.

    Recurrent gates count as flat if the output has a gradient but the weights do not. The cause is what made their
    arguments so large, or so negative: inputs, weights or biases.
    """
    inspection = evidence.inspection
    if inspection is None or (pair := zero_gradients(inspection)) is None:
        return
    zero, reached = pair
    layers = layers_of(zero)
    what = flat_after(inspection, layers[-1])
    if not what:
        return
    share = sum(w.numel for w in zero) / sum(w.numel for w in reached)
    yield Finding(
        rule="vanishing-gradient",
        layer=layers[-1],
        severity="severe" if share >= ZERO_SHARE.severe else "warning",
        basis="measured",
        summary=f"the gradient is exactly zero in {listed(layers)}, {share:.0%} of all parameters, because {what} "
        f"{layers[-1]} are flat on all examples.",
        evidence={"loss": inspection.loss or 0.0, "share of parameters": share},
        reason="A gate, tanh or sigmoid whose argument is far from 0, or a ReLU below it, has slope 0 in float32.",
        treatment="scale-inputs",
        remedy="# standardize the inputs, and start weights and biases as torch does",
    )


@rule("vanishing-gradient", quantity=SENSITIVITY)
def fading_sigmoids(evidence: Evidence) -> Iterator[Finding]:
    """Two or more hidden sigmoids after which the outputs hardly depend on the inputs.

    Each passes at most a quarter of what varies, forwards and backwards. A warning if the outputs vary by less than
    1e-4 of their size; severe if a trial does not show that the network trains anyway, as it may at a high rate.
    """
    inspection = evidence.inspection
    output = None if inspection is None else inspection.output
    if inspection is None or output is None or output.variation is None or network_has_learned(evidence):
        return
    sigmoids = [s for s in inspection.signals if s.kind == "sigmoid" and s.is_nonlinearity]
    sigmoids = sigmoids[:-1] if output.tail[:1] == ("Sigmoid",) else sigmoids
    layers = inspection.weighted()
    if len(sigmoids) < 2 or output.variation > FLAT_OUTPUT.warn or not layers or is_blocked(inspection):
        return
    first, last = layers[0].sensitivity or 0.0, layers[-1].sensitivity or 0.0
    ratio = first / last if last else 0.0
    is_doubtful = evidence.trial is not None and not evidence.trial.trains
    yield Finding(
        rule="vanishing-gradient",
        layer=layers[0].name,
        severity="severe" if is_doubtful else "warning",
        basis="measured",
        summary=f"after {len(sigmoids)} hidden sigmoids the outputs vary by only {number(output.variation)} of their "
        f"size, and {layers[0].name} gets {number(ratio)} of the last layer's gradient.",
        evidence={
            "variation of outputs": output.variation,
            "ratio of gradients": ratio,
            "sigmoids": float(len(sigmoids)),
        },
        reason="The slope of a sigmoid is 1/4 at most, so a stack of them passes little on, in either direction.",
        treatment="relu" if any(map(is_norm, evidence.problem.model.modules())) else "batchnorm",
    )


@rule("vanishing-gradient")
def forgets_at_once(evidence: Evidence) -> Iterator[Finding]:
    """Forget gates of an LSTM whose biases let it forget its state in one step.

    The gradient through the state is multiplied by the forget gate at each step, and a fresh gate is σ of its biases. A
    warning if the median of a layer keeps less than 0.12 per step. Severe below
    0.05, unless the loss halves in the trial. Networks that have learned are not asked.
    """
    trial = evidence.trial
    if network_has_learned(evidence) or (trial is not None and trial.has_learned):
        return
    for name, module in evidence.problem.model.named_modules():
        gate = min(_gates(module), default=1.0)
        if FORGETS.is_warning(gate):
            trains = trial is not None and trial.halves
            yield Finding(
                rule="vanishing-gradient",
                layer=name,
                severity="severe" if FORGETS.is_severe(gate) and not trains else "warning",
                basis="proven",
                summary=f"{name or 'the model'} keeps {number(gate)} of its state in each step, by the biases of its "
                "gates: it forgets what was before.",
                evidence={"kept per step": gate},
                limits=FORGETS.limits(),
                reason="The gradient that goes back through a state is multiplied by the gate at each step.",
                remedy="# start the biases of the forget gates, bias_ih_l0[hidden_size : 2 * hidden_size], at 0 or "
                "above",
            )


def _gates(module: nn.Module) -> Iterator[float]:
    """Of each layer and direction, the median of what gates keep in a step; their biases are the second part of all."""
    if not isinstance(module, (nn.LSTM, nn.LSTMCell)):
        return
    biases = dict(module.named_parameters(recurse=False))
    for name, bias in biases.items():
        if name.startswith("bias_ih"):
            both = bias.detach() + biases[name.replace("bias_ih", "bias_hh")].detach()
            size = module.hidden_size
            yield float(both[size : 2 * size].double().sigmoid().median())
