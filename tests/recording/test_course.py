"""Findings over a run: each begins once, ends once, keeps its step, and is listed below its cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from made_up_runs import evidence, learning

from wellcond.diagnosis.finding import Finding, Severity
from wellcond.recording.history import History
from wellcond.recording.judging.course import Course, nested
from wellcond.recording.judging.run_rule import RUN_RULES, RunEvidence, run_rule
from wellcond.results.quantities import TRAINING_LOSS


def finding(rule: str = "diverging", step: int = 100, severity: Severity = "warning", **fields: object) -> Finding:
    made_up = Finding(rule=rule, severity=severity, summary="something.", step=step)
    return replace(made_up, **fields)  # type: ignore[arg-type]


class Script:
    """A rule that says what a test wants it to say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("wellcond.recording.judging.course.RUN_RULES", table := {})
        monkeypatch.setattr("wellcond.recording.judging.run_rule.RUN_RULES", table)
        self.findings: list[Finding] = []
        self.course = Course()

        @run_rule("scripted", quantity=TRAINING_LOSS)
        def scripted(_: RunEvidence) -> Iterator[Finding]:
            yield from self.findings

    def at(self, step: int, *findings: Finding) -> tuple[list[Finding], list[Finding]]:
        self.findings = list(findings)
        return self.course.update(RunEvidence(History(), step))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    return Script(monkeypatch)


def test_a_finding_begins_once_and_keeps_its_first_step(script: Script) -> None:
    began, ended = script.at(150, finding(step=100))
    assert [each.step for each in began] == [100]
    assert ended == []
    assert script.at(200, finding(step=130, summary="more of it.")) == ([], [])
    (shown,) = script.course.findings
    assert (shown.step, shown.until, shown.summary) == (100, None, "more of it.")


def test_a_finding_that_is_gone_ends_after_a_while_at_the_step_at_which_it_was_last_seen(script: Script) -> None:
    script.at(1000, finding(step=900))
    assert script.at(1090) == ([], [])
    began, ended = script.at(1200)
    assert began == []
    assert [each.until for each in ended] == [1000]
    assert script.at(1300) == ([], [])


def test_a_finding_that_comes_back_soon_is_the_same_and_later_another(script: Script) -> None:
    script.at(1000, finding(step=900))
    for step in (1050, 1100, 1150):  # there and gone, again and again
        assert script.at(step, *([finding(step=step)] if step == 1100 else [])) == ([], [])
    assert len(script.course.findings) == 1
    script.at(1300)
    began, _ = script.at(1900, finding(step=1850))
    assert [each.step for each in began] == [1850]
    assert [(each.step, each.until) for each in script.course.findings] == [(1850, None), (900, 1100)]


def test_what_is_over_begins_and_ends_at_once(script: Script) -> None:
    spike = finding("loss-spike", 700, until=705)
    began, ended = script.at(750, spike)
    assert began == ended == [spike]
    assert script.at(900, spike) == ([], [])
    began, _ = script.at(1500, spike, finding("loss-spike", 1400, until=1401))
    assert [each.step for each in began] == [1400]


def test_a_finding_that_becomes_worse_is_reported_again(script: Script) -> None:
    script.at(150, finding(severity="note"))
    began, _ = script.at(200, finding(severity="severe"))
    assert [each.severity for each in began] == ["severe"]
    assert script.at(250, finding(severity="warning")) == ([], [])
    assert script.course.findings[0].severity == "severe"


def test_layers_at_which_it_begins_at_the_same_time_share_a_finding(script: Script) -> None:
    began, _ = script.at(700, finding("dying-neurons", 600, layer="fc1"), finding("dying-neurons", 610, layer="fc2"))
    assert [each.layer for each in began] == ["fc1"]
    assert began[0].evidence["also at"] == "fc2"
    began, _ = script.at(1500, finding("dying-neurons", 600, layer="fc1"), finding("dying-neurons", 1400, layer="fc3"))
    assert [each.layer for each in began] == ["fc3"]


