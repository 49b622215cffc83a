"""bad-initialisation: weights or biases whose scale keeps training from starting, or slows it down.

Wrong:
    nn.init.normal_(layer.weight)
Right:
    nn.init.kaiming_normal_(layer.weight)  # with RMS √(2/fan_in)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.growth import grows_by_layers
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.diagnosis.reading import is_embedding, is_trained, normalized_layers, outputs_of, spread
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import of_symptom
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import Trial
from wellcond.results import number

LOSS_RATIO = Threshold(
    "loss / loss of the best constant", math.nan, 3.0, healthy=("loss / loss of the best constant",),
    origin="logits of standard deviation s cost s²/2 nats more than log C; 95 % of healthy networks are below 1.43",
    inside_healthy_because="the labels of those beyond it hardly vary, as a GAN's: the condition on the constant "
    "excludes them",
)  # fmt: skip
EXCESS = Threshold(
    "loss − loss of the best constant, in nats", math.nan, 3.0, origin="s²/2 for logits of standard deviation s = 2.4"
)
FAR_ABOVE = Threshold(
    "loss at the start / loss where all examples are alike", math.nan, 100.0,
    origin="about 1 for healthy networks; 30 for a squared error of targets that are not standardized",
)  # fmt: skip
OF_EQUAL = Threshold(
    "contrastive loss at the start / (200 + n log n)", math.nan, 10.0,
    origin="1 for a summed loss of equal similarities; cosines times 100 add 200 at most in the mean",
)  # fmt: skip
CLIPPED = 200.0
"""The most that cosines times 100 add to the loss of equal similarities, in the mean."""
SCALE = Condition("a factor of similarities", 100.0, origin="where CLIP clips it (Radford et al. 2021)")
ALIKE = Condition("relative change of the loss with the outputs of others", 0.01, origin="rounding is less")
APART = Condition("the same after Adam's run on eight examples", 0.5, origin="it is above 0.9 where it fits them")
BACK = Condition(
    "loss after the trial / loss of the best constant", 1.5, origin="half of the way from three times it, or more"
)
SOME_SURPRISE = Condition(
    "loss of the best constant, in nats", 0.1,
    origin="below it the labels hardly vary, as those of a GAN's discriminator: the ratio says nothing",
)  # fmt: skip
LARGE_GAIN = Threshold(
    "rms·√fan_in of a weight", 8.0, 16.0, healthy=("gain, weight", "gain, recurrent"),
    origin="He starts at 1.4; healthy networks, fresh and trained, reach 7.9",
)  # fmt: skip
TOO_FAR = Threshold(
    "standard deviation of products of embeddings / that of the targets", 5.0, math.nan,
    origin="√d for d factors from N(0, 1) and standardized targets: 2.8 for 8, 11 for 128; below 1 where small",
)  # fmt: skip
AS_DRAWN = Condition(
    "standard deviation of outputs / √d·product of the tables' RMS", 0.5, origin="1 for rows that are drawn apart"
)
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
LARGE_SIGNAL = Condition(
    "RMS of a layer's outputs", 5.0, origin="below it weights fit their inputs, whatever their scale"
)
OWN_GAIN = Condition(
    "rms·√(the smaller side) of a matrix in a module of one's own", 5.0, origin="torch starts at 0.58, Glorot at 1"
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
def large_start(evidence: Evidence) -> Iterator[Finding]:
    """A loss far above log C, that of equal probabilities for C classes, and above that of the best constant.

    Severe from three times both and three nats above them: the logits are large and wrong, where a fresh network
    should give every class the same. A warning if only one layer is trained, such as a head on fixed features, since
    its loss is convex; and if a trial shows that the network learns nevertheless, or gets within 1.5 times a
    constant's. The layer is the first whose outputs have an RMS above 5, or the last one. A network that was trained
    before may be sure and wrong on other data: it is reported only if the weights of that layer are too large. Not
    reported where activations grow from layer to layer though weights do not make them, which is `activation-drift`.
    """
    if grows_by_layers(evidence):
        return
    if (both := outputs_of(evidence)) is None or both[1].loss_kind not in ("cross-entropy", "nll", "bce-logits"):
        return
    inspection, output, trial = *both, evidence.trial
    loss, best = inspection.loss, output.best_constant
    if loss is None or best is None or not loss < math.inf or best < SOME_SURPRISE.at:
        return
    # a constant that fits eight labels of a thousand classes is nothing that a fresh network could know
    constant = max(best, output.uniform_loss or 0.0)
    if not (loss > LOSS_RATIO.severe * constant and loss > constant + EXCESS.severe):
        return
    weighted = inspection.weighted()
    last = weighted[-1].name if weighted else ""
    name = next((s.name for s in weighted if s.rms > LARGE_SIGNAL.at and not is_embedding(s)), last)
    gain = max((w.gain or 0.0 for w in inspection.weights if w.layer == name), default=0.0)
    last_rms = weighted[-1].rms if weighted else 0.0
    if last_rms < LARGE_SIGNAL.at < output.rms:  # it grows after the last layer, or in layers by hand
        name = _largest_own(evidence, inspection) or name
    if any(map(is_trained, inspection.weights)) and not LARGE_GAIN.is_warning(gain):
        return
    classes = output.classes or 2
    trained = {w.layer for w in inspection.weights if w.role in ("weight", "recurrent", "embedding") and w.gradient}
    others = [w for w in inspection.weights if w.role in ("weight", "recurrent") and w.layer != last]
    is_last_alone = name == last and not any(LARGE_GAIN.is_warning(w.gain or 0.0) for w in others)
    yield Finding(
        rule="bad-initialisation",
        layer=name,
        severity="warning" if len(trained) == 1 or (trial is not None and _recovers(trial, constant)) else "severe",
        basis="measured",
        summary=f"initial logits are too large: the loss is {number(loss)}, that of a constant {number(constant)} "
        f"(log {classes} is {number(math.log(classes))}); the outputs have an RMS of {number(output.rms)}.",
        evidence={"loss": loss, "loss of the best constant": constant, "RMS of outputs": output.rms},
        reason="A network that knows nothing yet should give every class the same probability, at a loss of log C.",
        treatment="zero-last" if is_last_alone else "unit-signals",
        remedy=f"for p in {_parameters(name, evidence)}:\n    p.data /= {output.rms:.2g}"
        if output.rms > 1
        else "# compare the outputs with the labels: they are small, and yet sure of a wrong answer",
    )


def _parameters(name: str, evidence: Evidence) -> str:
    """Code for one parameter, or for those of a module."""
    is_one = name in evidence.problem.params
    return f"[model.get_parameter({name!r})]" if is_one else f"model.get_submodule({name!r}).parameters()"


def _recovers(trial: Trial, constant: float) -> bool:
    """Whether the network trains nevertheless, or its own run takes it back to about a constant's loss."""
    return bool(trial.trains) or (trial.own is not None and trial.own.loss < BACK.at * constant)


