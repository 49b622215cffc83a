"""Several runs side by side: what differs in their settings, losses, findings and layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from wellcond.diagnosis.finding import SEVERITIES, Finding, Severity, flat
from wellcond.recording.history import Series
from wellcond.recording.run import Run
from wellcond.recording.settings import model_text, settings
from wellcond.results import Result, Row, number
from wellcond.results import quantities as q

QUANTITIES = (q.GRADIENT_NORM, q.UPDATE_RATIO, q.SIGNAL_RMS)
"""Series of layers that are compared."""
PLACES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the shorter run at which losses are compared."""
WINDOW = 0.01
"""Share of the shorter run, to both sides of a step, that its loss is the median of: single batches are noisy."""
GRID = 50
"""Steps at which two series are compared."""
INCIDENTAL = ("created", "max bytes")
"""Settings that differ between any two runs, or change nothing of the training."""


@dataclass(frozen=True)
class LayerDifference:
    """A series of one layer in two runs.

    Attributes:
        layer: Name of the layer.
        quantity: Name of the quantity.
        run: The run that is compared with the first one.
        factor: Its values over those of the first run, the median over steps that both have.
    """

    layer: str
    quantity: str
    run: str
    factor: float


@dataclass(frozen=True)
class SharedFinding:
    """A rule and layer that some of the runs have a finding of.

    Attributes:
        rule: The rule's name.
        layer: The layer, or "".
        severity: The worst in any run.
        steps: When it was there, by run; runs without it are missing.
    """

    rule: str
    layer: str
    severity: Severity
    steps: dict[str, str]


@dataclass(frozen=True)
class Comparison(Result):
    """What differs between runs.

    Attributes:
        runs: Runs by name; the first is what the others are compared with.
        settings: Settings that are not the same in all runs: value by run, by setting.
        losses: Training loss by run, by step; the last step is the end of the shortest run.
        ends: Last step and training loss there, by run.
        findings: Findings that not all runs have, worst first.
        layers: Layers whose series differ, most different first.
    """

    runs: dict[str, Run] = field(repr=False)
    settings: dict[str, dict[str, str]]
    losses: dict[int, dict[str, float]]
    ends: dict[str, tuple[int, float]]
    findings: tuple[SharedFinding, ...]
    layers: tuple[LayerDifference, ...]

    def rows(self, step: int | None = None) -> list[Row]:
        """The losses at equal steps, with the name of the run in place of a layer's."""
        rows = [Row(at, name, q.TRAINING_LOSS, loss, "") for at, by in self.losses.items() for name, loss in by.items()]
        return [row for row in rows if step is None or row.step == step]

    def verdict(self) -> str:
        """Which run has the lowest loss at the last step that all of them reached, and what differs."""
        if not self.losses:
            return "The runs have no step in common at which a loss was recorded."
        step, losses = list(self.losses.items())[-1]
        order = sorted(losses, key=lambda name: (math.isnan(losses[name]), losses[name]))
        best, *others = order
        rest = ", ".join(f"{name} {number(losses[name])}" for name in others)
        lead = "All have the same loss" if len({*losses.values()}) == 1 else f"{best} has the lowest loss"
        text = f"{lead} at step {step:,}: {number(losses[best])}; {rest}."
        if self.settings:
            few = list(self.settings)[:4]
            more = len(self.settings) - len(few)
            text += f" They differ in {', '.join(few)}{f' and {more} more settings' if more else ''}."
        return text


def compare_runs(runs: Mapping[str, Run]) -> Comparison:
    """Compare runs with the first of them.

    Args:
        runs: Two or more, by name.

    Example:
        >>> from wellcond.recording.history import History
        >>> def run(factor):
        ...     rows = [Row(step, "", "training_loss", factor / step, "") for step in range(1, 101)]
        ...     return Run.of(History(rows), [], {"optimizer": {"class": "SGD", "groups": [{"lr": factor}]}})
        >>> print(compare_runs({"a": run(1.0), "b": run(3.0)}).verdict())
        a has the lowest loss at step 100: 0.0101; b 0.0302. They differ in optimizer lr.
    """
    if len(runs) < 2:
        raise ValueError(f"{len(runs)} run to compare; name two or more.")
    curves = {name: run.history.series(q.TRAINING_LOSS) for name, run in runs.items()}
    return Comparison(
        runs=dict(runs),
        settings=_settings(runs),
        losses=_losses(curves),
        ends={name: (int(c.steps[-1]), float(c.values[-1])) for name, c in curves.items() if len(c)},
        findings=_findings(runs),
        layers=_layers(runs),
    )


