"""Rules about what kl_div and ctc_loss get, in a loss or anywhere in a training step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import normal

import wellcond as wc
from wellcond.diagnosis.inspection.log_probabilities import LogProbabilities

TEACHER = normal(64, 5, seed=1).softmax(1).float()


def student() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 5))


def distilled(as_logarithms: bool) -> wc.Problem:
    """A student that learns a teacher's probabilities, in a step of its own."""

    def step(model: nn.Module, batch: Any) -> Tensor:
        x, teacher = batch
        outputs = model(x)
        return F.kl_div(outputs.log_softmax(1) if as_logarithms else outputs.softmax(1), teacher, reduction="batchmean")

    return wc.Problem.from_step(student(), step, [(normal(64, 6).float(), TEACHER)])


def spoken(dim: int | None) -> wc.Problem:
    """Sounds of 12 steps whose 4 classes are transcribed; `dim` is that of the softmax: steps, examples, classes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 4))
    labels = torch.randint(1, 4, (16, 3), generator=torch.Generator().manual_seed(0))
    sounds = F.one_hot(labels.repeat_interleave(4, 1) - 1, 3).float() + 0.1 * normal(16, 12, 3).float()

    def step(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        outputs = model(x).transpose(0, 1)  # (12, 16, 4)
        outputs = outputs if dim is None else outputs.log_softmax(dim)
        return F.ctc_loss(outputs, y, torch.full((16,), 12), torch.full((16,), 3))

    return wc.Problem.from_step(model, step, [(sounds, labels)])


def first(problem: wc.Problem) -> tuple[str, str]:
    findings = wc.diagnose(problem, torch.optim.Adam(problem.model.parameters(), 1e-2)).findings
    return (findings[0].rule, findings[0].severity) if findings else ("", "")


@pytest.mark.slow
def test_probabilities_in_place_of_logarithms_are_severe_and_logarithms_are_not() -> None:
    assert first(distilled(as_logarithms=False)) == ("output-loss-mismatch", "severe")
    assert first(distilled(as_logarithms=True))[1] != "severe"


@pytest.mark.slow
@pytest.mark.parametrize("dim", [0, 1])
def test_a_softmax_before_ctc_goes_over_the_classes(dim: int) -> None:
    assert first(spoken(dim))[0] == "wrong-softmax-dimension"


@pytest.mark.slow
def test_raw_outputs_before_ctc_are_severe() -> None:
    assert first(spoken(None)) == ("output-loss-mismatch", "severe")


@pytest.mark.slow
def test_a_transcription_as_it_should_be_is_not_accused() -> None:
    assert first(spoken(2))[1] != "severe"


def test_what_the_losses_get_is_noted_with_the_dimensions_that_sum_to_one() -> None:
    x = normal(7, 3).requires_grad_()
    target = normal(7, 3, seed=2).softmax(1)
    with LogProbabilities() as noted:
        F.kl_div(x.softmax(1), target, reduction="sum")
        F.kl_div(x.log_softmax(0), target, reduction="sum")
        F.kl_div(input=x.log_softmax(1), target=target, reduction="sum")
        F.kl_div(x.detach(), target, reduction="sum")  # nothing of the model's
        F.mse_loss(x.softmax(1), target)
    assert [(each.normalized_dims, each.are_probabilities) for each in noted.seen] == [
        (frozenset({1}), True),
        (frozenset({0}), False),
        (frozenset({1}), False),
    ]
    assert {(each.function, each.shape) for each in noted.seen} == {("kl_div", (7, 3))}
    assert noted.seen[2].total == pytest.approx(1)


def test_the_total_of_raw_outputs_is_the_sum_of_their_exponentials() -> None:
    with LogProbabilities() as noted:
        F.ctc_loss(
            torch.zeros(5, 2, 4, requires_grad=True), torch.ones(2, 1), torch.tensor([5, 5]), torch.ones(2).int()
        )
    assert noted.seen[0].total == pytest.approx(4)  # exp(0), of four classes
