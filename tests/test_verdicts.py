"""The real faults are what they are said to be, some are judged rightly, and the page holds the committed numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.verdicts import __main__ as verdicts
from benchmarks.verdicts import tools
from benchmarks.verdicts.cases import CASES
from benchmarks.verdicts.controls import CONTROLS, FAMILIES, OPTIMIZERS, STAGES
from benchmarks.verdicts.judge import GOALS, judge_case, judge_control, on_case, shares
from benchmarks.verdicts.verify import verify_case
from wellcond.diagnosis.judge import RULES

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    return json.loads((RESULTS / "verdicts_cpu.json").read_text(encoding="utf-8"))["results"]


@pytest.fixture(scope="module")
def verified() -> dict[str, Any]:
    return json.loads((RESULTS / "verdicts_verified.json").read_text(encoding="utf-8"))["results"]


def test_all_thirty_numbers_have_a_case() -> None:
    assert {case.number for case in CASES.values()} == set(range(1, 31))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_a_case_expects_exists(name: str) -> None:
    case = CASES[name]
    model = case.build(True).model
    held = {"", *dict(model.named_modules()), *dict(model.named_parameters(remove_duplicate=False))}
    assert set(case.layers) <= held
    assert set(case.rules) <= RULES.keys()


def test_controls_cover_families_stages_and_optimizers() -> None:
    parts = [name.split(", ") for name in FAMILIES]
    assert len({family for family, _, _ in parts}) >= 12
    assert {optimizer for _, optimizer, _ in parts} == set(OPTIMIZERS)
    assert {stage for _, _, stage in parts} == set(STAGES)
    assert {f"{name}, repaired" for name in CASES} <= CONTROLS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", verdicts.QUICK_CASES)
def test_the_fault_is_named_first_where_it_is(name: str) -> None:
    judged = judge_case(name, ["wellcond"])["wellcond"]
    assert judged["severe"], judged["findings"]
    assert judged["first"], judged["findings"]
    assert judged["layer"], judged["findings"]


@pytest.mark.slow
@pytest.mark.parametrize("name", verdicts.QUICK_CONTROLS)
def test_nothing_is_severe_on_a_healthy_network(name: str) -> None:
    judged = judge_control(name, ["wellcond"])["wellcond"]
    assert not judged.get("error")
    assert judged["severe"] == 0, judged["findings"]


@pytest.mark.slow
def test_a_fault_that_hurts_scores_clearly_less_than_its_repair() -> None:
    verified = verify_case("linear-stack")
    assert verified["hurts"]
    assert max(verified["faulty"]) < 0.7 < min(verified["repaired"])  # no line divides two rings


def test_a_finding_is_right_by_name_or_generously_among_the_first_three() -> None:
    case = CASES["relu-logit"]

    def judged(*findings: tools.ToolFinding) -> dict[str, Any]:
        return on_case(case, tools.ToolReport(findings, 1.0, 1.0))

    wrong = tools.ToolFinding("x", "severe", (), ("unscaled-input",))
    right = tools.ToolFinding("y", "warning", ("relu",), ("output-loss-mismatch",))
    close = tools.ToolFinding("z", "warning", ("fc1",), (), ("output-loss-mismatch",))
    assert [judged(right)[key] for key in GOALS] == [False, True, True, True]
    assert [judged(wrong, right)[key] for key in GOALS] == [True, False, True, True]
    assert [judged(wrong, wrong, wrong, right)[key] for key in GOALS] == [True, False, False, False]
    assert judged(close)["first"] is False
    assert judged(close)["generous"] == {"first": True, "three": True, "layer": False}


@pytest.mark.parametrize("words", [tools.MORTEM, tools.AUDIT], ids=["torchmortem", "torch-audit"])
def test_findings_of_peers_are_read_as_rules_that_exist(words: dict[str, tuple[tuple[str, ...], ...]]) -> None:
    assert {rule for meanings in words.values() for rules in meanings for rule in rules} <= RULES.keys()


def test_every_case_was_trained_in_both_forms_and_hurts(verified: dict[str, Any]) -> None:
    rows = {row["name"]: row for row in verified["cases"]}
    assert rows.keys() == CASES.keys()
    assert [name for name, case in CASES.items() if rows[name]["hurts"] is not case.is_shown] == []
    assert {name: rows[name]["steps"] for name in CASES} == {name: case.steps for name, case in CASES.items()}
    controls = {row["name"]: row for row in verified["controls"]}
    assert controls.keys() == FAMILIES.keys()
    assert all(row["trains"] for row in controls.values())


def test_the_committed_shares_are_those_of_the_rows_and_reach_the_goals(committed: dict[str, Any]) -> None:
    assert [row["name"] for row in committed["cases"]] == list(CASES)
    assert [row["name"] for row in committed["controls"]] == list(CONTROLS)
    for tool in tools.TOOLS:
        assert committed["shares"][tool] == shares(committed["cases"], committed["controls"], tool)
    ours = committed["shares"]["wellcond"]
    assert all(ours[key] >= goal * ours["cases"] for key, goal in GOALS.items())
    assert ours["controls_severe"] == 0


@pytest.mark.slow
def test_the_picture_has_a_field_for_every_case_control_and_tool(tmp_path: Path, committed: dict[str, Any]) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.verdicts.picture import picture

    figure = picture(RESULTS)
    figure.savefig(tmp_path / "picture.png")
    counted = sum(row["counts"] for row in committed["cases"])
    healthy = len(committed["controls"]) + sum(row["is_control"] for row in committed["cases"])
    assert [len(axes.patches) for axes in figure.axes] == [3 * counted, 3 * healthy]
