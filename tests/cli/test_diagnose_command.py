"""`wellcond diagnose`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_results
import pytest
from command import one_line, parsed, run, script, words
from made_findings import DEAD, NOTE, UNSCALED
from sarif_schema import violations

from wellcond.cli.commands import diagnose as command
from wellcond.diagnosis import curvature
from wellcond.diagnosis.causes import CAUSES
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import RULES, Rule
from wellcond.remedies import REMEDIES

ANY = ("--fail-on", "never")
"""Options for exit code 0 whatever the findings."""


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"{script(tmp_path)}"


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Make the command return some findings; the returned dictionary gets the settings it was called with."""

    def find(*findings: Finding) -> dict[str, Any]:
        passed: dict[str, Any] = {}

        def measure(_problem: Any, _optimizer: Any, **settings: Any) -> Diagnosis:
            passed.update(settings)
            first = replace(made_results.diagnosis(), findings=findings)
            settings["on_part"](replace(first, parts=first.parts[:1]))
            return first

        monkeypatch.setattr(command, "measure", measure)
        return passed

    return find


@pytest.mark.slow
def test_a_problem_is_diagnosed_with_its_optimizer(tmp_path: Path) -> None:
    result = run("diagnose", f"{script(tmp_path)}:with_optimizer", *ANY)
    assert result.exit_code == 0, result.output
    text = words(result.output)
    for part in ("26 parameters", "on 8 examples", "κ50 Σx", "with momentum 0.9; the optimizer is at 0.25"):
        assert part in text


# what the findings decide


@pytest.mark.parametrize(
    ("findings", "options", "code"),
    [
        ((), (), 0),
        ((NOTE,), ("--fail-on", "warning"), 0),
        ((DEAD, NOTE), (), 0),
        ((DEAD, NOTE), ("--fail-on", "warning"), 3),
        ((UNSCALED,), (), 4),
        ((UNSCALED,), ("--fail-on", "warning"), 4),
        ((UNSCALED,), ANY, 0),
        ((replace(NOTE, consequences=(UNSCALED,)),), (), 4),
    ],
)
def test_the_exit_code_is_that_of_the_worst_finding(
    findings: tuple[Finding, ...], options: tuple[str, ...], code: int, target: str, finds: Callable[..., Any]
) -> None:
    finds(*findings)
    assert run("diagnose", f"{target}:build", *options).exit_code == code
    assert run("diagnose", f"{target}:build", *options, "--json").exit_code == code


@pytest.mark.slow
def test_what_a_baseline_has_does_not_count(target: str, tmp_path: Path, finds: Callable[..., Any]) -> None:
    old = tmp_path / "old.json"
    finds(UNSCALED)
    assert run("diagnose", f"{target}:build", "--out", old).exit_code == 4
    same = run("diagnose", f"{target}:build", "--baseline", old)
    assert same.exit_code == 0
    assert f"new since {old}: nothing" in words(same.stdout)
    finds(UNSCALED, replace(DEAD, layer="other"))
    more = run("diagnose", f"{target}:build", "--baseline", old, "--fail-on", "warning", "--out", tmp_path / "a.sarif")
    assert more.exit_code == 3
    assert "dying-neurons at other" in words(more.stdout).split("new since")[1]
    states = [
        each["baselineState"] for each in json.loads((tmp_path / "a.sarif").read_text("utf-8"))["runs"][0]["results"]
    ]
    assert states == ["unchanged", "new"]
    assert "there is no file" in one_line(run("diagnose", f"{target}:build", "--baseline", tmp_path / "no.json"))


