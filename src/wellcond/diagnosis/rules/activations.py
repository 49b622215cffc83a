"""Rules about signals: units that are off, on or flat, and examples that a layer cannot tell apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import of_symptom, rule
from wellcond.results import number

ENOUGH_ROWS = 64
"""Rows from which a unit that never varies is not chance."""
DEAD, DYING = 0.95, 0.7
"""Shares of a layer's units that are always off. Those of `healthy.json` have up to 0.56."""
FULL = 0.95
"""Share that is always on; up to 0.45."""
FLAT, FLATTENING = 0.95, 0.8
"""Shares of values where a tanh or sigmoid is flat; the medians are 0.33 and 0.23, the pooler of a trained
BERT has 0.98."""
ALIKE, SIMILAR = 1e-9, 1e-6
"""E‖h − E h‖²/E‖h‖² over examples; down to 6e-6."""
SHARP, SHARPENING = 0.9, 0.5
"""Shares of attention rows with one probability above 0.99; the median is 0, and a trained BERT that seeks one token
has 0.93."""
FAR_LOGITS, LARGE_LOGITS = 10.0, 5.0
"""Standard deviations of a row's logits; up to 4.6, in a trained one. Fresh ones have 1 or less, and √d times as much
without the 1/√d: 5.7 for 32 dimensions, 11 for 128."""
TOLD = 0.1
"""Of the targets' variance."""
ONE_DIRECTION = 0.999
"""λ_max of Σx over its trace, of the first layer: what is not along the mean is a thousandth."""


@rule(
    "dying-neurons",
    explains=(
        "vanishing-gradient",
        "no-gradient",
        "rank-collapse",
        "loss-not-decreasing",
        "learning-rate-too-low",
        "labels-unrelated",
    ),
)
def dying_neurons(evidence: Evidence) -> Iterator[Finding]:
    """ReLUs that are off on every example: no gradient passes them, so they stay off.

    Severe from 95 % of a layer's units, a warning from 70 %.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    last = inspection.signals[-1] if inspection.signals else None
    table = evidence.neurons
    for signal in inspection.signals:
        if signal.kind not in ("relu", "relu6") or signal.rows < ENOUGH_ROWS or signal.not_finite:
            continue
        dead = table[signal.name].is_dying if table is not None and signal.name in table else signal.dead
        share = float(dead.double().mean()) if len(dead) else 0.0
        if share < DYING or (signal.units < 4 and share < 1):
            continue
        yield Finding(
            rule="dying-neurons",
            layer=signal.name,
            severity=of_symptom(evidence, is_far=share >= DEAD),
            confidence=0.9,
            summary=f"{int(dead.sum())} of the {len(dead)} ReLUs behind {signal.name or 'the input'} are off on all "
            f"{inspection.examples if table is None else table.examples} examples.",
            evidence={"dead units": float(dead.sum()), "units": float(len(dead)), "share": share},
            reason="Where a ReLU is off its slope is 0, so the weights before it get no gradient (huang2020, figure XIII).",
            remedy=f"nn.LeakyReLU(0.01)  # behind {signal.name}; with a smaller rate and inputs of mean 0"
            + ("" if signal is not last else ", and none on the outputs"),
        )


@rule("full-neurons", explains=("loss-not-decreasing", "last-layer-drift", "activation-drift", "learning-rate-too-low"))
def full_neurons(evidence: Evidence) -> Iterator[Finding]:
    """ReLUs that are on for every example: on these data the layer is linear.

    A warning where all layers are, severe where such a network is seen not to train at any rate.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    layers = [
        s
        for s in inspection.signals
        if s.is_nonlinearity and s.kind == "relu" and s.rows >= ENOUGH_ROWS and len(s.full)
    ]
    shares = {s.name: float(s.full.double().mean()) for s in layers}
    for signal in layers:
        if shares[signal.name] >= FULL and signal.units >= 4:
            yield Finding(
                rule="full-neurons",
                layer=signal.name,
                severity="note" if min(shares.values()) < FULL else of_symptom(evidence, is_far=False),
                confidence=0.8,
                summary=f"{int(signal.full.sum())} of the {signal.units} ReLUs behind {signal.name or 'the input'} are on for "
                f"all {inspection.examples} examples: the layer is linear there.",
                evidence={"full units": float(signal.full.sum()), "units": float(signal.units)},
                reason="A ReLU that is always on is the identity (huang2020, figure XIII).",
                remedy=f"nn.Sequential(model.{signal.name}, nn.BatchNorm1d({signal.units}), nn.ReLU())",
            )


