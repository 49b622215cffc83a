"""Which arms of a treatment go on, by screenings written by hand."""

from __future__ import annotations

import math

import pytest

import wellcond.treatment.treat  # noqa: F401, which registers all remedies
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.treatment.arm import Arm
from wellcond.treatment.ranking import advised, drawn, finalists, fits, not_chosen, proposals_of, ranked


def screened(**losses: float) -> dict[str, Arm]:
    """Arms by name, with `_` for "-" and `__` for " + "."""
    names = {name: name.replace("__", " + ").replace("_", "-") for name in losses}
    return {names[name]: Arm(names[name], screened=loss) for name, loss in losses.items()}


def finding(rule: str, severity: Severity = "severe", treatment: str = "") -> Finding:
    return Finding(rule=rule, severity=severity, treatment=treatment, summary="")


def test_the_lowest_loss_is_first_without_diverged_arms_or_the_rate_alone() -> None:
    arms = screened(adam=0.5, bnp=0.2, clip=math.inf, rate=0.1) | {"last-bn": Arm("last-bn", refused="no")}
    assert ranked(arms) == ["bnp", "adam"]


@pytest.mark.parametrize(("loss", "is_ranked"), [(0.4, True), (0.497, False), (0.6, False)])
def test_a_combination_must_be_better_than_each_part_by_a_hundredth(loss: float, is_ranked: bool) -> None:
    assert ("adam + he-init" in ranked(screened(adam=0.5, he_init=0.9, adam__he_init=loss))) == is_ranked


def test_the_best_single_remedy_is_a_finalist_and_so_is_the_rate_alone() -> None:
    arms = screened(
        adam=0.9, he_init=0.8, bnp=0.85, adam__he_init=0.5, bnp__he_init=0.51, adam__bnp=0.52, rate=1.0, clip=0.95
    )
    assert finalists(arms, advice="clip") == ["adam + he-init", "bnp + he-init", "he-init", "clip", "rate"]


def test_remedies_of_one_part_do_not_fit_together() -> None:
    assert fits("adam + he-init", "clip")
    assert not fits("adam + he-init", "orthogonal-init")


def test_severe_findings_advise_the_best_of_their_remedies_together() -> None:
    findings = [finding("unscaled-input"), finding("exploding-gradient"), finding("non-finite", "note")]
    proposals = proposals_of(findings)
    assert proposals["scale-inputs"] == ("unscaled-input",)
    assert not any("non-finite" in rules for rules in proposals.values())
    arms = screened(scale_inputs=0.3, adam=0.4, clip=0.6, he_init=0.9)
    assert advised(arms, findings, proposals) == "scale-inputs + clip"
    assert advised(arms, [], {}) == ""


def test_a_control_is_drawn_among_remedies_that_no_finding_proposes() -> None:
    arms = screened(scale_inputs=0.3, adam=0.4, bnp=0.6, rate=0.2)
    proposals = {"scale-inputs": ("unscaled-input",), "adam": ("unscaled-input",)}
    assert {drawn(arms, proposals, f"{seed} 10") for seed in range(9)} == {"bnp"}
    assert {drawn(arms, {}, f"{seed} 10") for seed in range(30)} == {"scale-inputs", "adam", "bnp"}
    assert drawn(screened(rate=0.2), {}, "0 10") is None


@pytest.mark.parametrize(
    ("treatment", "severity", "reason"),
    [
        ("he-init", "severe", None),
        ("rate", "severe", None),
        ("clip", "warning", None),
        ("clip", "severe", "it does not help enough"),
        ("orthogonal-init", "severe", "another remedy of the same part of the training does better"),
        ("last-bn", "severe", "no last layer"),
        ("less-dropout", "severe", "there is nothing to treat"),
    ],
)
def test_a_severe_findings_remedy_is_in_the_best_arm_or_a_note_says_why(
    treatment: str, severity: Severity, reason: str | None
) -> None:
    arms = screened(he_init=0.1, clip=0.5, orthogonal_init=0.2) | {"last-bn": Arm("last-bn", refused="no last layer")}
    notes = not_chosen(arms, [finding("bad-initialisation", severity, treatment)] * 2, arms["he-init"])
    expected = f"{treatment}, which bad-initialisation proposes, is not part of the best: {reason}."
    assert notes == ([] if reason is None else [expected])
