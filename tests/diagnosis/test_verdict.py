"""A diagnosis in a sentence or two: the rate next to its limit, what could not be checked, and what to write."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from made_findings import DEAD, DIVERGED, NOTE, UNSCALED, VANISHING
from torch import nn

import wellcond as wc
from wellcond.diagnosis.budget import PartName
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.parts import Part
from wellcond.results import Cost


def diagnosis(lr: float | None = 0.1, trains: bool | None = None, **fields: Any) -> Diagnosis:
    problem = wc.Problem(nn.Linear(1, 1), nn.MSELoss(), (torch.ones(2, 1), torch.ones(2, 1)))
    limit: Any = SimpleNamespace(value=0.5, momentum=0.9)
    trial: Any = SimpleNamespace(trains=trains)
    parts = tuple(Part(name, "measured", 1.0, Cost(), 0.1) for name in (PartName.INSPECTION, PartName.MAX_LR))
    values: dict[str, Any] = {"findings": (), "about": {}, "failed": {}, "parts": parts} | fields
    seen = values.pop("inspection", None) or inspect(problem)
    evidence = Evidence(problem, inspection=seen, max_lr=limit, trial=trial)
    return Diagnosis(evidence=evidence, parameters=2, lr=lr, cost=Cost(), **values)


@pytest.mark.parametrize(
    ("lr", "trains", "words"),
    [
        (0.1, True, "The rate 0.1 is 20 % of the stability limit 0.5, and the loss goes down in the trial."),
        (0.1, None, "The rate 0.1 is 20 % of the stability limit 0.5."),
        (2.0, None, "The rate 2 is 4 times the stability limit at these weights."),
        (2.0, True, "The rate 2 is 4 times the stability limit at these weights, which is ordinary"),
        (2.0, True, "the limit says from where on steps overshoot, not where training fails."),
        (None, None, "The largest stable rate is 0.5 with momentum 0.9."),
    ],
)
def test_below_the_limit_a_rate_is_a_share_and_above_it_a_multiple(
    lr: float | None, trains: bool | None, words: str
) -> None:
    assert words in diagnosis(lr, trains).verdict()


def test_a_clean_bill_lists_what_was_checked_and_what_could_not_be() -> None:
    text = diagnosis(failed={"whether examples of a batch influence each other": "RuntimeError: no"}).verdict()
    assert text.startswith(
        "Nothing is wrong in what was checked: the data, the outputs and the gradients of every layer"
    )
    assert text.endswith("Could not be checked: whether examples of a batch influence each other.")
    assert diagnosis(parts=(), failed={"trial": "no memory"}).verdict() == "Nothing could be checked: no memory."


@pytest.mark.parametrize(
    ("remedy", "write"),
    [
        ("optimizer = torch.optim.Adam(model.parameters())", "Write: optimizer = torch.optim.Adam(model.parameters())"),
        ("# an order\nx = 1", "Write:\n# an order\nx = 1"),
        ("for p in model.parameters():\n    p.data *= 2\n", "Write:\nfor p in model.parameters():\n    p.data *= 2"),
        ("# look at the labels", "Look at the labels."),
        ("", ""),
    ],
)
def test_a_remedy_is_quoted_whole(remedy: str, write: str) -> None:
    severe = diagnosis(findings=(replace(VANISHING, remedy=remedy), NOTE))
    assert severe.assessment().startswith("Severe (vanishing-gradient")
    assert severe.verdict() == f"{severe.assessment()} {write}".strip()


def test_notes_alone_are_a_clean_bill() -> None:
    assert "(1 note)" in diagnosis(findings=(NOTE,)).verdict()


def test_the_worst_finding_is_quoted_and_equally_severe_ones_are_counted() -> None:
    several = diagnosis(findings=(UNSCALED, VANISHING, DEAD))
    assert several.assessment() == (
        "Severe (unscaled-input, and 1 more): the inputs reach 1e5. It explains vanishing-gradient and dying-neurons."
    )
    shown = replace(several, evidence=replace(several.evidence, max_lr=None, trial=None))
    assert str(shown).count("the inputs reach 1e5") == 1


@pytest.mark.parametrize("what", [PartName.GRADIENTS, PartName.TRIAL, "the outputs and the loss"])
def test_nothing_is_called_sound_if_gradients_trial_or_outputs_are_not_known(what: str) -> None:
    text = diagnosis(failed={what: "RuntimeError: no kernel."}).verdict()
    assert text.startswith(
        "Whether it trains is not known: RuntimeError: no kernel. Nothing else was found in the data"
    )
    assert "othing is wrong" not in text


def test_what_the_inspection_did_not_see_is_not_said_to_be_checked() -> None:
    model = nn.Linear(1, 1)
    frozen = wc.Problem(model, lambda f, y: (f - y).square().mean() * 0 + 1.0, (torch.ones(2, 1), torch.ones(2, 1)))
    inspection = replace(inspect(frozen), weights=())
    assert "gradients" not in diagnosis(inspection=inspection).verdict()


def test_advice_without_code_is_read_out() -> None:
    text = diagnosis(findings=(replace(UNSCALED, remedy="# restore a checkpoint\n# then lower the rate"),)).verdict()
    assert text.endswith(" Restore a checkpoint. Then lower the rate.")


def test_without_an_optimizer_it_is_said_what_was_assumed() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 1), torch.randn(16, 3)
    problem = wc.Problem(model, nn.MSELoss(), (x, x.sum(1, keepdim=True)))
    assumed = "No optimizer was passed: short runs took SGD at 0.01 with momentum 0.9."
    assert wc.diagnose(problem).verdict().endswith(assumed)
    assert "No optimizer" not in wc.diagnose(problem, torch.optim.SGD(model.parameters(), lr=0.1)).verdict()
    about = {"optimizer": assumed}
    assert assumed in diagnosis(findings=(DIVERGED,), about=about).assessment()  # short runs show it
    assert assumed not in diagnosis(findings=(UNSCALED,), about=about).assessment()


def test_a_summed_loss_that_trains_is_sound_and_measured_in_full() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    model = nn.Linear(4, 3)
    problem = wc.Problem(model, nn.CrossEntropyLoss(reduction="sum"), (x, x[:, :3].argmax(1)))
    text = wc.diagnose(problem, torch.optim.Adam(model.parameters(), lr=0.01)).verdict()
    assert text.startswith("Nothing is wrong in what was checked: the data, the outputs and the gradients of every")
    assert "the conditioning of every layer, short runs of copies and the largest stable learning rate" in text
    assert "Could not be checked" not in text
