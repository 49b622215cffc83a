"""Numbers that are filled up and count in the loss, poolings over padding, and sound forms of both."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import wellcond as wc
from wellcond.diagnosis.finding import Finding

G = torch.Generator().manual_seed(7)
STATES = torch.randn(128, 6, generator=G)
STEPS = torch.arange(10.0)
LENGTHS = torch.randint(2, 11, (128, 1), generator=G)
REAL = LENGTHS > STEPS
CURVES = 1.5 + STATES[:, :1] * torch.cos(0.3 * STEPS) + 0.5 * STATES[:, 1:2] * torch.sin(0.3 * STEPS)
IDS = torch.randint(1, 40, (96, 16), generator=G)
IS_WORD = torch.arange(16) < torch.randint(6, 17, (96, 1), generator=G)
TEXTS = IDS * IS_WORD


def regressor() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 10))


def reported(problem: wc.Problem, rule: str) -> list[Finding]:
    optimizer = torch.optim.Adam(problem.model.parameters(), 3e-3)
    return list(wc.diagnose(problem, optimizer, select=[rule]).findings)


def curves(targets: Tensor) -> wc.Problem:
    return wc.Problem(regressor(), nn.MSELoss(), [(STATES, targets)])


def test_numbers_that_are_filled_up_and_count() -> None:
    (finding,) = reported(curves(CURVES * REAL), "padding-in-loss")
    assert finding.severity == "warning"
    assert finding.evidence["share in the loss"] == pytest.approx(float((~REAL).double().mean()))


@pytest.mark.parametrize("counts", [True, False])
def test_the_mask_of_a_step(counts: bool) -> None:
    def step(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        states, path, real = batch
        error = (model(states) - path).abs()
        return error.mean() if counts else (error * real).sum() / real.sum()

    problem = wc.Problem.from_step(regressor(), step, [(STATES, CURVES * REAL, REAL.float())])
    assert [each.severity for each in reported(problem, "padding-in-loss")] == ["warning"] * counts


SOUND = {
    "whole curves": CURVES,
    "what fades away": (1.5 + 0.4 * STATES[:, :1] - 0.25 * STEPS).clamp(min=0),
    "a code that counts": REAL.float(),
    "zeros anywhere": CURVES * (torch.rand(CURVES.shape, generator=G) < 0.6),
    "a few that are short": torch.where(torch.arange(128)[:, None] % 4 == 0, CURVES * REAL, CURVES),
}


@pytest.mark.parametrize("targets", SOUND.values(), ids=SOUND)
def test_numbers_as_they_are_meant(targets: Tensor) -> None:
    assert reported(curves(targets), "padding-in-loss") == []


class Pooled(nn.Module):
    """A mean, or a maximum, of words next to each other; the width of the embedding is the number of steps."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(40, 16, padding_idx=0)
        self.near = nn.Conv1d(16, 24, 3, padding=1)
        self.head = nn.Linear(24, 3)
        self.how = how

    def forward(self, ids: Tensor) -> Tensor:
        h = F.gelu(self.near(self.embed(ids).transpose(1, 2)))
        mask = ((ids == 0) if self.how == "padding" else (ids != 0) if self.how == "words" else (ids >= 0)).float()
        mean = (h * mask[:, None]).sum(2) / mask.sum(1, keepdim=True).clamp(min=1)
        out: Tensor = self.head(h.amax(2) if self.how == "maximum" else mean)
        return out


@pytest.mark.slow
@pytest.mark.parametrize(("how", "expected"), [("padding", ["severe"]), ("words", []), ("all", []), ("maximum", [])])
def test_a_mean_over_padding(how: str, expected: list[str]) -> None:
    labels = (TEXTS > 20).sum(1) % 3
    problem = wc.Problem(Pooled(how), nn.CrossEntropyLoss(), [(TEXTS[k::3], labels[k::3]) for k in range(3)])
    ill = [each.severity for each in reported(problem, "wrong-mask") if each.severity == "severe"]
    assert ill == expected


@pytest.mark.parametrize("classes", [5, 6])
def test_cumulative_labels_of_ordered_classes_are_no_padding(classes: int) -> None:
    grade = torch.bucketize(STATES[:, 0].contiguous(), torch.linspace(-1, 0.5, classes - 1))
    targets = (grade[:, None] > torch.arange(classes - 1)).float()
    model = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, classes - 1))
    assert reported(wc.Problem(model, nn.BCEWithLogitsLoss(), [(STATES[:, :5], targets)]), "padding-in-loss") == []
