"""weight-decay-dominates: weights that shrink while the loss rises.

Wrong:
    for group in optimizer.param_groups:
        group["weight_decay"] *= 2  # after every epoch
Right:
    for group in optimizer.param_groups:
        group["weight_decay"] = 5e-4
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import fmean

import numpy as np

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.history import Series
from wellcond.recording.judging.layer_changes import around
from wellcond.recording.judging.levels import began, finite, last_before, median
from wellcond.recording.judging.rates import at, lr_ratio
from wellcond.recording.judging.rises import Rise
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.results import number
from wellcond.results.quantities import LR, WEIGHT_DECAY, WEIGHT_NORM

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

JUMP = Condition(
    "height of the first losses of the rise / height now", 1.5,
    origin="weights that shrink lift the loss little by little; a jump that comes back is of other data or terms",
)  # fmt: skip
TENFOLD = Condition("weight decay / before", 10.0, origin="schedules of decay, as DINO's, go up tenfold in a whole run")
BY_AND_BY = Condition(
    "weight decay just before it was tenfold / before", 1.5, origin="it was raised before: this is no single step"
)

MOST_STEPS = 200
"""Steps at which decay and rate are looked up."""
BEGINS = 0.05
"""Share of the shrinking from which on it has begun."""


@run_rule("weight-decay-dominates", quantity=WEIGHT_NORM)
def weights_shrink(evidence: RunEvidence) -> Iterator[Finding]:
    """The weights of most layers have shrunk by 15 % or more since just before the loss began to rise.

    The loss must have lost a tenth of what was learned; severe from a third, unless the optimizer has no decay: then
    the loop shrinks them, or a term of the loss.
    """
    rise = _rise(evidence)
    if rise is None:
        return
    layers, shrunk, _ = _layers_that_shrink(evidence, rise)
    if len(shrunk) < MOST.at * len(layers) or not shrunk:
        return
    begin = min(rise.step, int(np.median([step for _, step in shrunk.values()])))
    raised = _raised(evidence, rise)
    if raised is not None:
        begin = raised if _is_at_once(evidence, raised) else min(rise.step, _shrunk_since(evidence, raised, shrunk))
    middle = median(np.array([share for share, _ in shrunk.values()]))
    decays = finite(evidence.history.series(WEIGHT_DECAY))
    has_none = len(decays) > 0 and not decays.values.any()
    shrinks = f"since step {begin} the weights of {len(shrunk)} of {len(layers)} layers shrink, to {number(middle)} of "
    shrinks += "their norm" + has_none * " though the optimizer has no weight decay"
    finding = _finding(rise, begin, shrinks, {"weights / before": middle, "layers that shrink": float(len(shrunk))})
    yield replace(finding, severity="warning") if has_none else finding


@run_rule("weight-decay-dominates", quantity=WEIGHT_DECAY)
def decay_was_raised(evidence: RunEvidence) -> Iterator[Finding]:
    """Weight decay is ten times what it was before the loss began to rise, and alone has shrunk weights by 15 %.

    If norms of weights since then are known, some layer's must show it; where most do, `weights_shrink` says it.
    """
    rise = _rise(evidence)
    begin = None if rise is None else _raised(evidence, rise)
    if rise is None or begin is None:
        return
    layers, shrunk, is_known = _layers_that_shrink(evidence, rise)
    if (is_known and not shrunk) or (shrunk and len(shrunk) >= MOST.at * len(layers)):
        return
    decays, rates = (finite(evidence.history.series(quantity)) for quantity in (WEIGHT_DECAY, LR))
    steps = np.arange(begin, evidence.step + 1)
    shares = [at(decays, step) * at(rates, step) for step in steps[:: math.ceil(len(steps) / MOST_STEPS)].tolist()]
    left = math.exp(-fmean(shares) * len(steps))
    if left >= SHRUNK.at:
        return
    before, now = float(decays.values[decays.steps < begin].min()), at(decays, evidence.step)
    if not _is_at_once(evidence, begin):
        gone = np.cumsum(shares) * len(steps) / len(shares)
        begin = min(rise.step, int(begin + np.searchsorted(gone, -math.log(SHRUNK.at)) * len(steps) / len(shares)))
    yield _finding(
        rise,
        begin,
        f"since step {begin} weight decay is raised, from {number(before)} to {number(now)}: weights that no gradient "
        f"holds shrink to {number(left)}",
        {"weight decay": now, "weight decay before": before},
    )


def _rise(evidence: RunEvidence) -> Rise | None:
    """The rise of a loss that weights which shrink may be the reason of."""
    rise = evidence.loss.rise
    if (
        rise is None
        or not rise.is_lasting
        or not LOST.is_warning(rise.lost)
        or lr_ratio(evidence, rise.step) > RAISED.at
        or rise.first - rise.lowest > JUMP.at * (rise.level - rise.lowest)
    ):
        return None
    return rise


def _layers_that_shrink(evidence: RunEvidence, rise: Rise) -> tuple[list[str], dict[str, tuple[float, int]], bool]:
    """All layers, those that have shrunk with how far and since when, and whether any was read since the rise."""
    layers = evidence.history.layers(WEIGHT_NORM)
    every = {layer: _shrinking(evidence.history.series(WEIGHT_NORM, layer), rise.step) for layer in layers}
    known = {layer: each for layer, each in every.items() if each is not None}
    return layers, {layer: each for layer, each in known.items() if each[0] < SHRUNK.at}, bool(known)


def _raised(evidence: RunEvidence, rise: Rise) -> int | None:
    """Since when decay is ten times what it was before the rise; None if it is not."""
    decays = finite(evidence.history.series(WEIGHT_DECAY))
    if not len(decays):
        return None
    before = float(decays.values[decays.steps <= rise.step].min(initial=float(decays.values[0])))
    if not decays.values[-1] or decays.values[-1] < TENFOLD.at * before:
        return None
    return int(decays.steps[last_before(decays.values >= TENFOLD.at * before)])


def _shrunk_since(evidence: RunEvidence, raised: int, layers: Iterable[str]) -> int:
    """The step at which the middle one of some layers has shrunk as far as counts."""
    steps = []
    for layer in layers:
        norms = finite(evidence.history.series(WEIGHT_NORM, layer)).since(raised)
        start = last_before(norms.values < SHRUNK.at * np.maximum.accumulate(norms.values))
        steps.append(began(norms, start) if 0 < start < len(norms) else raised)
    return int(np.median(steps))


def _is_at_once(evidence: RunEvidence, raised: int) -> bool:
    """Whether decay got there in one go; a schedule that goes on acts where it has shrunk weights."""
    decays = finite(evidence.history.series(WEIGHT_DECAY))
    earlier, soon = at(decays, max(1, raised - around(raised))), at(decays, raised)
    return not earlier > BY_AND_BY.at * soon / TENFOLD.at


def _finding(rise: Rise, begin: int, what: str, numbers: dict[str, float]) -> Finding:
    return Finding(
        rule="weight-decay-dominates",
        severity="severe" if LOST.is_severe(rise.lost) else "warning",
        basis="measured",
        summary=f"{what}, and the loss has risen from {number(rise.lowest)} to {number(rise.level)}.",
        evidence={**numbers, "level before": rise.lowest, "level now": rise.level},
        reason="The gradient of the loss holds the weights against decay. Once it is smaller than wd·θ they shrink, "
        "also those that the network needs.",
        remedy='for group in optimizer.param_groups:\n    group["weight_decay"] = 1e-4  # and look for what raised it',
        step=begin,
    )


def _shrinking(norms: Series, step: int) -> tuple[float, int] | None:
    """A norm now over its highest just before a step, and when it began to fall; None if one of them is not known."""
    norms = finite(norms)
    first, place = np.searchsorted(norms.steps, (step - 2 * around(step), step)).tolist()
    first = max(0, min(first, place - 1))  # the last sample before, at least
    if not first < place < len(norms) or not norms.values[first:place].max() > 0:
        return None
    highest, now = float(norms.values[first:place].max()), median(norms.values[max(place, len(norms) - 3) :])
    start = first + last_before(norms.values[first:] < highest - BEGINS * (highest - now))
    start = min(start, len(norms) - 1)
    is_between = norms.steps[max(0, start - 1)] < step <= norms.steps[start]
    return now / highest, step if is_between else began(norms, start)  # the loss is known at every step
