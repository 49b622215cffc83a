"""How findings are merged, ordered, excused and put under their causes."""

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
from wellcond.diagnosis.labels import Relation
from wellcond.diagnosis.rule import Rule
from wellcond.diagnosis.trial_result import Attempt, Trial
from wellcond.results.run import Run


def finding(rule: str, severity: Any = "severe", basis: Any = "measured", layer: str = "") -> Finding:
    return Finding(rule=rule, layer=layer, severity=severity, basis=basis, summary=f"{rule}.")


def evidence(trial: Trial | None = None) -> Evidence:
    return Evidence(wc.Problem(nn.Linear(2, 1), nn.MSELoss(), (torch.ones(4, 2), torch.ones(4, 1))), trial=trial)


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rules with these findings, in place of all others: name → (findings, what it explains)."""

    def set_rules(**rules: tuple[list[Finding], tuple[str, ...]]) -> None:
        named = {name.replace("_", "-"): value for name, value in rules.items()}
        table = {name: [Rule(name, lambda _, own=own: own)] for name, (own, _) in named.items()}
        monkeypatch.setattr("wellcond.diagnosis.judge.RULES", table)
        monkeypatch.setattr(
            "wellcond.diagnosis.judge.CAUSES", {name: explains for name, (_, explains) in named.items()}
        )

    return set_rules


def test_the_worst_is_first_then_causes_then_the_stronger_basis(only: Any) -> None:
    only(
        a=([finding("a", "warning", "proven")], ()),
        b=([finding("b", "severe", "measured")], ()),
        c=([finding("c", "severe", "tried")], ()),
        d=([finding("d", "severe", "measured")], ("x",)),
        e=([finding("e", "severe", "proven")], ()),
    )
    assert [each.rule for each in judged(evidence())] == ["d", "e", "c", "b", "a"]


@pytest.mark.parametrize(("layer", "first"), [("net.attention.v", ["cause"]), ("net.attend", ["effect", "cause"])])
def test_what_is_proven_of_a_layer_explains_what_is_measured_in_it(only: Any, layer: str, first: list[str]) -> None:
    """Also if it is milder; not what is measured in another layer."""
    only(
        cause=([finding("cause", "warning", "proven", "net.attention")], ("effect",)),
        effect=([finding("effect", "severe", "measured", layer)], ()),
    )
    assert [each.rule for each in judged(evidence())] == first


def test_equals_are_listed_in_the_order_of_the_kinds(only: Any) -> None:
    names = ["dying-neurons", "unscaled-input", "no-gradient"]
    only(**{name.replace("-", "_"): ([finding(name)], ()) for name in names})
    assert [each.rule for each in judged(evidence())] == ["no-gradient", "unscaled-input", "dying-neurons"]


def test_consequences_are_below_their_first_cause_and_not_listed(only: Any) -> None:
    only(
        effect=([finding("effect")], ()),
        middle=([finding("middle", basis="proven")], ("effect",)),
        cause=([finding("cause")], ("middle",)),
        other=([finding("other", "note")], ("effect",)),
    )
    first, last = judged(evidence())
    assert first.rule == "cause"
    assert [each.rule for each in first.consequences] == ["middle", "effect"]
    assert (last.rule, last.consequences) == ("other", ())


def test_a_cause_that_is_less_severe_explains_nothing(only: Any) -> None:
    only(effect=([finding("effect")], ()), cause=([finding("cause", "warning")], ("effect",)))
    assert [each.rule for each in judged(evidence())] == ["effect", "cause"]


def test_a_wrong_scale_explains_worse_symptoms_and_is_as_severe(only: Any) -> None:
    only(
        unscaled_input=([finding("unscaled-input", "warning")], ("vanishing-gradient", "no-gradient")),
        vanishing_gradient=([finding("vanishing-gradient")], ()),
        no_gradient=([finding("no-gradient")], ()),
    )
    first, second = judged(evidence())
    assert (first.rule, first.severity) == ("unscaled-input", "severe")
    assert [each.rule for each in first.consequences] == ["vanishing-gradient"]
    assert (second.rule, second.severity) == ("no-gradient", "severe")  # a fault is not the effect of a scale


def test_of_two_mutual_causes_the_one_with_the_stronger_basis_wins(only: Any) -> None:
    only(a=([finding("a")], ("b",)), b=([finding("b", basis="proven")], ("a",)))
    (only_one,) = judged(evidence())
    assert only_one.rule == "b"
    assert [each.rule for each in only_one.consequences] == ["a"]


def test_one_rule_at_many_layers_is_one_finding(only: Any) -> None:
    layers = [finding("a", "warning", layer=str(k)) for k in range(6)]
    only(a=([*layers, finding("a", "severe", layer="worst")], ()))
    (one,) = judged(evidence())
    assert (one.layer, one.severity, one.evidence["layers"]) == ("worst", "severe", 7.0)
    assert one.evidence["also at"] == "0, 1 … 5"


def test_a_rule_that_fails_is_a_note_that_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(_: Evidence) -> Iterator[Finding]:
        raise ZeroDivisionError("by zero")
        yield

    rules = {"burst": [Rule("burst", burst)], "a": [Rule("a", lambda _: [finding("a", "note")])]}
    monkeypatch.setattr("wellcond.diagnosis.judge.RULES", rules)
    monkeypatch.setattr("wellcond.diagnosis.judge.CAUSES", {"burst": ("a",), "a": ("burst",)})
    first, note = judged(evidence())
    assert (first.rule, first.consequences) == ("a", ())
    assert (note.rule, note.severity, note.consequences) == ("burst", "note", ())
    assert "ZeroDivisionError: by zero" in note.summary


def test_a_symptom_is_no_more_than_a_warning_where_the_network_trains(only: Any) -> None:
    falls = Attempt(1.0, 0.1, Run([2.0, 1.0]), (1.0, 1.0), (1.0, 1.0))
    trains, stands = (
        Trial((2.0, 2.0), 2.0, falls),
        Trial((2.0, 2.0), 2.0, Attempt(1.0, 0.1, Run([2.0]), (2.0,) * 2, (2.0,) * 2)),
    )
    only(
        vanishing_gradient=([finding("vanishing-gradient")], ()),
        weight_decay_dominates=([finding("weight-decay-dominates", basis="tried")], ()),
        no_gradient=([finding("no-gradient")], ()),
    )
    severity = {each.rule: each.severity for each in judged(evidence(trains))}
    assert severity == {"vanishing-gradient": "warning", "weight-decay-dominates": "severe", "no-gradient": "severe"}
    assert {each.severity for each in judged(evidence(stands))} == {"severe"}


def test_rules_are_left_out_by_name_and_unknown_names_are_refused(only: Any) -> None:
    only(a=([finding("a")], ()), b=([finding("b")], ()))
    assert [each.rule for each in judged(evidence(), ignore=("a",))] == ["b"]
    with pytest.raises(ValueError, match=r"there is no rule 'aa'\. Closest: 'a'"):
        judged(evidence(), ignore=("aa",))


def test_what_is_seen_at_a_layer_explains_a_loss_that_does_not_fall(only: Any) -> None:
    only(
        loss_not_decreasing=([finding("loss-not-decreasing", basis="tried")], ()),
        rank_collapse=([finding("rank-collapse", "warning", layer="2")], ("loss-not-decreasing",)),
    )
    (one,) = judged(evidence())
    assert (one.rule, one.severity, one.consequences[0].rule) == ("rank-collapse", "severe", "loss-not-decreasing")
    only(
        loss_not_decreasing=([finding("loss-not-decreasing", basis="tried")], ()),
        rank_collapse=([finding("rank-collapse", "note", layer="2")], ("loss-not-decreasing",)),
    )
    assert [each.rule for each in judged(evidence())] == ["loss-not-decreasing", "rank-collapse"]


STANDS_STILL = [Attempt(factor, 0.1 * factor, Run([2.0]), (2.0, 2.0), (2.0, 2.0)) for factor in (1.0, 0.1, 10.0)]


@pytest.mark.parametrize(
    ("probed", "learned", "other", "expected"),
    [
        (20.0, 2.0, "warning", "severe"),
        (2.0, 2.0, "warning", "warning"),  # the inputs tell nothing of the targets: nothing can be learned
        (20.0, 1.0, "warning", "warning"),  # the highest rate learns
        (20.0, 2.0, "severe", "warning"),  # another fault explains it
    ],
)
def test_a_fault_that_explains_why_nothing_is_learned_is_severe(
    only: Any, probed: float, learned: float, other: str, expected: str
) -> None:
    own, lower, _ = STANDS_STILL
    higher = Attempt(10.0, 1.0, Run([learned]), (learned,) * 2, (learned,) * 2)
    relation = Relation(64, probed, 0.0, 0.0, 0.0, 3.0, 6, True, 64, None)
    trial = Trial((2.0, 2.0), 2.0, own, (lower, higher), relation=relation)
    only(
        shared_weight=([finding("shared-weight", "warning", "proven")], ("loss-not-decreasing",)),
        wrong_mask=([finding("wrong-mask", other, "proven")], ("constant-feature",)),
    )
    severities = {each.rule: each.severity for each in judged(evidence(trial))}
    assert severities == {"shared-weight": expected, "wrong-mask": other}
