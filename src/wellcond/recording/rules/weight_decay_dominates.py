"""weight-decay-dominates: weights that shrink while the loss rises.

Wrong: a weight decay that a schedule raises, or one that wins as soon as gradients are small.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.history import Series
from wellcond.recording.layer_changes import around
from wellcond.recording.levels import began, finite, last_before, median
from wellcond.recording.rates import lr_ratio
from wellcond.recording.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import WEIGHT_NORM

LOST = Threshold(
    "rise of the loss since its lowest level / its fall until then", 0.1, 0.3,
    origin="a tenth of what was learned, if weights shrink at the same time, or a third",
)  # fmt: skip
SHRUNK = Condition(
    "norm of a layer's weights / before the rise", 0.85, origin="without decay norms grow, by the noise of steps alone"
)
MOST = Condition(
    "share of the layers that have shrunk", 0.6, origin="decay shrinks all that are not held by a gradient"
)
RAISED = Condition("learning rate / lowest before", 1.2, origin="a rate that is raised lifts the loss by itself")

BEGINS = 0.05
"""Share of the shrinking from which on it has begun."""


@run_rule("weight-decay-dominates", quantity=WEIGHT_NORM)
def weights_shrink(evidence: RunEvidence) -> Iterator[Finding]:
    """The weights of most layers have shrunk by 15 % or more since just before the loss began to rise.

    The loss must have lost a tenth of what was learned; severe from a third.
    """
    rise = evidence.loss.rise
    if (
        rise is None
        or not rise.is_lasting
        or not LOST.is_warning(rise.lost)
        or lr_ratio(evidence, rise.step) > RAISED.at
    ):
        return
    shrunk, begins = {}, []
    layers = evidence.history.layers(WEIGHT_NORM)
    for layer in layers:
        series = finite(evidence.history.series(WEIGHT_NORM, layer))
        first, last = np.searchsorted(series.steps, (rise.step - 2 * around(rise.step), rise.step)).tolist()
        first = max(0, min(first, last - 1))  # the last sample before, at least
        part, steps = series.values[first:], series.steps[first:]
        near = part[: int(np.searchsorted(steps, rise.step)) + 1]
        if not len(near) or not near.max() > 0:
            continue
        highest, now = float(near.max()), median(part[-3:])
        if now < SHRUNK.at * highest:
            shrunk[layer] = now / highest
            start = last_before(part < highest - BEGINS * (highest - now))
            begins.append(began(Series(steps, part), start))
    if len(shrunk) < MOST.at * len(layers) or not shrunk:
        return
    begin = min(rise.step, int(np.median(begins)))
    middle = median(np.array(list(shrunk.values())))
    yield Finding(
        rule="weight-decay-dominates",
        severity="severe" if LOST.is_severe(rise.lost) else "warning",
        basis="measured",
        summary=f"since step {begin} the weights of {len(shrunk)} of {len(layers)} layers shrink, to {number(middle)} "
        f"of their norm, and the loss has risen from {number(rise.lowest)} to {number(rise.level)}.",
        evidence={
            "weights / before": middle,
            "layers that shrink": float(len(shrunk)),
            "level before": rise.lowest,
            "level now": rise.level,
        },
        reason="The gradient of the loss holds the weights against decay. Once it is smaller than wd·θ they shrink, "
        "also those that the network needs.",
        remedy='for group in optimizer.param_groups:\n    group["weight_decay"] = 1e-4  # and look for what raised it',
        step=begin,
    )