def test_a_place_that_is_known_later_and_an_earlier_beginning_are_taken_over(script: Script) -> None:
    script.at(150, finding(step=120))
    assert script.at(200, finding(step=110, layer="fc1")) == ([], [])
    script.at(250, finding(step=118, summary="since step 118 it rises.", remedy="# as before step 118, not step 1180"))
    (shown,) = script.course.findings
    assert (shown.layer, shown.step) == ("fc1", 110)
    script.at(
        260, finding(step=118, layer="fc1", summary="since step 118 it rises.", remedy="# step 118, not step 1180")
    )
    (shown,) = script.course.findings
    assert (shown.summary, shown.remedy) == ("since step 110 it rises.", "# step 110, not step 1180")


def test_a_rule_that_fails_is_a_note_and_others_go_on(script: Script) -> None:
    @run_rule("broken", quantity=TRAINING_LOSS)
    def broken(_: RunEvidence) -> Iterator[Finding]:
        raise KeyError("nothing")
        yield

    script.at(150, finding())
    script.at(200, finding())
    assert [(each.rule, each.severity) for each in script.course.findings] == [
        ("diverging", "warning"),
        ("broken", "note"),
    ]


def test_a_course_goes_on_with_earlier_findings(script: Script) -> None:
    script.course = Course(earlier=[finding(step=100)])
    assert script.at(150, finding(step=110)) == ([], [])
    assert [each.step for each in script.course.findings] == [100]


def test_an_ignored_rule_says_nothing() -> None:
    course = Course(ignore=["non-finite"])
    assert course.update(evidence(np.full(50, np.nan))) == ([], [])


def test_causes_come_before_what_they_explain() -> None:
    rate = finding("learning-rate-too-high", 300)
    dead = finding("dying-neurons", 250, layer="fc1")
    loss = finding("diverging", 310, severity="warning")
    nan = finding("non-finite", 400)
    (root,) = nested([nan, loss, dead, rate])
    assert root.rule == "learning-rate-too-high"
    assert {each.rule for each in root.consequences} == {"dying-neurons", "diverging", "non-finite"}


def test_damage_that_outlasts_its_cause_comes_before_it_and_is_as_severe() -> None:
    dead, rate = finding("dying-neurons", 304, layer="fc1"), finding("learning-rate-too-high", 300, severity="severe")
    loss = finding("diverging", 302)
    first, second = nested([loss, dead, replace(rate, until=320)])
    assert (first.rule, first.severity, second.rule) == ("dying-neurons", "severe", "learning-rate-too-high")
    assert first.evidence["after"] == "learning-rate-too-high at step 300"
    (only,) = nested([loss, dead, rate])  # the rate is still as high
    assert only.rule == "learning-rate-too-high"
    roots = nested([dead, finding("loss-spike", 100, until=110)])  # long before
    assert "after" not in next(each for each in roots if each.rule == "dying-neurons").evidence


def test_a_fault_of_the_loader_explains_a_graver_overfitting() -> None:
    overfits = finding("overfitting", 575, severity="severe")
    (root,) = nested([overfits, finding("repeated-batches", 465, severity="warning")])
    assert (root.rule, root.severity) == ("repeated-batches", "severe")
    assert len(nested([overfits, finding("repeated-batches", 465, severity="note")])) == 2
    assert len(nested([overfits, finding("repeated-batches", 900, severity="warning")])) == 2


def test_what_was_there_long_before_is_no_consequence() -> None:
    early, late = finding("diverging", 200), finding("learning-rate-too-high", 900)
    assert {each.rule for each in nested([early, late])} == {"diverging", "learning-rate-too-high"}
    over = finding("loss-spike", 100, until=110)
    assert len(nested([over, finding("diverging", 1500)])) == 2


def test_of_two_that_explain_each_other_the_earlier_is_the_cause() -> None:
    roots = nested([finding("non-finite", 320, severity="severe"), finding("diverging", 300, severity="severe")])
    assert [each.rule for each in roots] == ["diverging"]
    roots = nested([finding("non-finite", 300, severity="severe"), finding("diverging", 305, severity="severe")])
    assert [each.rule for each in roots] == ["non-finite"]


@pytest.mark.parametrize("effect", ["attention-saturation", "activation-drift"])
def test_what_an_inspection_sees_after_a_jump_is_its_consequence(effect: str) -> None:
    jump = finding("learning-rate-too-high", 400)
    (root,) = nested([finding(effect, 480, severity="severe"), jump])
    assert (root.rule, root.severity) == ("learning-rate-too-high", "severe")
    assert effect in {each.rule for each in nested([finding(effect, 100, severity="severe"), jump])}


