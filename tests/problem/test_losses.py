"""Losses are recognized by what they compute, whatever they are called."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loss_zoo import LOSSES, OTHER_LOSSES
from torch import Tensor, nn
from zoo import flattened_cross_entropy, integers, mlp, normal

import wellcond as wc
from wellcond.problem.loss.likelihoods import Bernoulli, CrossEntropy, Gaussian, Likelihood
from wellcond.problem.loss.losses import explains, recognize

LOGITS, LABELS, VALUES = normal(6, 3), integers(3, 6), normal(6, 3, seed=1)
SEQUENCE, TOKENS = normal(2, 4, 3), integers(3, 2, 4)


def found(loss: Any, outputs: Tensor, targets: Any) -> Likelihood | None:
    return recognize(loss, loss, outputs, targets)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        F.cross_entropy,
        lambda f, y: F.cross_entropy(f, y),
        lambda f, y: F.nll_loss(f.log_softmax(1), y),
        lambda f, y: (f.logsumexp(1) - f.gather(1, y[:, None])[:, 0]).mean(),
    ],
)
def test_cross_entropy_however_it_is_written(loss: Any) -> None:
    assert found(loss, LOGITS, LABELS) == CrossEntropy(1, -100)


@pytest.mark.parametrize(
    ("loss", "outputs", "targets", "expected"),
    [
        (nn.CrossEntropyLoss(), SEQUENCE.transpose(1, 2), TOKENS, CrossEntropy(1)),
        (flattened_cross_entropy, SEQUENCE, TOKENS, CrossEntropy(-1)),
        (lambda f, y: F.cross_entropy(f.flatten(0, 1), y), SEQUENCE, TOKENS.flatten(), CrossEntropy(-1)),
        (nn.CrossEntropyLoss(), normal(2, 3, 3), integers(3, 2, 3), CrossEntropy(1)),
        (flattened_cross_entropy, normal(2, 3, 3), integers(3, 2, 3), CrossEntropy(-1)),
        (nn.CrossEntropyLoss(ignore_index=1), LOGITS, LABELS, CrossEntropy(1, 1)),
        (functools.partial(F.cross_entropy, ignore_index=2), LOGITS, LABELS, CrossEntropy(1, 2)),
        (lambda f, y: F.cross_entropy(f, y, ignore_index=0), LOGITS, LABELS, CrossEntropy(1, 0)),
        (lambda f, y: F.cross_entropy(f, y, ignore_index=-1), LOGITS, LABELS - 1, CrossEntropy(1, -1)),
        (nn.CrossEntropyLoss(), LOGITS, VALUES.softmax(1), CrossEntropy(1)),
        (nn.NLLLoss(), LOGITS.log_softmax(1), LABELS, CrossEntropy(1)),
        (nn.NLLLoss(ignore_index=0), LOGITS.log_softmax(1), LABELS, CrossEntropy(1, 0)),
    ],
)
def test_the_classes_and_what_is_ignored_are_found(loss: Any, outputs: Tensor, targets: Tensor, expected: Any) -> None:
    assert found(loss, outputs, targets) == expected


HARD, SOFT = VALUES.sign().clamp_min(0), VALUES.sigmoid()


@pytest.mark.parametrize(
    ("loss", "targets", "kind", "scale"),
    [
        (nn.MSELoss(), VALUES, Gaussian, 1 / 3),
        (lambda f, y: (f - y).square().sum(1).mean(), VALUES, Gaussian, 1.0),
        (lambda f, y: 0.5 * (f - y).square().sum() / len(f), VALUES, Gaussian, 0.5),
        (lambda f, y: 10 * F.mse_loss(f, y), VALUES, Gaussian, 10 / 3),
        (nn.BCEWithLogitsLoss(), HARD, Bernoulli, 1 / 3),
        (nn.BCEWithLogitsLoss(), SOFT, Bernoulli, 1 / 3),
        (lambda f, y: 3 * F.binary_cross_entropy_with_logits(f, y), HARD, Bernoulli, 1.0),
        (lambda f, y: 3 * F.binary_cross_entropy_with_logits(f, y), SOFT, Bernoulli, 1.0),
    ],
)
def test_squared_error_is_gaussian_and_binary_cross_entropy_bernoulli(
    loss: Any, targets: Tensor, kind: Any, scale: float
) -> None:
    likelihood = found(loss, LOGITS, targets)
    assert isinstance(likelihood, kind)
    assert likelihood.scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize(
    ("loss", "outputs", "targets"),
    [
        (nn.L1Loss(), LOGITS, VALUES),
        (nn.SmoothL1Loss(), 5 * LOGITS, VALUES),
        (nn.PoissonNLLLoss(), LOGITS, VALUES.exp()),
        (nn.BCEWithLogitsLoss(pos_weight=torch.tensor(2.0)), LOGITS, VALUES.sigmoid()),
        (nn.CrossEntropyLoss(label_smoothing=0.1), LOGITS, LABELS),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)), LOGITS, LABELS),
        (lambda f, y: F.cross_entropy(f, y) + 1e-3 * f.square().mean(), LOGITS, LABELS),
        (lambda f, y: F.cross_entropy(f, y) + 1.0, LOGITS, LABELS),
        (nn.NLLLoss(), LOGITS, LABELS),
        (lambda f, y: F.nll_loss(f, y) + 1e-3 * f.square().mean(), LOGITS.log_softmax(1), LABELS),
        (nn.BCELoss(), LOGITS.sigmoid(), VALUES.sigmoid()),
        (nn.MultiMarginLoss(), LOGITS, LABELS),
        (lambda f, y: f.mean(), LOGITS, LABELS),
        (lambda f, y: y.double().mean(), LOGITS, LABELS),
    ],
)
def test_other_losses_are_not_mistaken_for_a_likelihood(loss: Any, outputs: Tensor, targets: Tensor) -> None:
    assert found(loss, outputs, targets) is None


@pytest.mark.parametrize("name", LOSSES)
def test_a_likelihoods_mean_is_the_loss_it_was_recognized_by(name: str) -> None:
    case = LOSSES[name]()
    targets, outputs = case.batch[1], case.model(case.batch[0]).detach()
    likelihood = found(case.loss, outputs, targets)
    assert likelihood is not None
    assert likelihood.terms(outputs, targets) == len(list(case.terms(outputs, targets)))
    other = outputs + normal(*outputs.shape, seed=3)
    loss = case.loss(other, targets)
    assert float(likelihood.mean(other, targets)) == pytest.approx(float(loss), rel=1e-12)
    assert explains(likelihood, loss, other, targets)
    assert not explains(likelihood, 1.01 * loss, other, targets)


@pytest.mark.parametrize("name", OTHER_LOSSES)
def test_losses_without_a_likelihood_have_none(name: str) -> None:
    case = OTHER_LOSSES[name]()
    assert found(case.loss, case.model(case.batch[0]).detach(), case.batch[1]) is None


def test_outputs_in_single_precision_are_recognized_too() -> None:
    assert found(nn.CrossEntropyLoss(), LOGITS.float(), LABELS) == CrossEntropy(1)
    assert isinstance(found(nn.MSELoss(), LOGITS.float(), VALUES.float()), Gaussian)
    assert isinstance(found(nn.BCEWithLogitsLoss(), LOGITS.float(), VALUES.sigmoid().float()), Bernoulli)


@pytest.mark.parametrize("examples", [2, 6])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, nn.MultiMarginLoss])
def test_a_sum_over_the_examples_is_recognized(loss: Any, examples: int) -> None:
    """Outputs that are a tuple show it too; over one example the two are the same."""
    x, y = normal(examples, 4), torch.arange(examples) % 3
    problem = wc.Problem(mlp(), loss(), (x, y))
    with problem.measuring():
        outputs = problem.forward(0, x)
        assert not problem.loss_adds_up(outputs, y)
        problem.loss = loss(reduction="sum")
        assert problem.loss_adds_up(outputs, y)
        assert not problem.loss_adds_up(outputs[:1], y[:1])
        problem.loss = lambda pair, labels: loss(reduction="sum")(pair[0], labels)
        assert problem.loss_adds_up((outputs, x), y)
        problem.loss = loss(reduction="none")
        assert not problem.loss_adds_up(outputs, y)


def test_a_loss_of_two_terms_gives_no_warning() -> None:
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            x, y = normal(8, 4), integers(3, 8)
            wc.diagnose(wc.Problem(mlp(), lambda f, y: (F.cross_entropy(f, y), f.square().mean()), (x, y)))
    finally:
        torch.set_warn_always(False)
    assert [str(each.message) for each in seen] == []