def _largest_own(evidence: Evidence, inspection: Inspection) -> str:
    """The name of the matrix of the model's own that scales signals most; "" if none does much."""
    shapes = {w.name: evidence.problem.model.get_parameter(w.name).shape for w in inspection.weights}
    gains = {
        w.name: w.rms * math.sqrt(min(shapes[w.name]))
        for w in inspection.weights
        if w.role == "other" and len(shapes[w.name]) > 1
    }
    largest = max(gains, key=lambda name: gains[name], default="")
    return largest if gains.get(largest, 0.0) > OWN_GAIN.at else ""


@rule("bad-initialisation")
def falls_to_no_answer(evidence: Evidence) -> Iterator[Finding]:
    """A loss that starts a hundred times above what it is once the network tells no two examples apart, and goes there.

    After the run at its own rate, the outputs of other examples have the same loss; a run of Adam on eight examples
    does tell them apart. So what falls is the price of outputs that were far too large, and nothing is learned: a
    temperature or a scale of similarities, such as e^14 where 14 was meant. Not reported where activations grow from
    layer to layer, as above.
    """
    trial = evidence.trial
    if grows_by_layers(evidence):
        return
    if trial is None or trial.own is None or trial.own.paired is None or trial.few is None or trial.few.paired is None:
        return
    after = trial.own.paired
    is_alike = abs(after.gain) < ALIKE.at and trial.few.paired.gain > APART.at
    if not is_alike or not after.loss > 0 or not FAR_ABOVE.is_severe(trial.loss / after.loss):
        return
    yield Finding(
        rule="bad-initialisation",
        severity="severe",
        basis="tried",
        summary=f"the loss starts at {number(trial.loss)} and falls to {number(after.loss)}, where it is the same with "
        "the outputs of other examples: what falls is the price of outputs that are far too large.",
        evidence={"loss before": trial.loss, "loss after": trial.own.loss, "gain by the right outputs": after.gain},
        limits=FAR_ABOVE.limits(after.loss),
        reason="An uninformed answer would be far better than the first outputs, and the steps that lead there are so "
        "large that all examples end at one point.",
        remedy="# print the outputs, and each scale or temperature that multiplies them, before the first step",
    )


