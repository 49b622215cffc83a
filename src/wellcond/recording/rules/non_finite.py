"""non-finite: a loss, a gradient or weights that become NaN or infinite.

Wrong: `torch.log(p)` where `p` may be 0. Right: `torch.log(p.clamp_min(1e-8))`, or a loss of logits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results.quantities import (
    GRADIENT_NORM,
    LOSS_SCALE,
    SIGNAL_RMS,
    TRAINING_LOSS,
    WEIGHT_NORM,
)
from wellcond.results.text import named

RECENT = Condition("latest losses that are looked at", 8, origin="one bad batch is followed by finite losses")
WHAT = {SIGNAL_RMS: "outputs", WEIGHT_NORM: "weights", GRADIENT_NORM: "gradient"}


@run_rule("non-finite", quantity=TRAINING_LOSS)
def non_finite(evidence: RunEvidence) -> Iterator[Finding]:
    """A loss or weights that are NaN or infinite; severe if it stays, a warning if later losses are finite again.

    The layer is the first one that shows it: of outputs and weights the first in the model's order, of gradients the
    last. An infinite gradient alone is normal with a loss scale, which is halved then.
    """
    losses = evidence.history.series(TRAINING_LOSS)
    is_bad = ~np.isfinite(losses.values)
    steps = [int(losses.steps[is_bad][0])] if is_bad.any() else []
    weights = _first(evidence, WEIGHT_NORM)
    if weights is not None:
        steps.append(weights[0])
    if not len(evidence.history.series(LOSS_SCALE)) and (gradient := _first(evidence, GRADIENT_NORM)) is not None:
        steps.append(gradient[0])
    if not steps:
        return
    begin = min(steps)
    stays = weights is not None or bool(is_bad[-int(RECENT.at) :].any())
    layer, what = _where(evidence, begin)
    last = int(losses.steps[is_bad][-1]) if is_bad.any() else begin
    count = int(is_bad.sum())
    place = f"; the first that is not finite are the {what} of {named(layer)}" if layer else ""
    yield Finding(
        rule="non-finite",
        layer=layer,
        severity="severe" if stays else "warning",
        basis="proven",
        summary=f"the {'loss' if count else what or 'gradient'} is NaN or infinite from step {begin} on{place}."
        if stays
        else f"the loss is NaN or infinite at {count} of {len(losses)} steps, first at step {begin}{place}.",
        evidence={"steps with a loss that is not finite": float(count)} | ({"first": what} if what else {}),
        reason="NaN spreads to every weight with the next step, and no later step removes it.",
        remedy="# look for a logarithm or a division of 0, a root of a negative number, or a rate that is too high: "
        "torch.autograd.set_detect_anomaly(True) names the operation",
        step=begin,
        until=None if stays else last,
    )


def _first(evidence: RunEvidence, quantity: str) -> tuple[int, list[str]] | None:
    """The first step at which a quantity of a layer is not finite, and the layers at which it is not."""
    first: dict[str, int] = {}
    for layer in evidence.history.layers(quantity):
        series = evidence.history.series(quantity, layer)
        bad = np.flatnonzero(~np.isfinite(series.values))
        if len(bad):
            first[layer] = int(series.steps[bad[0]])
    if not first:
        return None
    step = min(first.values())
    order = [layer for layer in (evidence.layers or tuple(first)) if first.get(layer) == step]
    return step, order or [layer for layer in first if first[layer] == step]


def _where(evidence: RunEvidence, begin: int) -> tuple[str, str]:
    """The layer that is not finite first, and what of it; "" if all are at once."""
    seen = {quantity: _first(evidence, quantity) for quantity in WHAT}
    dated = [(each[0], quantity, each[1]) for quantity, each in seen.items() if each is not None]
    if not dated:
        return "", ""
    _, quantity, layers = min(dated, key=lambda each: each[0])  # of equals outputs first: gradients follow from them
    if len(layers) == len(evidence.history.layers(quantity)) > 1:
        return "", WHAT[quantity]
    return layers[-1] if quantity == GRADIENT_NORM else layers[0], WHAT[quantity]
