"""Models that compute their own loss from labels, in a step that only calls them, or next to a target for form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.rules.label_shift import label_shift

TOKENS = torch.randint(0, 12, (16, 10), generator=torch.Generator().manual_seed(0))
NEXT = F.pad(TOKENS[:, 1:], (0, 1), value=-100)


class Model(nn.Module):
    def __init__(self, *, shifts: bool, is_causal: bool = True) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)
        self.mix = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.shifts, self.is_causal = shifts, is_causal

    def forward(self, ids: Tensor, labels: Tensor) -> dict[str, Any]:
        steps = ids.shape[1]
        mask = torch.full((steps, steps), float("-inf")).triu(1) if self.is_causal else None
        logits = self.head(self.mix(self.embed(ids), src_mask=mask))
        if self.shifts:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def own_loss(outputs: dict[str, Tensor], _: Tensor) -> Tensor:
    return outputs["loss"]


def for_form(model: Model, labels: Tensor) -> wc.Problem:
    return wc.Problem(model, own_loss, [({"ids": TOKENS, "labels": labels}, torch.zeros(len(TOKENS)))])


def severities(model: Model, labels: Tensor, *, is_step: bool = True) -> list[str]:
    def step(m: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return own_loss(m(**batch), labels)

    stepped = wc.Problem.from_step(model, step, [{"ids": TOKENS, "labels": labels}])
    problem = stepped if is_step else for_form(model, labels)
    return [each.severity for each in label_shift(Evidence(problem, None, behavior=behavior(problem)))]


@pytest.mark.parametrize(
    ("shifts", "labels"), [(True, NEXT), (False, TOKENS.clone())], ids=["shifted twice", "shifted by nobody"]
)
def test_wrong(shifts: bool, labels: Tensor) -> None:
    torch.manual_seed(0)
    model = Model(shifts=shifts)
    assert severities(model, labels) == severities(model, labels, is_step=False) == ["severe"]


@pytest.mark.parametrize(
    ("shifts", "labels", "is_causal"),
    [(True, TOKENS.clone(), True), (False, NEXT, True), (False, TOKENS.clone(), False), (True, TOKENS.flip(0), True)],
    ids=["the model shifts", "the data are shifted", "an autoencoder", "other labels"],
)
def test_sound(shifts: bool, labels: Tensor, is_causal: bool) -> None:
    torch.manual_seed(0)
    model = Model(shifts=shifts, is_causal=is_causal)
    assert severities(model, labels) == severities(model, labels, is_step=False) == []


def test_a_target_that_the_loss_does_not_use_is_not_judged() -> None:
    """Many a loader gives a number next to the labels that the model takes."""
    rows = [({"ids": TOKENS, "labels": TOKENS.clone()}, torch.zeros(16, dtype=torch.long))] * 5
    optimizer = torch.optim.AdamW((model := Model(shifts=True)).parameters(), lr=1e-3)
    findings = wc.diagnose(wc.Problem(model, own_loss, rows), optimizer).findings
    assert "constant-target" not in [each.rule for each in findings]
    used = wc.Problem(model, lambda outputs, y: F.cross_entropy(outputs["logits"][:, 0], y), rows)
    assert "constant-target" in [each.rule for each in wc.diagnose(used, optimizer).findings]


@pytest.mark.parametrize(("of_labels", "expected"), [(1, ["severe"]), (0, [])], ids=["shifted twice", "as they are"])
def test_labels_that_a_step_makes(of_labels: int, expected: list[str]) -> None:
    """The batch is one tensor of tokens; inputs and labels are cut from it in the step."""

    def step(m: nn.Module, tokens: Tensor) -> Tensor:
        ids = tokens[:, :-1]
        return own_loss(m(ids, labels=tokens[:, of_labels : of_labels + ids.shape[1]]), ids)

    torch.manual_seed(0)
    problem = wc.Problem.from_step(Model(shifts=True), step, [TOKENS])
    assert [each.severity for each in label_shift(Evidence(problem, None, behavior=behavior(problem)))] == expected
