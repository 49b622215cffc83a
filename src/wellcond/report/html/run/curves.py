"""Curves of a run for `line_chart.js`: the loss, the rate against its limit, and the rest of the whole network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from wellcond.recording.history import History, Series
from wellcond.report.thinning import thinned
from wellcond.results import quantities as q
from wellcond.results.quantities import title_of

Line = dict[str, Any]
"""One line of a chart, as `line_chart.js` describes it."""
FIRST, SECOND = "series-1", "series-0"
"""CSS variables of the colors of a chart's first and second line."""
DASHED = [6, 4]
"""Dashes of a second line, so that it differs without color too."""
CLOSE_POINTS = 2000
"""Points of curves that are looked at closely: charts can be enlarged."""
ON_CHANGE = (q.LR, q.MOMENTUM, q.LOSS_SCALE)
"""Quantities that are recorded when they change, and hold until then."""
TOGETHER = {q.GRADIENT_NORM: q.UNCLIPPED_GRADIENT_NORM, q.LOSS_LEAST: q.LOSS_GREATEST}
"""Quantities that share a chart."""
ELSEWHERE = {
    q.TRAINING_LOSS,
    q.VALIDATION_LOSS,
    q.LR,
    q.MAX_LR,
    q.MAX_LR_LOW,
    q.MAX_LR_HIGH,
    q.HESSIAN.lambda_max_error,
    *TOGETHER.values(),
}
"""Quantities that have a place in another chart."""


def line(
    series: Series, name: str, color: str = FIRST, *, dash: list[int] | None = None, is_held: bool = False
) -> Line:
    """A line through a series.

    Args:
        series: Series, already thinned.
        name: What the legend calls it.
        color: CSS variable of its color.
        dash: Lengths of dashes and gaps.
        is_held: Whether a value holds until the next one.

    Example:
        >>> line(Series(np.array([1, 2]), np.array([0.123456, math.nan])), "loss")["values"]
        [0.12346, None]
    """
    parts: Line = {"name": name, "color": color, "steps": series.steps.tolist(), "values": _numbers(series.values)}
    return parts | ({"dash": dash} if dash else {}) | ({"isHeld": True} if is_held else {})


def loss_lines(history: History) -> list[Line]:
    """The training loss and, if there is one, the validation loss."""
    training = thinned(history.series(q.TRAINING_LOSS), CLOSE_POINTS)
    validation = thinned(history.series(q.VALIDATION_LOSS), CLOSE_POINTS)
    lines = [line(training, "training loss"), line(validation, "validation loss", SECOND, dash=DASHED)]
    return [each for each in lines if each["steps"]]


def rate_lines(history: History) -> list[Line]:
    """The learning rate, and the largest stable one with its bounds."""
    lines = [line(thinned(history.series(q.LR), CLOSE_POINTS), "learning rate", is_held=True)]
    limit = thinned(history.series(q.MAX_LR))
    bounds = {"low": history.series(q.MAX_LR_LOW), "high": history.series(q.MAX_LR_HIGH)}
    lines.append(line(limit, "largest stable rate", SECOND, dash=DASHED))
    if all(np.isin(limit.steps, bound.steps).all() for bound in bounds.values()):
        for side, bound in bounds.items():
            lines[1][side] = _numbers(bound.values[np.searchsorted(bound.steps, limit.steps)])
    return [each for each in lines if each["steps"]]


def over_limit(history: History, last_step: int) -> list[tuple[int, int]]:
    """Steps from which, and until which, the rate was above its limit as last measured.

    Example:
        >>> from wellcond.results import Row
        >>> rows = [Row(1, "", "lr", 0.1, ""), Row(50, "", "lr", 0.5, "")]
        >>> rows += [Row(step, "", "max_lr", 0.3, "") for step in (1, 40, 60, 80)]
        >>> over_limit(History(rows), 100)
        [(60, 100)]
    """
    rate, limit = history.series(q.LR), history.series(q.MAX_LR)
    if not len(rate) or not len(limit):
        return []
    before = np.searchsorted(rate.steps, limit.steps, side="right") - 1
    is_over = (before >= 0) & (rate.values[before] > limit.values)
    ends = np.append(limit.steps[1:], last_step)
    spans: list[tuple[int, int]] = []
    for start, end in zip(limit.steps[is_over].tolist(), ends[is_over].tolist(), strict=True):
        begin = spans.pop()[0] if spans and spans[-1][1] == start else start
        spans.append((begin, end))
    return spans


def network_charts(history: History) -> Iterator[tuple[str, list[Line]]]:
    """Title and lines of the charts of every other quantity of the whole network."""
    for name in history.quantities():
        if name in ELSEWHERE or len(history.series(name)) < 2:
            continue
        names = [each for each in (name, TOGETHER.get(name, "")) if len(history.series(each))]
        yield (
            title_of(name),
            [
                line(thinned(history.series(each)), title_of(each), color, dash=dash, is_held=each in ON_CHANGE)
                for each, color, dash in zip(names, (FIRST, SECOND), (None, DASHED), strict=False)
            ],
        )


def _numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers to five digits; JSON has none for NaN and infinity."""
    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in values]