def _settings(runs: Mapping[str, Run]) -> dict[str, dict[str, str]]:
    chosen = {name: settings(run.manifest) for name, run in runs.items()}
    titles = dict.fromkeys(title for each in chosen.values() for title in each if title not in INCIDENTAL)
    by_title = {title: {name: each.get(title, "") for name, each in chosen.items()} for title in titles}
    models = {
        name: [(m["name"], m["type"], m["parameters"]) for m in run.manifest.get("model", ())]
        for name, run in runs.items()
    }
    if len({tuple(each) for each in models.values()}) > 1:
        by_title["model"] = {name: model_text(run.manifest) for name, run in runs.items()}
    return {title: values for title, values in by_title.items() if len({*values.values()}) > 1}


def _losses(curves: Mapping[str, Series]) -> dict[int, dict[str, float]]:
    if not all(map(len, curves.values())):
        return {}
    first, last = (pick(int(c.steps[i]) for c in curves.values()) for pick, i in ((max, 0), (min, -1)))
    steps = dict.fromkeys(round(share * last) for share in PLACES)
    return {
        step: {name: _near(c, step, WINDOW * last) for name, c in curves.items()} for step in steps if step >= first
    }


def _near(series: Series, step: int, width: float) -> float:
    """The median around a step; NaN if a value there is not a number."""
    low, high = np.searchsorted(series.steps, step - width), np.searchsorted(series.steps, step + width, side="right")
    values = series.values[low:high]
    if not len(values):
        values = series.values[: max(low, 1)][-1:]
    return float(np.median(values))


def _findings(runs: Mapping[str, Run]) -> tuple[SharedFinding, ...]:
    by_place: dict[tuple[str, str], dict[str, list[Finding]]] = {}
    for name, run in runs.items():
        for finding in flat(run.findings):
            by_place.setdefault((finding.rule, finding.layer), {}).setdefault(name, []).append(finding)
    different = [
        SharedFinding(
            rule,
            layer,
            min((f.severity for each in of_run.values() for f in each), key=SEVERITIES.index),
            {name: ", ".join(f.when or "yes" for f in each) for name, each in of_run.items()},
        )
        for (rule, layer), of_run in by_place.items()
        if len(of_run) < len(runs)
    ]
    return tuple(sorted(different, key=lambda each: SEVERITIES.index(each.severity)))


def _layers(runs: Mapping[str, Run]) -> tuple[LayerDifference, ...]:
    (_, first), *others = runs.items()
    differences = [
        LayerDifference(layer, quantity, name, factor)
        for name, run in others
        for quantity in QUANTITIES
        for layer in first.history.layers(quantity)
        if (factor := _factor(first.history.series(quantity, layer), run.history.series(quantity, layer))) is not None
    ]
    return tuple(sorted(differences, key=lambda each: -abs(math.log(each.factor))))


def _factor(first: Series, second: Series) -> float | None:
    """The median of second over first at steps that both cover; None if there are none."""
    one, two = _positive(first), _positive(second)
    if not len(one) or not len(two):
        return None
    begin, end = max(one.steps[0], two.steps[0]), min(one.steps[-1], two.steps[-1])
    if end < begin:
        return None
    steps = np.linspace(begin, end, GRID)
    logs = [np.interp(steps, each.steps, np.log(each.values)) for each in (one, two)]
    return float(np.exp(np.median(logs[1] - logs[0])))


def _positive(series: Series) -> Series:
    is_positive = np.isfinite(series.values) & (series.values > 0)
    return Series(series.steps[is_positive], series.values[is_positive])
