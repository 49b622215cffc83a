"""Losses of correct and of uninformed answers, accuracy and saturation of outputs, by closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import normal

from wellcond import Problem
from wellcond.diagnosis.inspection import data as data_module
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.inspection.outputs import OutputFacts

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
ENTROPY = float(torch.special.entr(torch.tensor([3 / 8, 2 / 8, 3 / 8]).double()).sum())


def facts(outputs: Tensor, targets: Tensor, loss: Any) -> OutputFacts:
    """Of a model whose outputs are its inputs, but for a product with I that gives them a graph."""
    model = nn.Linear(outputs.shape[1], outputs.shape[1], bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(outputs.shape[1]))
    inspection = inspect(Problem(model, loss, (outputs, targets)))
    assert inspection.failures == ()
    assert inspection.output is not None
    return inspection.output


def test_a_classifier_is_compared_with_the_frequencies_and_with_the_labels() -> None:
    logits = torch.eye(3).double()[LABELS]
    logits[0] = torch.tensor([0.0, 1.0, 0.0])  # one of eight is wrong
    of = facts(logits, LABELS, nn.CrossEntropyLoss())
    assert (of.loss_kind, of.class_dim, of.classes, of.accuracy) == ("cross-entropy", 1, 3, 7 / 8)
    assert of.best_constant == pytest.approx(ENTROPY)
    assert of.uninformed_loss == pytest.approx(ENTROPY)
    assert of.perfect_loss == pytest.approx(math.log(1.02))  # wrong classes have odds of 0.01 each
    assert of.loss == pytest.approx(float(F.cross_entropy(logits, LABELS)))


def test_squared_errors_are_compared_with_the_mean_and_with_the_targets() -> None:
    f, y = normal(8, 2), normal(8, 2, seed=1)
    of = facts(f, y, nn.MSELoss())
    variance = float(y.var(0, correction=0).mean())
    assert (of.best_constant, of.uninformed_loss) == pytest.approx((variance, variance))
    assert of.perfect_loss == 0.0
    assert of.variation == pytest.approx(float((f - f.mean(0)).square().sum() / f.square().sum()))
    assert (of.low, of.high) == pytest.approx((float(f.min()), float(f.max())))


def test_a_loss_of_the_wrong_sign_has_an_uninformed_answer_alone() -> None:
    of = facts(normal(8, 3), LABELS, lambda f, y: -F.cross_entropy(f, y))
    assert of.best_constant is None
    assert of.uninformed_loss == pytest.approx(-ENTROPY)
    assert of.perfect_loss is not None
    assert of.perfect_loss > of.uninformed_loss


def test_saturated_examples_have_probabilities_near_0_and_1_only() -> None:
    logits = torch.tensor([[20.0, 0.0], [0.0, 20.0], [1.0, 0.0], [0.0, 6.0]]).double()
    assert facts(logits, torch.tensor([0, 1, 0, 1]), nn.CrossEntropyLoss()).saturated == 0.5


def test_targets_outside_of_the_range_of_the_last_operation_are_counted() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid()).double()
    y = torch.tensor([0.0, 1.0, 1.01, 3.0]).double()[:, None]  # 1.01 is within the margin of smoothed labels
    output = inspect(Problem(model, nn.MSELoss(), (normal(4, 2), y))).output
    assert output is not None
    assert (output.tail[0], output.share_outside) == ("Sigmoid", 0.25)


def test_broadcast_outputs_have_another_loss_in_the_targets_shape() -> None:
    f, y = normal(6, 1), normal(6, seed=1)
    model = nn.Linear(1, 1).double()
    output = inspect(Problem(model, lambda a, b: (a - b).square().mean(), (f, y))).output
    assert output is not None
    assert output.reshaped_loss == pytest.approx(float((model(f)[:, 0] - y).square().mean().detach()))
    assert output.loss == pytest.approx(float((model(f) - y).square().mean().detach()))
    assert output.reshaped_perfect_loss == 0.0


def test_right_outputs_for_soft_labels_are_their_own_log_odds() -> None:
    """One-sided smoothing, as discriminators have it: the loss of right outputs is the entropy of the labels."""
    labels = torch.tensor([[0.9], [0.0], [0.9], [0.0]]).double()
    of = facts(normal(4, 1), labels, nn.BCEWithLogitsLoss())
    entropy = float(torch.special.entr(torch.tensor([0.9, 0.1]).double()).sum()) / 2
    assert of.perfect_loss == pytest.approx(entropy, abs=1e-4)
    assert of.uninformed_loss is not None
    assert of.perfect_loss < of.uninformed_loss


@pytest.mark.parametrize(
    ("loss", "targets"),
    [(nn.CrossEntropyLoss(ignore_index=2), torch.arange(8) % 3), (nn.BCEWithLogitsLoss(), (normal(8, 3) > 0).float()),
     (nn.MSELoss(), normal(8, 3, seed=2).float())],
)  # fmt: skip
def test_facts_about_very_many_outputs_are_those_of_few_but_for_the_rounding_of_float32(
    loss: nn.Module, targets: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    of = Problem(nn.Linear(4, 3), loss, (normal(8, 4, seed=1).float(), targets))
    exact = inspect(of).output
    monkeypatch.setattr(data_module, "MOST_WIDE", 0)
    rounded = inspect(of).output
    assert exact is not None
    assert rounded is not None
    assert rounded.low != exact.low or rounded.std != exact.std
    for name, value in vars(exact).items():
        if isinstance(value, float):
            assert getattr(rounded, name) == pytest.approx(value, rel=1e-5, abs=1e-6, nan_ok=True), name
        else:
            assert getattr(rounded, name) == value, name
