"""What the scripts of a run's page draw: its curves, heat maps of its layers, the model tree and the findings."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wellcond.diagnosis.finding import SEVERITIES, Finding, Severity, flat
from wellcond.recording.history import History
from wellcond.report.html.cards import anchor
from wellcond.report.html.run.curves import loss_lines, network_charts, over_limit, rate_lines
from wellcond.report.manifests import Module
from wellcond.report.thinning import Grid, columns_for, grid
from wellcond.report.tree import Node, model_tree
from wellcond.results import quantities as q

MAPS = {
    q.GRADIENT_NORM: "gradient norm",
    q.UPDATE_RATIO: "update ratio",
    q.SIGNAL_RMS: "activation RMS",
    q.DEAD_SHARE: "dead share",
    q.SATURATED_SHARE: "saturated share",
    q.WEIGHT_NORM: "weight norm",
    q.STATISTICS_GAP: "statistics gap",
    q.INPUT.kappa[0.5]: "κ50 of inputs",
    q.GRADIENT.kappa[0.5]: "κ50 of gradients",
    q.SHIFT_COSINE: "shift cosine",
    q.LR: "learning rate",
}
"""Quantities of layers that have a heat map, and the words on its button; most asked for first."""
LINEAR = (q.DEAD_SHARE, q.SATURATED_SHARE, q.SHIFT_COSINE)
"""Quantities on a linear scale."""


@dataclass(frozen=True)
class PageData:
    """What the scripts read.

    Attributes:
        content: Content of the JSON.
        grids: Codes of the heat maps as base64, by quantity; the page decodes them when they are looked at.
    """

    content: dict[str, Any]
    grids: dict[str, str]


def page_data(history: History, findings: Sequence[Finding], modules: Mapping[str, Module], last_step: int) -> PageData:
    """Everything that is drawn.

    Args:
        history: Series of the run.
        findings: Findings in the order of their cards.
        modules: Modules by name, in model order.
        last_step: Last step of the run.
    """
    nodes = list(_walk(model_tree({name: each.kind for name, each in modules.items()}, findings)))
    place = {node.path: i for i, (node, _) in enumerate(nodes)}
    measured = {name: [layer for layer in place if layer and len(history.series(name, layer))] for name in MAPS}
    measured = {name: layers for name, layers in measured.items() if layers}
    columns = columns_for(max(map(len, measured.values()), default=0), len(measured))
    grids = {
        name: grid({layer: history.series(name, layer) for layer in layers}, columns, is_share=name in LINEAR)
        for name, layers in measured.items()
    }
    content = {
        "steps": [min(1, last_step), max(last_step, 2)],
        "findings": [_finding(each, i) for i, each in enumerate(findings)],
        "loss": loss_lines(history),
        "rate": rate_lines(history),
        "overLimit": over_limit(history, last_step),
        "network": [{"name": name, "lines": lines} for name, lines in network_charts(history)],
        "severities": SEVERITIES,
        "nodes": _columns(nodes, modules),
        "maps": [_map(name, each, place) for name, each in grids.items()],
    }
    codes = {name: base64.b64encode(each.codes.astype("<u2").tobytes()).decode() for name, each in grids.items()}
    return PageData(content, codes)


def _finding(finding: Finding, index: int) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "layer": finding.layer,
        "layers": list(dict.fromkeys(each.layer for each in flat([finding]))),
        "severity": finding.severity,
        "summary": finding.summary,
        "step": finding.step,
        "until": finding.until,
        "when": finding.when,
        "anchor": anchor(index),
    }


def _walk(node: Node, depth: int = 0) -> Iterator[tuple[Node, int]]:
    yield node, depth
    for child in node.children.values():
        yield from _walk(child, depth + 1)


def _columns(nodes: Sequence[tuple[Node, int]], modules: Mapping[str, Module]) -> dict[str, Any]:
    """The tree as columns, each node before what is inside it; severities as places in their list, -1 for none."""
    kinds = list(dict.fromkeys(node.kind for node, _ in nodes))
    places: dict[Severity | None, int] = {severity: i for i, severity in enumerate(SEVERITIES)} | {None: -1}
    return {
        "kinds": kinds,
        "paths": [node.path for node, _ in nodes],
        "kind": [kinds.index(node.kind) for node, _ in nodes],
        "depth": [depth for _, depth in nodes],
        "parameters": [modules.get(node.path, Module()).parameters for node, _ in nodes],
        "severity": [places[node.severity] for node, _ in nodes],
        "inside": [places[node.worst_inside] for node, _ in nodes],
    }


def _map(name: str, cells: Grid, place: Mapping[str, int]) -> dict[str, Any]:
    return {
        "name": name,
        "title": MAPS[name],
        "rows": [place[layer] for layer in cells.layers],
        "columns": cells.columns.tolist(),
        "last": cells.last,
        "low": cells.low,
        "high": cells.high,
        "isLog": cells.is_log,
    }
