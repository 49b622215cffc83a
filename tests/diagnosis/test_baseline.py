"""The loss of the best constant against closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import integers, normal

import wellcond as wc
from wellcond.problem.loss.constant import constant_loss

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
SHARES = torch.tensor([3 / 8, 2 / 8, 3 / 8], dtype=torch.float64)
ENTROPY = float(torch.special.entr(SHARES).sum())
VALUES = torch.tensor([0.0, 1.0, 1.0, 2.0, 7.0, 9.0, 10.0, 40.0], dtype=torch.float64)[:, None]
BITS = torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64)[:, None]


def entropy_of_bits() -> float:
    return -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))


def weighted_entropy() -> float:
    """Of the frequencies times the weights, which cross-entropy divides by their mean."""
    p = SHARES * torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    return float(torch.special.entr(p / p.sum()).sum())


def smoothed_entropy() -> float:
    """The best constant is the smoothed frequencies, and its loss is their entropy."""
    return float(torch.special.entr(0.9 * SHARES + 0.1 / 3).sum())


def steps_nll(outputs: Tensor, labels: Tensor) -> Tensor:
    """Log-probabilities over the last dimension, of which every step gives its own."""
    return -outputs.gather(2, labels[:, None, None].expand(-1, outputs.shape[1], 1)).mean()


CLOSED_FORMS: dict[str, tuple[Any, Tensor, Tensor, float]] = {
    "cross-entropy": (F.cross_entropy, normal(8, 3), LABELS, ENTROPY),
    "weights": (nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 5.0]).double()), normal(8, 3), LABELS, weighted_entropy()),
    "smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), normal(8, 3), LABELS, smoothed_entropy()),
    "log-probabilities": (F.nll_loss, normal(8, 3).log_softmax(1), LABELS, ENTROPY),
    "log-probabilities of steps": (steps_nll, normal(8, 4, 3).log_softmax(2), LABELS, ENTROPY),
    "squares": (F.mse_loss, normal(8, 1), VALUES, float(VALUES.var(correction=0))),
    "logits": (F.binary_cross_entropy_with_logits, normal(8, 1), BITS, entropy_of_bits()),
    "probabilities": (F.binary_cross_entropy, normal(8, 1).sigmoid(), BITS, entropy_of_bits()),
    "zeros": (F.binary_cross_entropy_with_logits, torch.zeros(8, 1).double(), BITS, entropy_of_bits()),
}


@pytest.mark.parametrize(("loss", "outputs", "targets", "least"), CLOSED_FORMS.values(), ids=CLOSED_FORMS)
def test_it_is_that_of_the_closed_form(loss: Any, outputs: Tensor, targets: Tensor, least: float) -> None:
    assert constant_loss(loss, None, [outputs], [targets]) == pytest.approx(least, rel=1e-5)


def test_of_absolute_errors_it_is_that_of_the_median_and_not_of_the_mean() -> None:
    median, mean = float((VALUES - 4).abs().mean()), float((VALUES - VALUES.mean()).abs().mean())
    least = constant_loss(F.l1_loss, None, [normal(8, 1)], [VALUES])
    assert least is not None
    assert least == pytest.approx(median, rel=0.05)
    assert least < mean


def test_batches_count_by_their_examples() -> None:
    outputs, targets = normal(8, 1), VALUES
    whole = constant_loss(F.mse_loss, None, [outputs], [targets])
    parts = constant_loss(F.mse_loss, None, list(outputs.split([3, 5])), list(targets.split([3, 5])))
    assert parts == pytest.approx(whole, rel=1e-9)


def test_every_output_has_a_constant_of_its_own_but_not_every_position() -> None:
    outputs, targets = normal(6, 2), normal(6, 2, seed=1)
    assert constant_loss(F.mse_loss, None, [outputs], [targets]) == pytest.approx(
        float(targets.var(0, correction=0).mean())
    )
    pixels = integers(3, 4, 5)  # 4 examples of 5 positions
    shares = pixels.flatten().bincount(minlength=3) / 20
    entropy = float(torch.special.entr(shares.double()).sum())
    weighted = nn.CrossEntropyLoss(torch.ones(3).double())
    assert constant_loss(weighted, None, [normal(4, 3, 5)], [pixels], class_dim=1) == pytest.approx(entropy, rel=1e-5)


def test_a_clamped_loss_is_left_at_its_flat_part() -> None:
    def clamped(p: Tensor, y: Tensor) -> Tensor:
        p = p.clamp(1e-7, 1 - 1e-7)
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()

    least = constant_loss(clamped, None, [torch.zeros(8, 1).double()], [BITS])  # at 0 it has no gradient
    assert least == pytest.approx(entropy_of_bits(), rel=1e-6)


@pytest.mark.parametrize(
    "loss",
    [lambda f, y: -F.cross_entropy(f, y), lambda f, y: -(f.square()).mean() + 0 * y.sum()],
    ids=["negative cross-entropy", "negative square"],
)
def test_a_loss_with_the_wrong_sign_has_none(loss: Any) -> None:
    assert constant_loss(loss, None, [normal(8, 3)], [LABELS]) is None


def test_a_loss_that_refuses_other_outputs_has_the_entropy_of_its_labels() -> None:
    def own(outputs: Tensor, targets: Tensor) -> Tensor:
        raise TypeError("the model computes its loss itself")

    ignored = torch.cat([LABELS, torch.tensor([-100, -100])])
    assert constant_loss(own, None, [normal(10, 3)], [ignored], class_dim=1) == pytest.approx(ENTROPY)
    assert constant_loss(own, None, [normal(8, 3)], [LABELS]) is None
    assert constant_loss(own, None, [normal(8, 3)], [normal(8, 3)], class_dim=1) is None


def test_a_loss_may_refuse_outputs_without_a_graph() -> None:
    def checked(outputs: Tensor, targets: Tensor) -> Tensor:
        loss = F.binary_cross_entropy(outputs, targets)
        if not loss.requires_grad:
            raise ValueError("the loss does not depend on any parameter")
        return loss

    least = constant_loss(checked, None, [normal(8, 1).sigmoid()], [BITS])
    assert least == pytest.approx(entropy_of_bits(), rel=1e-5)


def test_the_constant_of_a_problem_with_numbers_as_targets_is_their_mean_and_no_probability() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 2, dtype=torch.float64), 300 + 80 * torch.randn(64, 1, dtype=torch.float64)
    problem = wc.Problem(nn.Linear(2, 1).double(), nn.MSELoss(), (x, y))
    with torch.enable_grad():  # where a problem refuses outputs that depend on no parameter
        least = constant_loss(problem.loss_of_outputs, None, [torch.zeros(64, 1, dtype=torch.float64)], [y])
    assert least == pytest.approx(float(y.var(correction=0)))
