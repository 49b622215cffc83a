"""Findings name remedies that exist, and carry the lines of their remedy."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rule_cases import perceptron, table
from torch import nn
from torch.optim import SGD, Adam, Optimizer

import wellcond as wc
from wellcond.diagnosis import rules
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.judge import completed, lines_by_remedy
from wellcond.remedies import REMEDIES

FILES = sorted(Path(rules.__file__).parent.glob("[!_]*.py"))


def treatments(path: Path) -> set[str]:
    """The names of remedies in a rule's file: all strings in arguments called `treatment`."""
    arguments = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.keyword)
    ]
    strings = [node for each in arguments if each.arg == "treatment" for node in ast.walk(each.value)]
    return {node.value for node in strings if isinstance(node, ast.Constant) and isinstance(node.value, str)} - {""}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_treatment_is_a_remedy(path: Path) -> None:
    assert treatments(path) <= REMEDIES.keys()


def finding(treatment: str, **numbers: float) -> Finding:
    return Finding(
        rule="model-fails",
        severity="warning",
        summary="…",
        treatment=treatment,
        remedy="advice",
        evidence=dict(numbers),
    )


def evidence(make: type[Optimizer] = SGD) -> Evidence:
    model = perceptron()
    return Evidence(wc.Problem(model, nn.CrossEntropyLoss(), table()), make(model.parameters(), lr=0.1))


def with_lines(findings: list[Finding], known: Evidence) -> tuple[Finding, ...]:
    return completed(findings, known, lines_by_remedy(known.problem, known.optimizer))


def test_a_finding_has_the_lines_of_its_treatment() -> None:
    (one,) = with_lines([finding("he-init")], evidence())
    assert "kaiming_normal_" in one.remedy
    compile(one.remedy, "remedy", "exec")


def test_advice_stays_where_a_remedy_does_not_apply_or_none_is_named() -> None:
    inner = replace(finding("less-dropout"), consequences=(finding(""),))  # it has no dropout
    (one,) = with_lines([inner], evidence())
    assert (one.remedy, one.consequences[0].remedy) == ("advice", "advice")


def test_a_rate_is_the_one_that_the_trial_found_better() -> None:
    (one,) = with_lines([finding("rate", **{"other lr": 0.025})], evidence(Adam))
    assert "0.025" in one.remedy
    (other,) = with_lines([finding("rate")], evidence(Adam))
    assert other.remedy == "advice"


def test_consequences_have_their_lines_too_and_the_set_up_is_unchanged() -> None:
    known = evidence()
    before = torch.cat([p.detach().flatten().clone() for p in known.problem.model.parameters()])
    (one,) = with_lines([replace(finding(""), consequences=(finding("he-init"),))], known)
    assert "kaiming_normal_" in one.consequences[0].remedy
    assert torch.equal(before, torch.cat([p.detach().flatten() for p in known.problem.model.parameters()]))