@rule("bad-initialisation")
def large_similarities(evidence: Evidence) -> Iterator[Finding]:
    """A contrastive loss that starts at ten times 200 + n·log n or more, for n examples.

    Equal similarities have log n, and n·log n if the loss is summed. Cosines times a temperature of 100 are at most 200
    above that in the mean; what is higher comes from a scale that is far too large, such as e^14 where 14 was meant.
    Severe. The parameter of one number that is largest, itself or as a logarithm, is named.
    """
    inspection, behavior = evidence.inspection, evidence.behavior
    loss = None if inspection is None else inspection.loss
    if inspection is None or loss is None or behavior is None or behavior.mixed_similarities is None:
        return
    n = inspection.examples or 0
    if n < 2 or not OF_EQUAL.is_severe(loss / (CLIPPED + n * math.log(n))):
        return
    name, scale = _largest_scale(evidence)
    through = f"; {name} makes a factor of {number(scale)}" if name else ""
    yield Finding(
        rule="bad-initialisation",
        layer=name,
        severity="severe",
        basis="proven",
        summary=f"the contrastive loss of {n} examples starts at {number(loss)}, and that of equal similarities is "
        f"{number(math.log(n))}: the similarities are far too large{through}.",
        evidence={"loss": loss, "loss of equal similarities": math.log(n)},
        limits=OF_EQUAL.limits(CLIPPED + n * math.log(n)),
        reason="A softmax of such numbers is 0 or 1, right or wrong, so that a few examples decide on every step.",
        remedy="# if the model takes the exponential of its scale, let that start at its logarithm: "
        "nn.Parameter(torch.tensor(math.log(1 / 0.07)))",
    )


def _largest_scale(evidence: Evidence) -> tuple[str, float]:
    """The parameter of one number with the largest value or exponential, and that; "" if there is none above 100."""
    single = {name: float(p.detach()) for name, p in evidence.problem.params.items() if p.numel() == 1}
    scales = {name: math.exp(min(abs(value), 700.0)) for name, value in single.items()}
    name = max(scales, key=lambda each: scales[each], default="")
    return (name, scales[name]) if name and scales[name] > SCALE.at else ("", math.nan)


@rule("bad-initialisation")
def large_products(evidence: Evidence) -> Iterator[Finding]:
    """Products of embeddings that vary five times as much as the numbers they are to predict, at three times the loss.

    A model of tables alone, as a factorization, whose outputs are about √d times the RMS of its two largest tables: d
    factors from `nn.Embedding`'s N(0, 1) add up to √d. Severe unless the trial shows that the network trains, or gets
    within 1.5 times a constant's loss.
    """
    if (both := outputs_of(evidence)) is None:
        return
    inspection, output, trial = *both, evidence.trial
    called = [w for w in inspection.weights if w.order is not None and w.rms > 0]
    tables = sorted((w for w in called if w.role == "embedding" and len(w.shape) == 2), key=lambda w: -w.rms)
    numbers = [fact for fact in inspection.targets if not fact.is_index and not fact.is_binary]
    if len(tables) < 2 or any(w.role in ("weight", "recurrent") for w in called) or len(inspection.targets) != 1:
        return
    first, second = tables[:2]
    best, loss = output.best_constant, inspection.loss
    if not numbers or first.shape[1] != second.shape[1] or best is None or loss is None or not best > 0:
        return
    expected = math.sqrt(first.shape[1]) * first.rms * second.rms
    ratio = output.std / max(numbers[0].std, 1e-12)
    if not TOO_FAR.is_warning(ratio) or not LOSS_RATIO.is_severe(loss / best) or output.std < AS_DRAWN.at * expected:
        return
    yield Finding(
        rule="bad-initialisation",
        layer=first.layer,
        severity="warning" if trial is None or _recovers(trial, best) else "severe",
        basis="measured",
        summary=f"the products of {first.name} and {second.name} have a standard deviation of {number(output.std)}, "
        f"the targets one of {number(numbers[0].std)}: the loss is {number(loss)}, that of a constant {number(best)}.",
        evidence={
            "std of outputs": output.std,
            "std of targets": numbers[0].std,
            "RMS of the first table": first.rms,
            "RMS of the second table": second.rms,
        },
        limits=TOO_FAR.limits(numbers[0].std),
        reason="A product of d pairs of numbers from N(0, 1) has a standard deviation of √d. What such rows give for "
        "pairs that no example has stays as it is drawn.",
        remedy=f"for name in [{first.name!r}, {second.name!r}]:\n"
        f"    torch.nn.init.normal_(model.get_parameter(name), std={0.3 / first.shape[1] ** 0.25:.2g})",
    )


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
    outputs = {s.name: s for s in inspection.weighted() if s.variation is not None}
    for w in inspection.weights:
        signal = outputs.get(w.layer)
        if signal is inspection.weighted()[-1]:
            continue
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
