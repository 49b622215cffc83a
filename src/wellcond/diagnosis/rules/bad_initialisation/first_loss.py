"""A loss that starts far too high, and falls back to where nothing is known."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.growth import grows_by_layers
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.reading import is_embedding, is_trained, outputs_of
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.bad_initialisation.sizes import LARGE_GAIN, LARGE_SIGNAL, LOSS_RATIO, OWN_GAIN, recovers
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number

EXCESS = Threshold(
    "loss − loss of the best constant, in nats", math.nan, 3.0, origin="s²/2 for logits of standard deviation s = 2.4"
)
FAR_ABOVE = Threshold(
    "loss at the start / loss where all examples are alike", math.nan, 100.0,
    origin="about 1 for healthy networks; 30 for a squared error of targets that are not standardized",
)  # fmt: skip
ALIKE = Condition("relative change of the loss with the outputs of others", 0.01, origin="rounding is less")
APART = Condition("the same after Adam's run on eight examples", 0.5, origin="it is above 0.9 where it fits them")
SOME_SURPRISE = Condition(
    "loss of the best constant, in nats", 0.1,
    origin="below it the labels hardly vary, as those of a GAN's discriminator: the ratio says nothing",
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
        severity="warning" if len(trained) == 1 or (trial is not None and recovers(trial, constant)) else "severe",
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
