"""SARIF 2.1.0: valid by its schema, and every finding is in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from made_findings import AWKWARD_NAME, DEAD, DIVERGED, NOTE, UNSCALED
from sarif_schema import violations
from torch import nn

import wellcond as wc
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import RULES as EVERY
from wellcond.diagnosis.rule import explanation
from wellcond.errors import OutputError
from wellcond.report.findings import place
from wellcond.report.sarif import sarif

RULES = {"unscaled-input": "Inputs of very different scales.\n\nOne rate suits one scale.", "non-finite": "NaN."}
LEVELS = {"none", "note", "warning", "error"}


def content_of(findings: Sequence[Finding], **options: Any) -> dict[str, Any]:
    rules = options.pop("rules", RULES)
    content: dict[str, Any] = json.loads(sarif(findings, rules, "src/train.py", **{"unchecked": {}, **options}))
    return content


def written(**options: Any) -> dict[str, Any]:
    return content_of([UNSCALED, NOTE], line=7, **options)


KINDS: dict[str, dict[str, Any]] = {
    "findings at several layers": {"findings": [UNSCALED, DEAD, DIVERGED, NOTE]},
    "nothing": {"findings": []},
    "with a baseline": {"findings": [UNSCALED, DEAD], "known": {place(UNSCALED)}},
    "what failed": {"findings": [NOTE], "unchecked": {"curvature": "the loss has no second derivative"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_valid(kind: str) -> None:
    assert violations(content_of(rules={name: explanation(name) for name in EVERY}, **KINDS[kind])) == []


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "version": lambda content: content.update(version="2.0.0"),
    "no runs": lambda content: content.pop("runs"),
    "level": lambda content: content["runs"][0]["results"][0].update(level="severe"),
    "unknown property": lambda content: content["runs"][0]["results"][0].update(severity="error"),
    "line": lambda content: content["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"].update(
        startLine=0
    ),
    "rule": lambda content: content["runs"][0]["tool"]["driver"]["rules"][0].pop("id"),
    "space in a URI": lambda content: content["runs"][0]["artifacts"][0]["location"].update(uri="my train.py"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_schema_refuses_what_is_wrong(change: str) -> None:
    content = written()
    CHANGES[change](content)
    assert len(violations(content)) == 1


def test_what_could_not_be_checked_is_a_notification_of_the_tool() -> None:
    (run,) = written(unchecked={"curvature": "no memory"})["runs"]
    (invocation,) = run["invocations"]
    (notification,) = invocation["toolExecutionNotifications"]
    assert notification["message"]["text"] == "could not be checked: curvature: no memory"
    assert written()["runs"][0]["invocations"][0]["toolExecutionNotifications"] == []


def test_it_has_what_code_scanning_shows() -> None:
    content = written()
    assert content["version"] == "2.1.0"
    assert content["$schema"].endswith("sarif-2.1.0.json")
    (run,) = content["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "wellcond"
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for rule in driver["rules"]:
        assert all(rule[field]["text"] for field in ("shortDescription", "fullDescription", "help"))
    for result in run["results"]:
        assert result["message"]["text"]
        assert result["level"] in LEVELS
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["properties"]["basis"] in ("proven", "tried", "measured")
        for location in result["locations"]:
            assert location["physicalLocation"]["artifactLocation"]["uri"] == "src/train.py"
            assert location["physicalLocation"]["region"]["startLine"] == 7


def layer_of(location: dict[str, Any]) -> str | None:
    name: str | None = location.get("logicalLocations", [{}])[0].get("fullyQualifiedName")
    return name


def test_every_cause_is_a_result_with_its_layer() -> None:
    results = written()["runs"][0]["results"]
    assert [(each["ruleId"], each["level"]) for each in results] == [
        ("unscaled-input", "error"),
        ("full-neurons", "note"),
    ]
    assert [layer_of(each["locations"][0]) for each in results] == [None, "fc2"]
    assert len({each["partialFingerprints"]["ruleAndLayer/v1"] for each in results}) == 2


def test_a_consequence_is_a_related_location_and_not_an_error() -> None:
    unscaled, note = written()["runs"][0]["results"]
    related = unscaled["relatedLocations"]
    assert [(each["id"], layer_of(each)) for each in related] == [(1, "fc1"), (2, AWKWARD_NAME)]
    assert related[0]["message"]["text"].startswith("explains vanishing-gradient at fc1: ")
    assert "kaiming" not in json.dumps(unscaled)  # the remedy of a consequence is not what to write
    assert "relatedLocations" not in note


def test_a_rule_is_explained_by_its_first_sentence_and_in_full() -> None:
    rules = {rule["id"]: rule for rule in written()["runs"][0]["tool"]["driver"]["rules"]}
    assert rules["unscaled-input"]["help"]["markdown"].startswith("# unscaled-input\n\nInputs whose scale")
    assert "## Wrong and right" in rules["non-finite"]["help"]["markdown"]
    assert rules["unscaled-input"]["shortDescription"]["text"] == "Inputs of very different scales."
    assert rules["unscaled-input"]["help"]["text"] == RULES["unscaled-input"]
    assert rules["non-finite"]["help"]["text"] == "NaN."


@pytest.mark.parametrize("known", [None, {place(UNSCALED)}])
def test_with_a_baseline_each_result_says_whether_it_is_new(known: set[tuple[str, str]] | None) -> None:
    states = [each.get("baselineState") for each in written(known=known)["runs"][0]["results"]]
    if known is None:
        assert states == [None, None]
    else:
        assert states == ["unchanged", "new"]


@pytest.mark.slow
def test_a_diagnosis_is_saved_with_the_script_as_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "my train.py"), raising=False)
    model = nn.Sequential(nn.Linear(3, 2), nn.Softmax(dim=1))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (torch.randn(8, 3), torch.arange(8) % 2))
    diagnosis = wc.diagnose(problem)
    content = json.loads(diagnosis.save("findings.sarif").read_text(encoding="utf-8"))
    assert violations(content) == []
    (run,) = content["runs"]
    assert run["artifacts"] == [{"location": {"uri": "my%20train.py"}}]
    assert [each["ruleId"] for each in run["results"]] == [each.rule for each in diagnosis.findings] != []
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as in a notebook
    (run,) = json.loads(diagnosis.save("findings.SARIF").read_text(encoding="utf-8"))["runs"]
    assert run["artifacts"] == [{"location": {"uri": "notebook"}}]


def test_a_result_without_findings_is_not_saved_as_sarif(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="has no known form"):
        wc.spectrum(torch.eye(2)).save(tmp_path / "a.sarif")
    assert not list(tmp_path.iterdir())
