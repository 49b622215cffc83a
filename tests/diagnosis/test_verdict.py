"""What a diagnosis says in a sentence or two, and what to write."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from made_findings import DEAD, NOTE, UNSCALED, VANISHING

import wellcond as wc
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.finding import Finding


@pytest.fixture(scope="module")
def healthy() -> Diagnosis:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    return wc.diagnose(wc.Problem(model, torch.nn.CrossEntropyLoss(), (torch.randn(8, 3), torch.arange(8) % 2)))


@pytest.mark.parametrize(
    ("finding", "write"),
    [
        (DEAD, " Write: nn.LeakyReLU(0.01)"),
        (replace(DEAD, remedy="# in the model\nnn.ELU()  # smooth"), " Write: nn.ELU()  # smooth"),
        (VANISHING, " Write the 3 lines of findings[0].remedy."),
        (replace(DEAD, remedy=""), ""),
        (NOTE, ""),
    ],
    ids=["one_line", "one_line_and_a_comment", "a_block", "without_remedy", "note"],
)
def test_a_remedy_is_quoted_whole_or_pointed_to(finding: Finding, write: str, healthy: Diagnosis) -> None:
    diagnosis = replace(healthy, findings=(finding,))
    assert diagnosis.verdict() == diagnosis.assessment() + write


def test_the_worst_finding_is_quoted_and_others_of_its_severity_are_counted(healthy: Diagnosis) -> None:
    diagnosis = replace(healthy, findings=(UNSCALED, VANISHING, DEAD))
    assert diagnosis.assessment() == (
        "Severe (unscaled-input, and 1 more): the inputs reach 1e5. It explains vanishing-gradient and dying-neurons."
    )
    assert diagnosis.assessment() in " ".join(str(diagnosis).split())
    assert str(diagnosis).count("the inputs reach 1e5") == 1
