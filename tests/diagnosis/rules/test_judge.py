"""How findings are merged, ordered, calibrated and put under their causes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.judge import judged
from wellcond.diagnosis.rule import RULES, Rule
from wellcond.diagnosis.trial_result import Attempt, Trial
from wellcond.training.run import Run


def found(rule: str, severity: Any = "severe", confidence: float = 0.9, layer: str = "") -> Finding:
    return Finding(
        rule=rule,
        layer=layer,
        severity=severity,
        confidence=confidence,
        summary=f"{rule}.",
        evidence={},
        reason="",
        remedy="",
    )


def evidence(trial: Trial | None = None) -> Evidence:
    return Evidence(wc.Problem(nn.Linear(2, 1), nn.MSELoss(), (torch.ones(4, 2), torch.ones(4, 1))), trial=trial)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rules that find what is given, in place of all others: name → (findings, explains)."""

    def set_rules(**rules: tuple[list[Finding], tuple[str, ...]]) -> None:
        named = {name.replace("_", "-"): value for name, value in rules.items()}
        made = {
            name: [Rule(name, lambda _, findings=findings: findings, explains)]
            for name, (findings, explains) in named.items()
        }
        monkeypatch.setattr("wellcond.diagnosis.judge.RULES", made)

    return set_rules


def test_the_worst_is_first_then_causes_then_what_is_surer(only: Any) -> None:
    only(
        a=([found("a", "warning")], ()),
        b=([found("b", "severe", 0.7)], ()),
        c=([found("c", "severe", 0.8)], ()),
        d=([found("d", "severe", 0.5)], ("x",)),
    )
    assert [each.rule for each in judged(evidence())] == ["d", "c", "b", "a"]


def test_consequences_are_below_their_first_cause_and_not_listed(only: Any) -> None:
    only(
        effect=([found("effect")], ()),
        middle=([found("middle", confidence=0.99)], ("effect",)),
        cause=([found("cause", confidence=0.6)], ("middle",)),
        other=([found("other", "note")], ("effect",)),
    )
    first, last = judged(evidence())
    assert first.rule == "cause"
    assert [each.rule for each in first.consequences] == ["middle", "effect"]
    assert (last.rule, last.consequences) == ("other", ())


def test_a_cause_that_is_less_severe_explains_nothing(only: Any) -> None:
    only(effect=([found("effect")], ()), cause=([found("cause", "warning")], ("effect",)))
    assert [each.rule for each in judged(evidence())] == ["effect", "cause"]


def test_of_two_that_explain_each_other_the_surer_is_the_cause(only: Any) -> None:
    only(a=([found("a", confidence=0.5)], ("b",)), b=([found("b", confidence=0.9)], ("a",)))
    (only_one,) = judged(evidence())
    assert only_one.rule == "b"
    assert [each.rule for each in only_one.consequences] == ["a"]


def test_one_rule_at_many_layers_is_one_finding(only: Any) -> None:
    layers = [found("a", "warning", layer=str(k)) for k in range(6)]
    only(a=([*layers, found("a", "severe", layer="worst")], ()))
    (one,) = judged(evidence())
    assert (one.layer, one.severity, one.evidence["layers"]) == ("worst", "severe", 7.0)
    assert one.evidence["also at"] == "0, 1 … 5"


def test_a_rule_that_fails_is_a_note_and_the_others_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(_: Evidence) -> Iterator[Finding]:
        raise ZeroDivisionError("by zero")
        yield

    rules = {"burst": [Rule("burst", burst)], "a": [Rule("a", lambda _: [found("a")])]}
    monkeypatch.setattr("wellcond.diagnosis.judge.RULES", rules)
    first, note = judged(evidence())
    assert first.rule == "a"
    assert (note.rule, note.severity) == ("burst", "note")
    assert "ZeroDivisionError: by zero" in note.summary


def test_a_symptom_is_no_more_than_a_warning_where_the_network_trains(only: Any) -> None:
    falls = Attempt(1.0, 0.1, Run([2.0, 1.0]), (1.0, 1.0), (1.0, 1.0))
    trains, stands = (
        Trial((2.0, 2.0), 2.0, falls),
        Trial((2.0, 2.0), 2.0, Attempt(1.0, 0.1, Run([2.0]), (2.0,) * 2, (2.0,) * 2)),
    )
    only(**{"vanishing_gradient": ([found("vanishing-gradient")], ()), "no_gradient": ([found("no-gradient")], ())})
    severity = {each.rule: each.severity for each in judged(evidence(trains))}
    assert severity == {"vanishing-gradient": "warning", "no-gradient": "severe"}
    assert {each.severity for each in judged(evidence(stands))} == {"severe"}


def test_rules_are_left_out_by_name_and_unknown_names_are_refused(only: Any) -> None:
    only(a=([found("a")], ()), b=([found("b")], ()))
    assert [each.rule for each in judged(evidence(), ignore=("a",))] == ["b"]
    with pytest.raises(ValueError, match=r"there is no rule 'aa'\. Closest: 'a'"):
        judged(evidence(), ignore=("aa",))


def test_every_rule_says_what_it_looks_for_and_explains_rules_that_exist() -> None:
    for name, functions in RULES.items():
        for each in functions:
            assert len(each.explanation) > 40, name
            assert set(each.explains) <= RULES.keys(), (name, set(each.explains) - RULES.keys())
