"""Layers of a run by their health, and what matters of a run now, for programs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from statistics import median

from wellcond.diagnosis.finding import SEVERITIES, Finding, flat
from wellcond.recording.run import Run
from wellcond.report.findings import by_layer, worst_of
from wellcond.results import number
from wellcond.results import quantities as q
from wellcond.results.result import as_json

SHARES = (q.DEAD_SHARE, q.SATURATED_SHARE)
HEADINGS = {
    q.GRADIENT_NORM: "gradient",
    q.UPDATE_RATIO: "update/weight",
    q.SIGNAL_RMS: "RMS",
    q.DEAD_SHARE: "dead",
    q.SATURATED_SHARE: "saturated",
}
"""Quantities that tell a layer's health, and their headings in a table."""


def last_values(run: Run) -> dict[str, dict[str, float]]:
    """The last number of each quantity that tells a layer's health, by layer, in model order."""
    values: dict[str, dict[str, float]] = {layer: {} for layer in run.layers}
    for name in HEADINGS:
        for layer in run.history.layers(name):
            values[layer][name] = float(run.history.series(name, layer).values[-1])
    return {layer: numbers for layer, numbers in values.items() if numbers}


def health_table(run: Run, most: int) -> tuple[list[str], dict[str, list[str]]]:
    """The headings, and the cells of the worst layers, by layer; both empty if there are no numbers.

    Args:
        run: Run as it is now.
        most: Number of layers.
    """
    values = last_values(run)
    names = [name for name in HEADINGS if any(name in numbers for numbers in values.values())]
    cells = {layer: [_cell(name, values[layer]) for name in names] for layer in by_health(run)[:most]}
    return [f"layers, worst of {len(values)}", *(HEADINGS[name] for name in names)] if values else [], cells


def _cell(name: str, numbers: dict[str, float]) -> str:
    if name not in numbers:
        return ""
    return f"{100 * numbers[name]:.0f} %" if name in SHARES and math.isfinite(numbers[name]) else number(numbers[name])


def present_by_layer(run: Run) -> dict[str, list[Finding]]:
    """Findings of each layer that are still there, also where their cause is over."""
    return by_layer(replace(each, consequences=()) for each in flat(run.findings) if each.until is None)


def by_health(run: Run) -> list[str]:
    """Layers, worst first: by their findings, then NaN, then dead and saturated shares, then unusual gradients.

    Example:
        >>> from wellcond.recording.history import History
        >>> from wellcond.results import Row
        >>> shares = {"fc1": 0.1, "fc2": 0.9, "fc3": math.nan}
        >>> by_health(Run.of(History(Row(1, layer, "dead_share", x, "") for layer, x in shares.items()), [], {}))
        ['fc3', 'fc2', 'fc1']
    """
    values = last_values(run)
    findings = present_by_layer(run)
    gradients = [v[q.GRADIENT_NORM] for v in values.values() if 0 < v.get(q.GRADIENT_NORM, 0) < math.inf]
    usual = median(gradients) if gradients else 1.0

    def key(layer: str) -> tuple[int, bool, float, float]:
        numbers = values[layer]
        severity = worst_of(finding.severity for finding in findings.get(layer, ()))
        rank = len(SEVERITIES) if severity is None else SEVERITIES.index(severity)
        is_finite = all(map(math.isfinite, numbers.values()))
        share = max(numbers.get(name, 0.0) for name in SHARES) if is_finite else 0.0
        gradient = numbers.get(q.GRADIENT_NORM, usual)
        distance = abs(math.log(gradient / usual)) if 0 < gradient < math.inf else math.inf
        return rank, is_finite, -share, -distance

    return sorted(values, key=key)


def digest_json(run: Run) -> str:
    """How far a run is, the last number of everything, and the findings, as JSON.

    Example:
        >>> from wellcond.recording.history import History
        >>> from wellcond.results import Row
        >>> json.loads(digest_json(Run.of(History([Row(1, "", "lr", 0.1, "")]), [], {})))["network"]
        {'lr': 0.1}
    """
    values = last_values(run)
    network = {quantity: float(series.values[-1]) for quantity, layer, series in run.history if not layer}
    content = as_json(
        {
            "path": None if run.path is None else str(run.path),
            "status": run.status,
            "step": run.last_step,
            "seconds": run.seconds,
            "verdict": run.verdict(),
            "network": network,
            "layers": {layer: values[layer] for layer in by_health(run)},
            "findings": run.findings,
            "notes": run.notes,
        }
    )
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
