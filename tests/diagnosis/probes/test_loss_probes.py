"""What the loss sees and which outputs a model can give, by closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import normal

from wellcond import Problem
from wellcond.diagnosis.probes.behavior import Behavior, behavior
from wellcond.diagnosis.probes.reach import Reach
from wellcond.diagnosis.probes.sight import Sight, _ends

CLASSES, N = 5, 24
LABELS = torch.arange(N) % CLASSES
NUMBERS = normal(N, 1, seed=1)


def probed(loss: Callable[..., Any], y: Tensor, model: nn.Module | None = None) -> Behavior:
    if model is None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1 if y.dim() > 1 else CLASSES))
    shown = behavior(Problem(model.double(), loss, (normal(N, 3), y)))
    assert shown.failures == ()
    return shown


def sight(loss: Callable[..., Any], y: Tensor) -> Sight:
    seen = probed(loss, y).sight
    assert seen is not None
    return seen


@pytest.mark.parametrize("squash", [lambda f: f.softmax(1), lambda f: f.exp() / f.exp().sum(1, keepdim=True)])
def test_the_floor_of_two_softmaxes_is_that_of_a_one_among_zeros(squash: Callable[[Tensor], Tensor]) -> None:
    seen = sight(lambda f, y: F.cross_entropy(squash(f), y), LABELS)
    assert seen.least == pytest.approx(math.log1p((CLASSES - 1) / math.e), rel=0.02)
    assert seen.at_zero == pytest.approx(math.log(CLASSES))
    assert seen.is_bounded


def test_the_floor_of_smoothed_labels_is_their_entropy_and_no_bound() -> None:
    seen = sight(nn.CrossEntropyLoss(label_smoothing=0.1), LABELS)
    p = torch.full((CLASSES,), 0.1 / CLASSES)
    p[0] += 0.9
    assert seen.least == pytest.approx(float(torch.special.entr(p).sum()), rel=0.02)
    assert not seen.is_bounded


def test_a_loss_without_a_lowest_value_has_none() -> None:
    assert math.isnan(sight(lambda f, y: -F.cross_entropy(f, y), LABELS).least)
    assert math.isnan(sight(lambda f, y: F.nll_loss(f, y), LABELS).least)


def test_which_target_belongs_to_which_example() -> None:
    paired = sight(F.mse_loss, NUMBERS)
    assert (paired.is_unpaired, paired.ignores_targets, paired.is_crossed) == (False, False, False)
    assert sight(lambda f, y: (f - y.T).square().mean(), NUMBERS).is_unpaired
    assert sight(lambda f, y: (f.mean() - y.mean()) ** 2, NUMBERS).is_unpaired
    assert sight(lambda f, _: f.square().mean(), NUMBERS).ignores_targets
    assert sight(lambda f, y: F.mse_loss(f, y.flip(0)), NUMBERS).is_crossed
    assert sight(lambda f, y: F.cross_entropy(f[torch.randperm(len(f))], y), LABELS).is_crossed


def test_targets_that_the_loss_standardizes_are_paired() -> None:
    """At outputs of the size of the targets it is linear, and sees only their mean."""
    thousands = 2500 + 900 * NUMBERS
    assert not sight(lambda f, y: F.smooth_l1_loss(f, (y - 2500) / 900), thousands).is_unpaired
    assert not sight(lambda f, y: F.l1_loss(f, y / 1e4), thousands).is_unpaired
    assert sight(lambda f, y: F.smooth_l1_loss(f, (y.T - 2500) / 900), thousands).is_unpaired


def test_the_sign_of_the_outputs() -> None:
    assert sight(lambda f, y: F.mse_loss(f.abs(), y), NUMBERS).is_even
    assert sight(lambda f, y: F.mse_loss(f.relu(), y), NUMBERS).ignores_negative
    seen = sight(F.mse_loss, NUMBERS)
    assert (seen.is_even, seen.ignores_negative) == (False, False)


def test_the_dimension_of_a_softmax_may_be_shifted() -> None:
    assert sight(F.cross_entropy, LABELS).shifts == (1,)
    assert sight(lambda f, y: F.nll_loss(f.log_softmax(0), y), LABELS).shifts == (0,)
    assert sight(lambda f, y: F.multi_margin_loss(f, y), LABELS).shifts == (1,)
    assert sight(lambda f, y: F.mse_loss(f, F.one_hot(y, CLASSES).to(f)), LABELS).shifts == ()


def test_examples_that_the_loss_compares_and_weights_that_it_uses() -> None:
    assert not sight(lambda f, y: 1 - F.cosine_similarity(f, y, dim=0).mean(), NUMBERS).is_by_example
    assert sight(nn.CrossEntropyLoss(torch.arange(1.0, CLASSES + 1).double()), LABELS).is_by_example
    model = nn.Linear(3, 1)
    seen = probed(lambda f, y: F.mse_loss(f, y) + model.weight.square().sum(), NUMBERS, model).sight
    assert seen is not None
    assert seen.has_penalty


class Ending(nn.Module):
    """A perceptron with a function at its end."""

    def __init__(self, end: Callable[[Tensor], Tensor], outputs: int = CLASSES) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.end = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs)), end
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.body(x))


def reach(
    end: Callable[[Tensor], Tensor], loss: Callable[..., Any] = F.cross_entropy, y: Tensor = LABELS
) -> Reach | None:
    return probed(loss, y, Ending(end, 1 if y.dim() > 1 else CLASSES)).reach


@pytest.mark.parametrize("end", [torch.tanh, torch.erf, lambda f: f.clamp(-1, 1), lambda f: 2 * f.sigmoid() - 1])
def test_outputs_between_minus_one_and_one(end: Callable[[Tensor], Tensor]) -> None:
    reached = reach(end)
    assert reached is not None
    assert (reached.low, reached.high) == (pytest.approx(-1), pytest.approx(1))
    assert reached.least == pytest.approx(math.log1p((CLASSES - 1) * math.exp(-2)), rel=0.05)


def test_outputs_on_a_sphere() -> None:
    """The best logits of norm 1 differ by √(C/(C − 1)): they sum to zero."""
    reached = reach(lambda f: F.normalize(f, dim=1))
    assert reached is not None
    assert reached.is_normalized
    gap = math.sqrt(CLASSES / (CLASSES - 1))
    assert reached.least == pytest.approx(math.log1p((CLASSES - 1) * math.exp(-gap)), rel=0.02)


def test_outputs_that_are_shares() -> None:
    reached = reach(lambda f: f.exp() / f.exp().sum(1, keepdim=True))
    assert reached is not None
    assert reached.least == pytest.approx(math.log1p((CLASSES - 1) / math.e), rel=0.02)


def test_outputs_that_are_never_negative() -> None:
    reached = reach(torch.relu, F.mse_loss, NUMBERS)
    assert reached is not None
    assert (reached.low, reached.high) == (0, math.inf)
    assert reached.least == pytest.approx(float(NUMBERS.clamp_max(0).square().mean()), rel=0.05)


def test_outputs_without_a_bound() -> None:
    assert reach(lambda f: f) is None
    log_shares = reach(lambda f: f.log_softmax(1), F.nll_loss)
    assert log_shares is not None
    assert (log_shares.low, log_shares.high, log_shares.least) == (-math.inf, pytest.approx(0), pytest.approx(0))
    scaled = Ending(lambda f: F.normalize(f, dim=1))
    scaled.end = lambda f: F.normalize(f, dim=1) * scaled.scale.exp()
    assert probed(F.cross_entropy, LABELS, scaled).reach is None
    zero = nn.Linear(3, CLASSES)
    nn.init.zeros_(zero.weight)
    nn.init.zeros_(zero.bias)
    assert probed(F.cross_entropy, LABELS, zero).reach is None


def test_nothing_of_the_model_changes() -> None:
    model = Ending(torch.tanh).double()
    before = [(p, p.data_ptr(), p.detach().clone()) for p in model.parameters()]
    probed(F.cross_entropy, LABELS, model)
    assert all(p.data_ptr() == at and torch.equal(p, data) and p.grad is None for p, at, data in before)


class Exponential:
    """rate · time − event · log rate of outputs that end at ±31.5, where numbers do."""

    def loss(self, outputs: Tensor) -> float:
        log_rates = outputs.clamp(-31.5, 31.5)
        return float((log_rates.exp() - torch.tensor([1.0, 0.0]) * log_rates).mean())


def test_a_likelihood_of_times_has_no_bound() -> None:
    """It rises as an exponential, and no farther once numbers end; that of a time without an event is least at −∞."""
    times, best = Exponential(), torch.tensor([0.0, -16.0])
    least, is_bounded = _ends(times, best, times.loss(best), times.loss(0 * best))  # type: ignore[arg-type]
    assert times.loss(-3 * best) == pytest.approx(times.loss(-10 * best))
    assert least == pytest.approx(0.5, abs=1e-6)
    assert not is_bounded
