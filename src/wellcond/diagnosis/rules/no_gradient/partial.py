"""Gradients that are there in part: exactly zero, of the last steps alone, or without one of the terms."""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import (
    flat_after,
    layers_of,
    listed,
    zero_gradients,
)
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.no_gradient.shares import UNUSED, share_of
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number

FEW_STEPS = Condition(
    "last steps that a gradient reaches", 2, origin="a cut after each step; truncation on purpose leaves tens of steps"
)

LOST_SLOPE = Threshold(
    "share of the slope of the loss that its gradient does not have", 0.2, 0.5,
    origin="0 if every term has a gradient: the error of the slope is subtracted; a fifth is no small term",
)  # fmt: skip

HALVED = Condition(
    "loss of a handful of examples after training / before", 0.5, origin="the network clearly learns from the rest"
)


@rule("no-gradient")
def zero_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Gradients of exactly zero, in all weights or in those before some operation, while the loss is not at its best.

    A step function, round() or sign() passes zeros back. A network that fits its data, or satisfies all its margins,
    has zero gradient for a good reason; and parameters of zeros, as in zero-initialized branches, stop gradients until
    their first step: then only those count that a probe finds to be cut off otherwise. Flat gates, tanhs and ReLUs are
    reported as vanishing-gradient: they have a slope, but not at these inputs.
    """
    inspection = evidence.inspection
    factors = None if evidence.behavior is None else evidence.behavior.zero_factors
    cut = frozenset[str]() if factors is None else factors.cut
    if inspection is None or (pair := zero_gradients(inspection, cut)) is None:
        return
    zero, reached = pair
    layers = layers_of(zero)
    if flat_after(inspection, layers[-1]):
        return
    share = share_of(zero, reached)
    yield Finding(
        rule="no-gradient",
        layer=layers[-1] if len(layers) < len(layers_of(reached)) else "",
        severity="severe" if share >= UNUSED.severe else "warning",
        basis="measured",
        summary=f"the gradient is exactly zero in {listed(layers)}, {share:.0%} of all parameters, although the loss "
        f"is {number(inspection.loss or 0.0)}.",
        evidence={"loss": inspection.loss or 0.0, "share of parameters": share},
        reason="A step, round(), sign() or a comparison has slope zero everywhere, so no gradient passes through it.",
        remedy="# put a smooth function in place of the step, round, sign or comparison in forward or the loss",
    )


@rule("no-gradient")
def cut_in_time(evidence: Evidence) -> Iterator[Finding]:
    """Steps of a sequence that the answer depends on, but whose gradient is exactly zero: the state is detached.

    Severe if a gradient reaches the last two steps or fewer, or if the trial does not train, unless the trial shows
    that the network trains well: then, and if it reaches further, a warning. A state that is detached between batches
    is not within a sequence, and is not reported.
    """
    memory = None if evidence.behavior is None else evidence.behavior.memory
    if memory is None or not memory.change:
        return
    trial = evidence.trial
    is_lost = memory.reached <= FEW_STEPS.at or (trial is not None and trial.fails)
    trains = trial is not None and trial.trains_well
    yield Finding(
        rule="no-gradient",
        layer=memory.layer,
        severity="severe" if is_lost and not trains else "warning",
        basis="proven",
        summary=f"of {memory.steps} steps a gradient reaches the last {memory.reached} only, although what is read at "
        f"the end changes by {memory.change:.1%} with the steps before: the state is cut off between them"
        f"{f', at {memory.layer}' if memory.layer else ''}.",
        evidence={"steps": float(memory.steps), "reached": float(memory.reached), "relative change": memory.change},
        reason="Weights are not told what to keep for later: no gradient passes a detach(), .data or no_grad().",
        remedy="# carry the state from step to step without a detach(), .data, no_grad() or a round trip through "
        "numbers; detach it between batches only",
    )


@rule("no-gradient")
def term_without_gradient(evidence: Evidence) -> Iterator[Finding]:
    """A term of the loss that moves with the weights, but from which no gradient reaches any of them.

    The graph shows the term, and moving the weights after a trial on a handful of examples shows that a fifth or more
    of the loss's slope is not in its gradient. Severe if half is missing and the trial does not halve the loss;
    otherwise a warning. A detach() of a part of a term, as of a target network or a baseline, is by design and is not
    reported.
    """
    few = None if evidence.trial is None else evidence.trial.few
    if few is None or few.lost_slope is None or not LOST_SLOPE.is_warning(few.lost_slope):
        return
    lost = few.lost_slope
    is_lost = LOST_SLOPE.is_severe(lost) and few.after > HALVED.at * few.before
    yield Finding(
        rule="no-gradient",
        severity="severe" if is_lost else "warning",
        basis="proven",
        summary="a term of the loss moves with the weights, but has no gradient: on a handful of examples the loss "
        f"goes from {number(few.before)} to {number(few.after)}, and {min(lost, 1.0):.0%} of its slope there is not "
        "in its gradient.",
        evidence={"share of the slope": lost, "loss before": few.before, "loss after": few.after},
        reason="A derivative without create_graph=True, .data, .item(), no_grad() or a round trip through NumPy makes "
        "a term a mere number.",
        remedy="# compute the term with a graph: torch.autograd.grad(…, create_graph=True), and no .item(), .data, "
        "detach() or NumPy",
    )