@rule("saturated-activation", explains=("vanishing-gradient", "loss-not-decreasing", "learning-rate-too-low"))
def saturated_activation(evidence: Evidence) -> Iterator[Finding]:
    """Hidden tanhs and sigmoids that are flat nearly everywhere: their slope is below a tenth of the largest one.

    Severe from 95 % of all values, a warning from 80 %. The last operation of a model is judged by its loss.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    hidden = [s for s in inspection.signals if s.saturated is not None]
    if hidden and inspection.output is not None and inspection.output.tail[:1] in (("Sigmoid",), ("Tanh",)):
        hidden = hidden[:-1]
    for signal in hidden:
        share = signal.saturated or 0.0
        if share < FLATTENING:
            continue
        yield Finding(
            rule="saturated-activation",
            layer=signal.name,
            severity=of_symptom(evidence, is_far=share >= FLAT),
            confidence=0.85,
            summary=f"{share:.0%} of the values of the {signal.kind} behind {signal.name or 'the input'} are where its slope "
            "is below a tenth of its largest.",
            evidence={"saturated share": share, "RMS of its output": signal.rms},
            reason="A gradient is multiplied by the slope, so little of it gets past.",
            remedy=f"nn.Sequential(model.{signal.name}, nn.BatchNorm1d({signal.units}), nn.{signal.kind.capitalize()}())"
            "  # or smaller weights, or scaled inputs",
        )


@rule(
    "rank-collapse", explains=("loss-not-decreasing", "labels-unrelated", "vanishing-gradient", "learning-rate-too-low")
)
def rank_collapse(evidence: Evidence) -> Iterator[Finding]:
    """A layer that maps all examples to nearly the same, although the inputs differ.

    The variation E‖h − E h‖²/E‖h‖² over at least 32 examples: severe below 1e-9, a warning below 1e-6.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.examples < 32:
        return
    zero = {w.layer for w in inspection.weights if w.role == "weight" and w.rms == 0}  # which give their bias, for now
    layers = [
        s
        for s in inspection.weighted()
        if s.variation is not None and not s.kind.startswith("Embedding") and s.name not in zero
    ]
    for before, signal in itertools.pairwise(layers):
        if (signal.variation or 0.0) < SIMILAR and signal.rms > 0:
            yield Finding(
                rule="rank-collapse",
                layer=signal.name,
                severity=of_symptom(evidence, is_far=(signal.variation or 0.0) < ALIKE),
                confidence=0.8,
                summary=f"the outputs of {signal.name} vary by {number(signal.variation or 0.0)} of their size over "
                f"{inspection.examples} examples; those of {before.name} by {number(before.variation or 0.0)}.",
                evidence={"variation": signal.variation or 0.0, "variation before": before.variation or 0.0},
                reason="What a layer maps to one point no later layer can tell apart (mean-field theory's ordered phase).",
                remedy=f"torch.nn.init.kaiming_normal_(model.get_submodule({signal.name!r}).weight)  # or norms between",
            )
            return


@rule("attention-saturation", explains=("vanishing-gradient", "learning-rate-too-low", "loss-not-decreasing"))
def attention_saturation(evidence: Evidence) -> Iterator[Finding]:
    """Attention in which positions look at one other only: one probability above 0.99 in half of the rows.

    Also where the logits have a standard deviation above 5. Severe in nine of ten rows, where it is above 10, or where
    a trial does not show that the network trains; what is learned may be sharp.
    """
    inspection, trial = evidence.inspection, evidence.trial
    if inspection is None:
        return
    output, is_doubtful = inspection.output, trial is not None and not trial.trains
    for seen in inspection.attention:
        if seen.ndim < 3 or seen.choices < 3 or (seen.saturated < SHARPENING and seen.logit_std < LARGE_LOGITS):
            continue
        if output is not None and output.shape == seen.shape and output.tail[:1] in (("Softmax",), ("LogSoftmax",)):
            continue  # the model's own probabilities
        yield Finding(
            rule="attention-saturation",
            layer=seen.name,
            severity=of_symptom(evidence, is_far=is_doubtful or seen.saturated >= SHARP or seen.logit_std > FAR_LOGITS),
            confidence=0.9,
            summary=f"{seen.saturated:.0%} of the attention rows at {seen.name} give one of {seen.choices} entries more than "
            f"0.99; their logits have a standard deviation of {number(seen.logit_std)}.",
            evidence={
                "saturated rows": seen.saturated,
                "entropy over that of even weights": seen.entropy,
                "std of logits": seen.logit_std,
            },
            reason="The slope of a softmax is p(1 − p), which is gone there. Queries and keys of variance 1 need 1/√d.",
            remedy="q, k = F.layer_norm(q, q.shape[-1:]), F.layer_norm(k, k.shape[-1:])\n"
            "scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5",
        )


