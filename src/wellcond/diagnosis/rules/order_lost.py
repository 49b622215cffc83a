"""order-lost: a network that cannot see the order of a sequence whose order matters.

Wrong:
    hidden = encoder(embedding(tokens)).mean(1)
Right:
    hidden = encoder(embedding(tokens) + positions[:, : tokens.shape[1]]).mean(1)
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.probes.order import Order
from wellcond.diagnosis.reading import is_embedding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number

SAME = Condition(
    "‖f − f'‖/‖f‖ of outputs with the steps at other places", 1e-4,
    origin="rounding in float32; networks with positions or recurrence have 0.1 or more",
)  # fmt: skip
PREDICTS = Condition(
    "a linear fit of steps at their places, in standard deviations of shuffled targets", 8.0,
    origin="chance exceeds 4 once in 30,000 fits",
)  # fmt: skip
BY_CHANCE = Condition("the same of neighbors among sorted steps", 4.0, origin="chance exceeds it once in 30,000 fits")
BETTER = Threshold(
    "error of a fit of steps at their places / of a fit of their sums", 0.9, 0.5, bad="below",
    origin="above 1 where the order does not matter, because it has more to fit; 0.7 for sets that were sorted",
)  # fmt: skip


@rule("order-lost")
def order_lost(evidence: Evidence) -> Iterator[Finding]:
    """One answer for a sequence, whatever the order of its steps, although the order predicts the targets.

    The steps change places and the outputs stay the same; over up to 1024 examples a linear fit of steps at their
    places, or of pairs of neighbors, has an error of 0.9 or less of that of a fit of their sums. Severe if the trial
    shows that the network does not train, or if the error is half of it or less, unless the loss of the trial is halved
    without the order; a warning then, and if nothing is known of the training. Blocks of an image are steps too. Sets,
    counts of words and clouds of points have no such fit.
    """
    order = None if evidence.behavior is None else evidence.behavior.order
    if order is None or order.placed is None or order.unordered is None or order.change > SAME.at:
        return
    ratio = order.placed.error / order.unordered.error
    severity = _severity(evidence, ratio)
    if order.placed.advantage < PREDICTS.at or severity is None:
        return
    yield _finding(
        evidence,
        order,
        severity,
        f", although it tells of the targets: a fit of every step at its place has {number(ratio)} of the error of a "
        "fit of their sums",
        {"error with order / without": ratio, "fit with order, in σ": order.placed.advantage},
    )


@rule("order-lost")
def told_by_neighbors(evidence: Evidence) -> Iterator[Finding]:
    """The same if no linear fit shows it: sequences that are alike have the same target, and sorted ones do not.

    Over up to 1024 examples, neighbors or a smooth fit of the steps at their places predict the targets 8 standard
    deviations better than chance, and of the steps sorted by size less than 4. Severe if a trial shows that the network
    does not train, a warning if there is none; a network that trains is not reported.
    """
    order, trial = None if evidence.behavior is None else evidence.behavior.order, evidence.trial
    if order is None or order.change > SAME.at or any(True for _ in order_lost(evidence)):
        return
    if not order.known > PREDICTS.at or not order.known_unordered < BY_CHANCE.at:
        return
    does_not_learn = trial is not None and trial.own is not None and trial.outcome(trial.own) != "learns"
    if trial is not None and not does_not_learn:
        return
    yield _finding(
        evidence,
        order,
        "severe" if does_not_learn else "warning",
        f", although it tells of the targets: similar sequences predict them {number(order.known)} standard deviations "
        f"better than chance, and the same as sets {number(order.known_unordered)}",
        {"told with order, in σ": order.known, "told without order, in σ": order.known_unordered},
    )


@rule("order-lost")
def moves_along(evidence: Evidence) -> Iterator[Finding]:
    """Outputs for each step that move along with the inputs, in a network that combines steps and does not train.

    Attention without positions knows which tokens there are, but not where. A warning.
    """
    behavior, trial = evidence.behavior, evidence.trial
    order = None if behavior is None else behavior.order
    if order is None or behavior is None or not order.is_by_step or order.change > SAME.at:
        return
    combines = behavior.memory is not None and behavior.memory.reached > 1
    if combines and trial is not None and trial.fails:
        yield _finding(evidence, order, "warning", ", and the network does not train", {})


def _severity(evidence: Evidence, ratio: float) -> Severity | None:
    trial = evidence.trial
    if not BETTER.is_warning(ratio):
        return None
    if trial is None:
        return "warning"
    if BETTER.is_severe(ratio):
        return "warning" if trial.has_learned or trial.halves else "severe"
    return "severe" if trial.trains is False else "warning" if trial.trains is None else None


def _finding(
    evidence: Evidence, order: Order, severity: Severity, why: str, numbers: dict[str, float | str]
) -> Finding:
    return Finding(
        rule="order-lost",
        layer=_positions(evidence) or _table(evidence),
        severity=severity,
        basis="measured" if numbers else "tried",
        summary=f"the outputs are the same in whatever order the steps come{why}.",
        evidence={"relative change": order.change, **numbers},
        reason="Attention and sums treat all steps alike: where a token stands has to be added to it.",
        remedy="# add positions to the embeddings, as in x + self.positions[:, :x.shape[1]] with a learned parameter, "
        "or read the steps by a recurrent or convolutional layer",
    )


def _positions(evidence: Evidence) -> str:
    """The name of a trainable parameter by itself that is not used: it may have been meant for the positions."""
    weights = () if evidence.inspection is None else evidence.inspection.weights
    unused = [w.name for w in weights if w.is_trainable and w.role == "other" and w.gradient is None]
    return unused[0] if len(unused) == 1 else ""


def _table(evidence: Evidence) -> str:
    """The table of tokens, to whose rows positions are to be added, if there is a single one."""
    signals = () if evidence.inspection is None else evidence.inspection.signals
    tables = [each.name for each in signals if is_embedding(each)]
    return tables[0] if len(tables) == 1 else ""