def test_findings_of_an_inspection_begin_and_end_with_it() -> None:
    course = Course()
    seen = finding("unscaled-input", severity="severe", step=None)
    began, _ = course.update(evidence(np.full(500, 2.3), inspected=[seen], inspected_at=480))
    assert [(each.rule, each.step) for each in began] == [("unscaled-input", 480)]
    course.update(evidence(np.full(600, 2.3), inspected=[seen], inspected_at=480))
    _, ended = course.update(evidence(np.full(900, 2.3), inspected_at=890))
    assert [(each.rule, each.until) for each in ended] == [("unscaled-input", 600)]


def test_statistics_that_an_inspection_finds_are_dated_by_their_momentum() -> None:
    course = Course()
    gap = finding("batchnorm-mode-gap", layer="bn", severity="severe", step=None)
    momenta = {("statistics_momentum", "bn"): {1: 0.1, 200: 0.0}}
    course.update(evidence(learning(), momenta, inspected=[gap], inspected_at=1990))
    assert [(each.rule, each.step) for each in course.findings] == [("batchnorm-mode-gap", 200)]


def test_momentum_that_was_raised_in_mid_run_is_dated_by_that_and_explains_what_came_of_it() -> None:
    wrong = finding("optimizer-setting", severity="severe", step=None)
    losses = np.where(np.arange(2000) < 900, learning(), 2.0)
    dead = {("dead_share", "fc1"): {step: float(step > 900) for step in range(20, 2001, 20)}}
    raised = {("momentum", ""): {1: 0.9, 880: 0.995}}
    course = Course()
    course.update(evidence(losses, dead | raised, inspected=[wrong], inspected_at=1990))
    assert [(each.rule, each.step) for each in course.findings] == [("optimizer-setting", 880)]
    assert "dying-neurons" in {each.rule for each in course.findings[0].consequences}
    course = Course()
    course.update(evidence(learning(), {("momentum", ""): {1: 0.999}}, inspected=[wrong], inspected_at=1990))
    assert [(each.rule, each.step) for each in course.findings] == [("optimizer-setting", 1990)]


def test_a_measured_symptom_is_a_note_while_the_loss_falls() -> None:
    course = Course()
    falling = 2.3 * np.exp(-np.arange(600) / 300)
    course.update(evidence(falling, inspected=[finding("activation-drift", severity="severe")], inspected_at=590))
    assert [each.severity for each in course.findings] == ["note"]


def test_a_measured_symptom_is_a_note_in_a_network_that_has_learned() -> None:
    """Its loss does not fall any more; where nothing was learned, the symptom is what it was measured to be."""
    seen = [finding("activation-drift", severity="severe")]
    for losses, severity in ((learning(), "note"), (np.full(2000, 2.3), "severe")):
        course = Course()
        course.update(evidence(losses, inspected=seen, inspected_at=1990))
        assert [each.severity for each in course.findings if each.rule == "activation-drift"] == [severity]


@pytest.mark.slow
def test_a_healthy_run_is_judged_again_and_again_without_a_word() -> None:
    course, losses = Course(), learning()
    for end in range(7, len(losses), 17):
        assert course.update(evidence(losses[:end])) == ([], [])


def test_every_rule_of_a_run_is_registered() -> None:
    assert {"gradients-not-cleared", "overfitting", "loss-spike", "stale-statistics"} <= RUN_RULES.keys()


@pytest.mark.parametrize("rule", ["bad-initialisation", "symmetric-initialisation"])
def test_weights_of_a_network_that_has_lost_what_it_learned_are_not_those_it_began_with(rule: str) -> None:
    seen = [finding(rule, severity="severe", basis="proven")]
    lost = learning()[:600]
    lost[500:] += np.arange(100) / 10
    for losses, expected in ((lost, []), (learning()[:600], [rule]), (np.full(600, 2.3), [rule])):
        course = Course()
        course.update(evidence(losses, inspected=seen, inspected_at=590))
        assert [each.rule for each in course.findings if each.rule == rule] == expected