@pytest.mark.slow
def test_the_workflow_of_the_guide_fails_on_a_severe_finding(
    tmp_path: Path, finds: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own line, and then the one that lets known findings pass."""
    guide = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "measuring.md").read_text(encoding="utf-8")
    section = guide[guide.index("### In CI") :]
    (line,) = re.findall(r"- run: wellcond (diagnose .*)", section)
    (hook,) = re.findall(r"entry: wellcond (diagnose .*)", section)
    script(tmp_path)
    monkeypatch.chdir(tmp_path)
    finds(UNSCALED, NOTE)
    assert run(*line.split()).exit_code == run(*hook.split()).exit_code == 4
    (result, _) = json.loads(Path("findings.sarif").read_text("utf-8"))["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("unscaled-input", "error")
    run(*hook.split(), "--out", "known.json")
    assert run(*line.split(), "--baseline", "known.json").exit_code == 0
    finds(DEAD)
    assert run(*line.split()).exit_code == 0


@pytest.mark.parametrize("is_below", [True, False])
def test_sarif_names_the_file_and_the_line_of_the_function(
    is_below: bool, tmp_path: Path, finds: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    finds(UNSCALED)
    path, sarif = script(tmp_path, name="my train.py"), tmp_path / "a.sarif"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path if is_below else tmp_path / "elsewhere")
    run("diagnose", f"{path}:with_optimizer", "--out", sarif)
    content = json.loads(sarif.read_text("utf-8"))
    assert violations(content) == []
    (run_,) = content["runs"]
    place = run_["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == ("my%20train.py" if is_below else path.resolve().as_uri())
    lines = path.read_text("utf-8").splitlines()
    assert lines[place["region"]["startLine"] - 1].startswith("def with_optimizer")
    assert {rule["id"] for rule in run_["tool"]["driver"]["rules"]} >= RULES.keys()


def test_first_findings_go_to_standard_error_before_the_result(target: str, finds: Callable[..., Any]) -> None:
    finds(UNSCALED, NOTE)
    result = run("diagnose", f"{target}:build", *ANY, width=200)
    assert result.stderr == f"at first  unscaled-input: {UNSCALED.summary}\n"
    assert result.stdout.splitlines()[1].startswith("╭")


def test_findings_are_complete_in_the_json(target: str, finds: Callable[..., Any]) -> None:
    finds(UNSCALED)
    content = parsed(run("diagnose", f"{target}:build", *ANY, "--json"))
    assert content["verdict"].startswith("Severe (unscaled-input): the inputs reach 1e5.")
    (finding,) = content["values"]["findings"]
    assert finding["rule"] == "unscaled-input"
    assert finding["evidence"] == {"largest": "inf", "feature": "<3>"}
    assert [each["rule"] for each in finding["consequences"]] == ["vanishing-gradient", "dying-neurons"]
    assert finding["consequences"][0]["rows"][0] == [None, "fc1", "gradient_norm", 2e-7, ""]


# rules


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rules in place of all."""

    def first(_evidence: Any) -> list[Finding]:
        """First things.

        Above [3] they count.
        """
        return []

    def second(_evidence: Any) -> list[Finding]:
        """Second things."""
        return []

    for name in list(RULES):
        monkeypatch.delitem(RULES, name)
    monkeypatch.setitem(RULES, "first-rule", [Rule("first-rule", first)])
    monkeypatch.setitem(CAUSES, "first-rule", ("second-rule",))
    monkeypatch.setattr("wellcond.cli.commands.diagnose.RUN_RULES", {})
    monkeypatch.setitem(RULES, "second-rule", [Rule("second-rule", second)])


def test_the_lines_of_an_explanation_are_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(evidence: Evidence) -> Iterator[Finding]:
        """What is looked for, in a sentence that goes on as far as a docstring of a hundred and twenty columns may go
        and then a little further.
        """
        yield from ()

    monkeypatch.setitem(RULES, "long-rule", [Rule("long-rule", judge)])
    paragraph = run("diagnose", "--explain", "long-rule", width=80).stdout.splitlines()[1:]
    assert len(paragraph) == 2
    assert paragraph[1].rstrip().endswith("and then a little further.")


def test_rules_of_a_recorded_run_are_listed_and_explained() -> None:
    assert "loss-spike" in run("diagnose", "--list-rules").stdout
    explained = run("diagnose", "--explain", "loss-spike")
    assert explained.exit_code == 0
    assert "In a recorded run" in explained.stdout
    both = run("diagnose", "--explain", "dying-neurons").stdout
    assert both.index("ReLUs that are off on every example") < both.index("In a recorded run")


@pytest.mark.usefixtures("rules")
def test_rules_are_listed_and_explained_without_a_target() -> None:
    listed = run("diagnose", "--list-rules")
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.stdout.splitlines() if line.strip()] == ["first-rule", "second-rule"]
    explained = run("diagnose", "--explain", "first-rule")
    assert explained.exit_code == 0
    about = "first-rule\nFirst things.\n\nAbove [3] they count.\n"
    assert explained.stdout == about + "\nCauses and effects\n- It explains: `second-rule`.\n"


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize(
    ("options", "ignored"),
    [
        ((), []),
        (("--ignore", "first-rule"), ["first-rule"]),
        (("--select", "first-rule"), ["second-rule"]),
        (("--select", "first-rule", "--ignore", "first-rule"), ["first-rule", "second-rule"]),
    ],
)
def test_rules_are_selected_and_ignored(
    options: tuple[str, ...], ignored: list[str], target: str, finds: Callable[..., dict[str, Any]]
) -> None:
    passed = finds()
    assert run("diagnose", f"{target}:build", *options).exit_code == 0
    assert passed["ignore"] == ignored


