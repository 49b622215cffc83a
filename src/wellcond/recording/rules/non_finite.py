"""non-finite: a loss, a gradient or weights that become NaN or infinite.

Wrong:
    loss = -torch.log(p).mean()  # p may be 0
Right:
    loss = -torch.log(p.clamp_min(1e-8)).mean()  # or a loss of logits
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition
from wellcond.recording.judging.levels import began, last_before
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results.quantities import (
    GRADIENT_NORM,
    LOSS_SCALE,
    NOT_FINITE_GRADIENTS,
    NOT_FINITE_SHARE,
    NOT_FINITE_VALUES,
    SIGNAL_RMS,
    STATISTICS_GAP,
    TRAINING_LOSS,
    WEIGHT_NORM,
)
from wellcond.results.text import named

RECENT = Condition("latest losses that are looked at", 8, origin="one bad batch is followed by finite losses")
SAMPLES = Condition("samples in a row", 2, origin="running averages never lose a NaN")
IN_THE_DATA = "# look at how that batch was read, and drop or fill in what is missing where the data set is made"
IN_THE_CODE = (
    "# look for a logarithm or a division of 0, a root of a negative number, or a rate that is too high: "
    "torch.autograd.set_detect_anomaly(True) names the operation"
)
WHAT = {SIGNAL_RMS: "outputs", WEIGHT_NORM: "weights", GRADIENT_NORM: "gradient"}


@run_rule("non-finite", quantity=TRAINING_LOSS)
def non_finite(evidence: RunEvidence) -> Iterator[Finding]:
    """A loss or weights that are NaN or infinite; severe if it stays, a warning if later losses are finite again.

    A batch that holds such values is named. The layer is the one that returns it on this batch whatever the weights
    are, or else the first one that shows it: of outputs and weights the first in the model's order, of gradients the
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
    source, data = _source(evidence), evidence.history.series(NOT_FINITE_VALUES)
    layer, what = ("", "") if len(data) else source or _where(evidence, begin)
    last = int(losses.steps[is_bad][-1]) if is_bad.any() else begin
    lost = int(is_bad.sum())
    verb = "is" if what == WHAT[GRADIENT_NORM] else "are"
    place = f"; the first that {verb} not finite {verb} the {what} of {named(layer)}" if layer else ""
    place += ", whatever the weights are" if source else ""
    if len(data):
        count, one = int(data.values[0]), data.values[0] == 1
        place = (
            f"; the batch of step {data.steps[0]} holds {count} value{'s' * (not one)} that {'is' if one else 'are'} so"
        )
    yield Finding(
        rule="non-finite",
        layer=layer,
        severity="severe" if stays else "warning",
        basis="proven",
        summary=f"the {'loss' if lost else what or 'gradient'} is NaN or infinite from step {begin} on{place}."
        if stays
        else f"the loss is NaN or infinite at {lost} of {len(losses)} steps, first at step {begin}{place}.",
        evidence={"steps with a loss that is not finite": float(lost)}
        | ({"first": what} if what else {})
        | ({"values in the batch": float(data.values[0])} if len(data) else {}),
        reason="NaN spreads to every weight with the next step, and no later step removes it.",
        remedy=IN_THE_DATA if len(data) else IN_THE_CODE,
        step=begin,
        until=None if stays else last,
    )


@run_rule("non-finite", quantity=STATISTICS_GAP)
def statistics_are_not_finite(evidence: RunEvidence) -> Iterator[Finding]:
    """Running statistics of a BatchNorm that are NaN or infinite, while the loss is finite. Severe.

    Training does not show it, since batches are normalized by their own statistics.
    """
    losses = evidence.history.series(TRAINING_LOSS).values
    if not np.isfinite(losses[-int(RECENT.at) :]).all() or _first(evidence, WEIGHT_NORM) is not None:
        return  # then it is what comes before that makes them so
    for layer in evidence.history.layers(STATISTICS_GAP):
        series = evidence.history.series(STATISTICS_GAP, layer)
        start = last_before(~np.isfinite(series.values))
        if len(series) - start < SAMPLES.at:
            continue
        begin = began(series, start)
        yield Finding(
            rule="non-finite",
            layer=layer,
            severity="severe",
            basis="proven",
            summary=f"since step {begin} the running statistics of {named(layer)} are NaN or infinite, although the "
            "loss is finite.",
            evidence={"first": "running statistics", "samples": float(len(series) - start)},
            reason="A batch that is not finite enters the running averages in its forward pass, also if its step is "
            "skipped, and stays there. In evaluation every output is NaN.",
            remedy="norm.reset_running_stats()  # then a few batches in training mode; and check batches before the "
            "forward pass",
            step=begin,
        )


def _source(evidence: RunEvidence) -> tuple[str, str] | None:
    """The layer that returns what is not finite whatever the weights are, and what of it; None if it is not known."""
    for quantity, what in ((NOT_FINITE_SHARE, WHAT[SIGNAL_RMS]), (NOT_FINITE_GRADIENTS, WHAT[GRADIENT_NORM])):
        if layers := evidence.history.layers(quantity):
            return layers[0], what
    return None


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
