"""gradients-not-cleared: gradients of earlier steps that are added to those of a step.

Wrong:
    loss.backward()
    optimizer.step()
Right:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.history import Series
from wellcond.recording.judging.levels import finite, halfway, lasting, median
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import UNCLEARED_GRADIENT
from wellcond.results.text import named

OLD = Threshold(
    "norm of the old gradient / norm of the new one", math.nan, 1e-6,
    origin="it is exactly 0 if the gradient was cleared; the rest is rounding of float32",
)  # fmt: skip
SAMPLES = Condition(
    "samples in a row", 2, origin="a gradient that is left over once, as before a first step, is no rule"
)


@run_rule("gradients-not-cleared", quantity=UNCLEARED_GRADIENT)
def gradients_not_cleared(evidence: RunEvidence) -> Iterator[Finding]:
    """The first backward pass of a step is added to the gradient of the step before. Severe.

    Backward passes between two steps, which accumulate a gradient on purpose, are not meant. The layer is the first of
    those that are looked at, if only some of them are not cleared.
    """
    old = finite(evidence.history.series(UNCLEARED_GRADIENT)).since(2)  # before the first step there is none
    begin = lasting(old, OLD.severe)
    if begin is None or len(old.since(begin)) < SAMPLES.at:
        return
    begin = _by_its_size(old, begin)
    share = median(old.since(begin).values)
    layer = next((each for each in evidence.layers if _is_left(evidence, each, begin)), "")
    whose = f"gradients of {named(layer)}" if layer else "gradients"
    yield Finding(
        rule="gradients-not-cleared",
        layer=layer,
        severity="severe",
        basis="proven",
        summary=f"since step {begin} {whose} are not cleared: each is added to the one before, whose norm is "
        f"{number(share)} times that of the new one.",
        evidence={"old gradient / new gradient": share},
        limits=OLD.limits(),
        reason="The sum of all gradients since the start points to where the weights were, and grows with every step.",
        remedy="optimizer.zero_grad()  # before loss.backward()",
        step=begin,
    )


def _is_left(evidence: RunEvidence, layer: str, begin: int) -> bool:
    """Whether the gradient of a layer is not cleared, while another layer's is."""
    return median(finite(evidence.history.series(UNCLEARED_GRADIENT, layer)).since(begin).values) > OLD.severe


def _by_its_size(old: Series, begin: int) -> int:
    """When it began, by the first sample of it: a sum of n gradients is √n times as long as one, or up to n times."""
    place = int(np.searchsorted(old.steps, begin))
    if place == 0:
        return begin
    cleared, seen, ratio = int(old.steps[place - 1]), int(old.steps[place]), float(old.values[place])
    earliest = max(cleared + 1, seen - math.ceil(min(ratio, seen) ** 2))
    return halfway(earliest, max(earliest, seen - round(ratio)))