@rule(
    "wrong-softmax-dimension",
    explains=("attention-saturation", "mixed-examples", "loss-not-decreasing", "labels-unrelated"),
)
def wrong_softmax_dimension(evidence: Evidence) -> Iterator[Finding]:
    """A softmax over the examples of the batch, or attention weights that are summed over another dimension."""
    inspection = evidence.inspection
    if inspection is None:
        return
    for seen in inspection.attention:
        is_last = inspection.output is not None and inspection.output.shape == seen.shape
        over_examples = seen.dim == 0 and seen.ndim > 1 and seen.shape[0] == inspection.batch_size and not is_last
        if over_examples or (seen.is_summed_elsewhere and seen.ndim >= 3):
            yield Finding(
                rule="wrong-softmax-dimension",
                layer=seen.name,
                severity="severe",
                confidence=0.9,
                summary=f"the softmax behind {seen.name} goes over dimension {seen.dim} of {list(seen.shape)}, "
                + ("the examples of the batch." if over_examples else "and the product behind it sums over another."),
                evidence={"dimension": float(seen.dim), "shape": str(list(seen.shape))},
                reason="The weights of what is added up then do not sum to one.",
                remedy="weights = scores.softmax(dim=-1)",
            )


@rule("ill-conditioned-input", explains=("learning-rate-too-low",))
def ill_conditioned_input(evidence: Evidence) -> Iterator[Finding]:
    """Inputs of the first layer that lie almost along one direction: λ_max of Σx is 0.999 of its trace.

    Gradient descent moves along the others a thousand times more slowly. Of hidden layers of ReLU networks much less is
    ordinary, so only the first layer is judged.
    """
    table = evidence.conditioning
    first = None if table is None or not len(table) else next(iter(table.values()))
    if first is None or first.x is None or first.x.dimension < 4 or not first.x.trace:
        return
    share = first.x.lambda_max / first.x.trace
    if share > ONE_DIRECTION:
        yield Finding(
            rule="ill-conditioned-input",
            layer=first.name,
            severity="warning",
            confidence=0.8,
            summary=f"{share:.2%} of what {first.name} receives lies along one direction.",
            evidence={"λ_max(Σx)": first.x.lambda_max, "trace": first.x.trace, "dimension": float(first.x.dimension)},
            reason="The rate is limited by the largest eigenvalue of Σx and progress by the others (huang2020, section 3.1).",
            remedy="inputs = inputs - mean  # of the training set, by feature",
        )


@rule("ill-conditioned-input", explains=("learning-rate-too-low", "loss-not-decreasing"))
def collinear_features(evidence: Evidence) -> Iterator[Finding]:
    """Features so alike that what tells the targets lies where gradient descent hardly moves.

    Of a table of numbers with at least 8 examples per feature: directions of the standardized features whose eigenvalue
    is below a thousandth of the largest tell a tenth or more of the targets' variance, beyond chance. Along them
    gradient descent takes λ_max/λ times as many steps. Silent where the trial learns half of that all the same.
    """
    inspection, trial = evidence.inspection, evidence.trial
    slow = None if trial is None or trial.relation is None or not trial.relation.is_regression else trial.relation.slow
    if inspection is None or trial is None or slow is None or slow.rest < TOLD or not inspection.weighted():
        return
    left = None if trial.constant is None else (1 - slow.fast - slow.rest / 2) * trial.constant
    if left is not None and trial.own is not None and trial.own.loss < left:
        return
    yield Finding(
        rule="ill-conditioned-input",
        layer=inspection.weighted()[0].name,
        severity="warning",
        confidence=0.85,
        summary=f"{slow.rest:.0%} of the targets' variance is told by directions of the inputs with less than a thousandth of "
        f"the largest eigenvalue, along which gradient descent takes {number(slow.condition)} times as many steps.",
        evidence={"told by fast directions": slow.fast, "told by slow ones": slow.rest, "λ_max / λ": slow.condition},
        reason="Features that are nearly multiples of each other, such as powers, have a Σx of large condition number, and "
        "the error along an eigenvector shrinks by 1 − lr·λ per step (huang2020, section 3.1).",
        remedy="u, s, v = torch.linalg.svd(x - x.mean(0), full_matrices=False)  # x: all training inputs\n"
        "inputs = (inputs - x.mean(0)) @ v.T / s * len(x) ** 0.5  # or fewer, orthogonal features",
    )
