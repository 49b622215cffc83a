"""Whether the findings of a tool on a case are right, and the shares over all cases."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.verdicts.case import Case
from benchmarks.verdicts.cases import CASES
from benchmarks.verdicts.controls import CONTROLS
from benchmarks.verdicts.tools import STEPS, STEPS_OF_HEALTHY, ToolFinding, ToolReport, report_of

GOALS = {"severe": 0.95, "first": 0.85, "three": 0.95, "layer": 0.9}
"""Least shares of the cases: something severe is found, the right rule is first, it is in the first three, the right
layer is named."""


def judge_case(name: str, tools: Sequence[str]) -> dict[str, Any]:
    """What each tool says of the faulty form, and whether that is right."""
    torch.set_num_threads(1)
    case = CASES[name]
    row: dict[str, Any] = {"name": name, "number": case.number, "title": case.title, "rules": list(case.rules),
                           "layers": list(case.layers[:8]), "counts": case.is_shown and bool(case.rules),
                           "is_control": not case.rules}  # fmt: skip
    return row | {tool: on_case(case, report_of(tool, case.build(True), STEPS)) for tool in tools}


def judge_control(name: str, tools: Sequence[str]) -> dict[str, Any]:
    """What each tool says of a healthy network."""
    torch.set_num_threads(1)
    program = CONTROLS[name].build()
    return {"name": name} | {
        tool: on_control(report_of(tool, copy.deepcopy(program), STEPS_OF_HEALTHY)) for tool in tools
    }


def on_case(case: Case, report: ToolReport) -> dict[str, Any]:
    """A tool on a faulty form: strictly by its names, and as a generous reader takes them."""
    severe = any(finding.severity == "severe" for finding in report.findings)
    return {"severe": severe, **_rights(case, report.findings, False), "generous": _rights(case, report.findings, True),
            **_record(report)}  # fmt: skip


def _rights(case: Case, findings: Sequence[ToolFinding], generous: bool) -> dict[str, bool]:
    right = [
        bool(set(case.rules) & {*finding.means, *(finding.nearly if generous else ())}) for finding in findings[:3]
    ]
    layer = next(
        (_is_right_layer(case, finding) for finding, is_right in zip(findings, right, strict=False) if is_right), False
    )
    return {"first": right[:1] == [True], "three": any(right), "layer": layer}


def _is_right_layer(case: Case, finding: ToolFinding) -> bool:
    """A parameter counts as its module."""
    named = {name for layer in finding.layers for name in (layer, layer.rpartition(".")[0])} - {""}
    return bool(named & set(case.layers)) if named else "" in case.layers


def on_control(report: ToolReport) -> dict[str, Any]:
    """A tool on a healthy network: nothing is to be severe."""
    return {"severe": sum(finding.severity == "severe" for finding in report.findings), **_record(report)}


def _record(report: ToolReport) -> dict[str, Any]:
    findings = [{"rule": s.rule, "severity": s.severity, "layers": list(s.layers[:5])} for s in report.findings[:5]]
    results = {key: value for key, value in asdict(report).items() if key in ("verdict", "error") and value}
    return {"findings": findings, "count": len(report.findings), "seconds": round(report.seconds, 3),
            "u": round(report.u, 1), **results}  # fmt: skip


def shares(cases: Sequence[dict[str, Any]], controls: Sequence[dict[str, Any]], tool: str) -> dict[str, Any]:
    """The shares of one tool over the cases that count, and how many controls it calls severely ill."""
    counted = [row[tool] for row in cases if row["counts"]]
    healthy = [row[tool] for row in controls] + [row[tool] for row in cases if row["is_control"]]
    results: dict[str, Any] = {key: sum(bool(row[key]) for row in counted) for key in GOALS}
    results["generous"] = {key: sum(row["generous"][key] for row in counted) for key in ("first", "three", "layer")}
    return {"cases": len(counted), **results, "controls": len(healthy),
            "controls_severe": sum(bool(row["severe"]) for row in healthy)}  # fmt: skip