def test_the_last_line_names_a_rule_that_can_be_explained(target: str, finds: Callable[..., Any]) -> None:
    """A rule of the user's own is known only where it is registered."""
    own = replace(UNSCALED, rule="my-rule")
    finds(own, NOTE)
    assert run("diagnose", f"{target}:build", *ANY).stdout.endswith("--explain full-neurons\n")
    finds(own)
    assert "--explain" not in run("diagnose", f"{target}:build", *ANY).stdout


@pytest.mark.usefixtures("rules")
@pytest.mark.parametrize("option", ["--select", "--ignore", "--explain"])
def test_an_unknown_rule_is_refused_with_the_closest_names(option: str, target: str) -> None:
    result = run("diagnose", f"{target}:build", option, "frist-rule", width=200)
    assert result.exit_code == 2
    assert "'first-rule'" in words(result.stderr)


def test_a_rule_is_explained_with_the_remedies_that_treat_tries() -> None:
    text = words(run("diagnose", "--explain", "vanishing-gradient", width=200).stdout)
    assert "`wellcond treat` also tries " in text
    tried = [name for name, remedy in REMEDIES.items() if "vanishing-gradient" in remedy.rules]
    assert len(tried) > 5
    assert [name for name in tried if f"`{name}`" not in text] == []


def test_the_forms_of_a_file_include_sarif(target: str, tmp_path: Path) -> None:
    assert ".csv, .json, .sarif." in one_line(run("diagnose", f"{target}:build", "--out", tmp_path / "a.txt"))
    assert ".json, .sarif" in words(run("diagnose", "--help", width=200).stdout)


def test_without_a_target_it_says_what_to_name() -> None:
    result = run("diagnose")
    assert result.exit_code == 2
    assert "FILE.py:FUNCTION" in words(result.stderr)


# what it measures


@pytest.mark.slow
def test_json_is_all_that_is_printed(target: str) -> None:
    content = parsed(run("diagnose", f"{target}:build", *ANY, "--json"))
    assert [part["name"] for part in content["values"]["parts"]][:3] == ["inspection", "behavior", "layers"]
    assert isinstance(content["values"]["findings"], list)


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_prints_and_saves_what_is_known_and_exits_with_130(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(curvature, "eigenvalues", interrupt)
    files = tmp_path / "rows.csv", tmp_path / "page.html"
    out = [argument for file in files for argument in ("--out", file)]
    result = run("diagnose", f"{target}:build", *ANY, *out, *(["--json"] if as_json else []))
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert "gradient_norm" in files[0].read_text(encoding="utf-8")
    assert "Could not be measured" in files[1].read_text(encoding="utf-8")
    if as_json:
        assert json.loads(result.stdout)["values"]["failed"]["Hessian eigenvalues"] == "interrupted"
    else:
        assert result.stdout.count("κ50 Σx ") == 1
        assert "Hessian eigenvalues, largest stable lr failed: interrupted" in words(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "has_trace"), [("fast", False), ("full", True), ("30", True)])
def test_the_budget_is_fast_full_or_seconds(target: str, budget: str, has_trace: bool) -> None:
    content = parsed(run("diagnose", f"{target}:build", *ANY, "--budget", budget, "--json"))
    assert (content["values"]["evidence"]["trace"] is not None) == has_trace


@pytest.mark.slow
def test_an_unknown_layer_is_refused_with_the_closest_names(target: str) -> None:
    content = parsed(run("diagnose", f"{target}:build", *ANY, "--layers", "2", "--json"))
    assert {row["layer"] for row in content["rows"]} == {"", "2", "2.weight", "2.bias"}
    assert "'fc2'" in one_line(run("diagnose", f"{target}:build", "--layers", "fc2"))


@pytest.mark.parametrize("budget", ["slow", "0", "-3", "nan"])
def test_another_budget_is_a_usage_error(target: str, budget: str) -> None:
    result = run("diagnose", f"{target}:build", *ANY, "--budget", budget)
    assert result.exit_code == 2
    assert "seconds" in words(result.stderr)
