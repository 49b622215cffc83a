"""Findings as SARIF 2.1.0, which GitHub's code scanning, editors and other tools read."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.finding import Finding, flat
from wellcond.diagnosis.rule import RULES, explanation
from wellcond.report.findings import Place, place
from wellcond.report.rule_sections import page
from wellcond.report.text import headline
from wellcond.results.rendering import renders
from wellcond.results.result import as_json
from wellcond.results.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"severe": "error", "warning": "warning", "note": "note"}


@renders("sarif", Diagnosis)
def diagnosis_sarif(diagnosis: Diagnosis) -> str:
    """The file of a diagnosis that a script has made; its findings are at the first line of that script."""
    rules = {name: explanation(name) for name in sorted(RULES)}
    return sarif(diagnosis.findings, rules, _script(), unchecked=diagnosis.failed)


def _script() -> str:
    """The URI of the script that runs, relative to the working directory if it is below it; `notebook` without one."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    return "notebook" if file is None else uri_of(Path(file))


def uri_of(path: Path) -> str:
    """The URI of a file, relative to the working directory if it is below it, so that it is found in a repository."""
    path, here = path.resolve(), Path.cwd().resolve()
    return quote(path.relative_to(here).as_posix()) if path.is_relative_to(here) else path.as_uri()


def sarif(
    findings: Sequence[Finding],
    rules: Mapping[str, str],
    uri: str,
    *,
    line: int = 1,
    known: Collection[Place] | None = None,
    unchecked: Mapping[str, str],
) -> str:
    """The file of one diagnosis.

    Args:
        findings: Findings, each a result; what one explains is a related location of it, since the cause is what to
            repair.
        rules: Every rule that was applied, and what it looks for.
        uri: Path of the file that builds the problem; relative to the repository, so that it is found there.
        line: Line of the function in it.
        known: Findings of an earlier diagnosis: each result then says whether it is new.
        unchecked: What could not be checked, and why: each a notification, since a file without results is otherwise
            read as a sound network.

    Returns:
        The text of the file.
    """
    names = list(dict.fromkeys([*rules, *(each.rule for each in findings)]))
    file = {"uri": uri}
    where = {"physicalLocation": {"artifactLocation": file, "region": {"startLine": line}}}
    driver = {
        "name": "wellcond",
        "version": __version__,
        "rules": [_described(name, rules.get(name, "")) for name in names],
    }
    results = [_result(each, names.index(each.rule), where, known) for each in findings]
    invocation = {
        "executionSuccessful": True,
        "toolExecutionNotifications": [
            {"level": "warning", "message": {"text": f"could not be checked: {what}: {why}"}}
            for what, why in unchecked.items()
        ],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "artifacts": [{"location": file}],
        "results": results,
    }
    content = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _described(name: str, explanation: str) -> dict[str, Any]:
    """A rule; its first sentence is the short text, and its page of the documentation the help."""
    text = explanation or name
    first = text.partition("\n\n")[0].replace("\n", " ")
    about = {"text": text} | ({"markdown": page(name)} if name in RULES else {})
    return {"id": name, "shortDescription": {"text": first}, "fullDescription": {"text": text}, "help": about}


def _result(finding: Finding, rule: int, where: dict[str, Any], known: Collection[Place] | None) -> dict[str, Any]:
    text = [_sentence(finding), finding.reason, finding.advice or finding.remedy]
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": LEVELS[finding.severity],
        "message": {"text": "\n\n".join(part for part in text if part)},
        "locations": [_location(finding, where)],
        "partialFingerprints": {"ruleAndLayer/v1": f"{finding.rule}:{finding.layer}"},
        "properties": {
            "evidence": as_json(finding.evidence),
            "limits": as_json(finding.limits),
            "basis": finding.basis,
        },
    }
    if finding.consequences:
        result["relatedLocations"] = [
            _location(each, where) | {"id": i, "message": {"text": f"explains {_sentence(each)}"}}
            for i, each in enumerate(flat(finding.consequences), start=1)
        ]
    if known is not None:
        result["baselineState"] = "unchanged" if place(finding) in known else "new"
    return result


def _sentence(finding: Finding) -> str:
    return f"{headline(finding)}: {finding.summary}"


def _location(finding: Finding, where: dict[str, Any]) -> dict[str, Any]:
    if not finding.layer:
        return dict(where)
    name = finding.layer.rpartition(".")[2]
    return where | {"logicalLocations": [{"name": name, "fullyQualifiedName": finding.layer, "kind": "member"}]}
