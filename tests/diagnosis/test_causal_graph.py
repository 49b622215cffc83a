"""The causal graph holds rules only, and says which of them may explain themselves through others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wellcond.diagnosis.causes import CAUSES, KINDS, MUTUAL, as_mermaid, reachable_from
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.judge import RULES
from wellcond.diagnosis.rule import explanation, rule
from wellcond.recording import rules as run_rules  # noqa: F401  registers them
from wellcond.recording.judging.run_rule import RUN_RULES


def test_every_rule_has_a_kind_and_every_name_in_the_graph_is_a_rule() -> None:
    assert KINDS.keys() == RULES.keys() | RUN_RULES.keys()
    assert {*CAUSES, *(effect for effects in CAUSES.values() for effect in effects)} <= KINDS.keys()


def test_effects_are_listed_once() -> None:
    for cause, effects in CAUSES.items():
        assert len(effects) == len(set(effects)) > 0, cause
        assert cause not in effects


def test_only_those_stated_explain_themselves_through_others() -> None:
    assert {name for name in KINDS if name in reachable_from(name)} == MUTUAL


def test_outcomes_and_symptoms_explain_no_scale() -> None:
    """What measures a consequence of a wrong scale cannot be its cause."""
    for cause, effects in CAUSES.items():
        if KINDS[cause] in ("symptom", "outcome"):
            assert all(KINDS[effect] != "scale" for effect in effects), cause


def test_the_picture_leads_from_each_cause_to_all_that_it_explains() -> None:
    lines = as_mermaid().splitlines()
    arrows = [tuple(line.split(" --> ")) for line in map(str.strip, lines) if "-->" in line]
    drawn: dict[str, set[str]] = {name: set(MUTUAL) if name in MUTUAL else set() for name in KINDS}
    for cause, effect in arrows:
        drawn[cause].add(effect)
    for _ in KINDS:  # close it: the rules in the box reach each other
        for name, effects in drawn.items():
            drawn[name] = effects.union(*(drawn[effect] for effect in effects))
    assert drawn == {name: reachable_from(name) for name in KINDS}
    assert len(arrows) <= 1.2 * len(KINDS)  # more could not be followed with the eye


def test_a_rule_of_the_users_adds_to_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "mine", [])
    monkeypatch.setitem(CAUSES, "mine", ())

    @rule("mine", explains=("diverging",))
    def first(_: Evidence) -> Iterator[Finding]:
        """Looks for the first thing."""
        yield from ()

    @rule("mine", explains=("diverging", "non-finite"))
    def second(_: Evidence) -> Iterator[Finding]:
        """Looks for the second thing."""
        yield from ()

    assert CAUSES["mine"] == ("diverging", "non-finite")
    assert explanation("mine") == "Looks for the first thing.\n\nLooks for the second thing."


@pytest.mark.parametrize("name", sorted(RULES | RUN_RULES))
def test_every_rule_says_what_it_looks_for(name: str) -> None:
    for each in (*RULES.get(name, ()), *RUN_RULES.get(name, ())):
        assert each.judge.__doc__
        assert len(each.explanation) > 40
