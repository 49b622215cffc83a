"""Weights that a loss does not depend on: a cut graph, results that are not used, layers that are never called."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.weights import Weight
from wellcond.diagnosis.reading import (
    are_fresh,
    in_order,
    layers_of,
    listed,
    matrices,
)
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.no_gradient.shares import NEVER_CALLED, UNUSED, share_of


@rule("no-gradient")
def loss_without_graph(evidence: Evidence) -> Iterator[Finding]:
    """A loss that depends on no trainable parameter: a detach, an argmax, a no_grad or a round trip through NumPy.

    Not reported if it does so in training mode: a model may use an average of its weights where it is evaluated.
    """
    inspection = evidence.inspection
    if inspection is None or inspection.loss_depends is not False or inspection.gradient_error:
        return
    if inspection.reached_in_training:
        return
    if inspection.loss is None or not math.isfinite(inspection.loss):
        return
    yield Finding(
        rule="no-gradient",
        severity="severe",
        basis="proven",
        summary="the loss depends on no trainable parameter, so no step changes anything.",
        evidence={"loss": inspection.loss},
        reason="The graph between the weights and the loss is cut: by detach(), .data, no_grad(), argmax, round or "
        "NumPy.",
        remedy="# look for the first tensor in forward or the loss whose requires_grad is False: there is the cut",
    )


@rule("no-gradient")
def not_reached(evidence: Evidence) -> Iterator[Finding]:
    """Trainable weights that no gradient reaches although the loss has one.

    Severe if layers that are called hold a tenth of all weights or are two or more: their outputs are computed and
    thrown away, like a residual branch that is never added, or cut off by a detach. One layer alone may be spare.
    Layers that are never called are a note unless they hold half of all weights; experts that a router did not choose
    are never severe. Layers under `no_grad` that the optimizer holds are severe if they hold a tenth of all weights and
    these are as an initialization leaves them; what has been trained before may be fixed on purpose. Weights that get a
    gradient in training mode are not reported.
    """
    inspection = evidence.inspection
    if inspection is None or not inspection.loss_depends:
        return
    weights = matrices(inspection)
    in_training = inspection.reached_in_training
    unreached = [w for w in weights if w.is_trainable and w.gradient is None and w.name not in in_training]
    if called := in_order(w for w in unreached if w.order is not None):
        yield _unused(inspection, called, weights)
    if cut := [w for w in unreached if w.order is None and w.is_called_without_graph]:
        yield _under_no_grad(evidence.problem.model, cut, weights)
    if idle := [w for w in unreached if w.order is None and not w.is_called_without_graph]:
        yield _never_called(idle, weights)


def _unused(inspection: Inspection, called: list[Weight], weights: list[Weight]) -> Finding:
    share, layers = share_of(called, weights), layers_of(called)
    # a second output, which the loss does not read, may be meant for something else
    is_all_read = inspection.returned < 2 and (share >= UNUSED.severe or len(layers) > 1)
    last = layers[-1]  # what it returns is not used, or cut off; those before it only feed it
    return Finding(
        rule="no-gradient",
        layer=last,
        severity="severe" if share >= NEVER_CALLED.severe or is_all_read else "warning",
        basis="proven",
        summary=f"no gradient reaches {listed(layers)}, {share:.0%} of all weights, although a pass calls "
        f"{'them' if len(layers) > 1 else 'it'}: the result is not used, or cut off.",
        evidence={"share of weights": share, "layers without a gradient": float(len(layers))},
        reason="A weight without a gradient stays as it was initialized: its output is never added, or detached.",
        remedy=f"# use what {last.rpartition('.')[0] or last} returns in forward, without a detach()",
    )


def _under_no_grad(model: nn.Module, cut: list[Weight], weights: list[Weight]) -> Finding:
    share, layers = share_of(cut, weights), layers_of(cut)
    is_held = any(w.is_held for w in cut)
    is_lost = share >= UNUSED.severe and are_fresh(model, layers)
    state = ", still as they were initialized" if is_lost else ""
    return Finding(
        rule="no-gradient",
        layer=layers[0],
        severity="severe" if is_lost and is_held else "warning" if is_held else "note",
        basis="proven",
        summary=f"{listed(layers)}, {share:.0%} of all weights{state}, run under no_grad and are not trained.",
        evidence={"share of weights": share},
        reason="Nothing that is computed under no_grad gets a gradient, even if the optimizer holds it.",
        remedy=f"# take {layers[0]} out of the no_grad(), or out of the optimizer if it is fixed on purpose",
    )


def _never_called(idle: list[Weight], weights: list[Weight]) -> Finding:
    share, layers = share_of(idle, weights), layers_of(idle)
    # by its name alone: that other layers of the same list are called is also true of blocks that were forgotten
    is_routed = any("expert" in layer.lower() for layer in layers)
    is_much = share >= NEVER_CALLED.severe and not is_routed
    return Finding(
        rule="no-gradient",
        layer=layers[0],
        severity="severe" if is_much else "note",
        basis="proven",
        summary=f"{listed(layers)}, {share:.0%} of all weights, {'are' if len(layers) > 1 else 'is'} never called.",
        evidence={"share of weights": share, "layers never called": float(len(layers))},
        reason="A layer that forward() leaves out is not trained.",
        remedy=f"# call {layers[0]} in forward, or delete it",
    )
