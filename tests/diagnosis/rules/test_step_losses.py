"""Losses of a training step that train nothing, or the wrong way round, and others that are so by design."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.optim import Adam

import wellcond as wc
from wellcond.diagnosis.probes.constant_terms import lost_slope

Batch = tuple[Tensor, Tensor]
Step = Callable[[nn.Module, Batch], Any]


def batch() -> Batch:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=draw)
    return x, torch.sin(2 * x[:, :1]) + 0.3 * x[:, 1:2]


def problem(step: Step) -> wc.Problem:
    torch.manual_seed(0)
    return wc.Problem.from_step(nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 4)), step, [batch()])


def severities(step: Step) -> dict[str, str]:
    posed = problem(step)
    findings = wc.diagnose(posed, Adam(posed.model.parameters(), 1e-2)).findings
    return {each.rule: each.severity for each in findings if each.severity != "note"}


def gaussian(m: nn.Module, b: Batch) -> Tensor:
    out = m(b[0])
    return Normal(out[:, :1], F.softplus(out[:, 1:2]) + 0.05).log_prob(b[1]).mean()


def by_hand(m: nn.Module, b: Batch) -> Tensor:
    mean, log_var = m(b[0]).split([1, 3], 1)
    return -0.5 * (log_var[:, :1] + (b[1] - mean).square() / log_var[:, :1].exp()).mean()


def classes(m: nn.Module, b: Batch) -> Tensor:
    return Categorical(logits=m(b[0])).log_prob((b[1][:, 0] > 0).long()).mean()


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [gaussian, by_hand, classes])
def test_a_likelihood_that_is_minimized_is_severe_and_its_negative_sound(likelihood: Step) -> None:
    assert severities(likelihood)["output-loss-mismatch"] == "severe"
    assert "output-loss-mismatch" not in severities(lambda m, b: -likelihood(m, b))


def critic(m: nn.Module, b: Batch) -> Tensor:
    return m(b[0] + 1)[:, 0].mean() - m(b[0])[:, 0].mean()


def policy(m: nn.Module, b: Batch) -> Tensor:
    advantages = (b[1][:, 0] - b[1].mean()) / b[1].std()
    return -(F.log_softmax(m(b[0]), 1)[:, 0] * advantages).mean()


def similarity(m: nn.Module, b: Batch) -> Tensor:
    return -F.cosine_similarity(m(b[0]), b[1].expand(-1, 4)).mean()


@pytest.mark.parametrize("step", [critic, policy, similarity])
def test_losses_that_fall_below_zero_by_design(step: Step) -> None:
    assert "output-loss-mismatch" not in severities(step)


def slopes(m: nn.Module, b: Batch, **options: Any) -> Tensor:
    x = b[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(m(x)[:, 0].sum(), x, **options)
    return (slope - torch.cos(b[0])).square().mean()


def derivative(m: nn.Module, b: Batch) -> Tensor:
    return slopes(m, b, retain_graph=True) + m(torch.zeros(1, 6)).square().mean()


def with_graph(m: nn.Module, b: Batch) -> Tensor:
    return slopes(m, b, create_graph=True) + m(torch.zeros(1, 6)).square().mean()


def through_numpy(m: nn.Module, b: Batch) -> Tensor:
    out = m(b[0])
    return F.mse_loss(out[:, :1], b[1]) + torch.from_numpy(abs(out[:, 1:].detach().numpy() - 1)).mean()


def as_a_number(m: nn.Module, b: Batch) -> Tensor:
    total = 0.1 * F.mse_loss(m(b[0])[:, :1], b[1])
    for p in m.parameters():
        total = total + 0.01 * p.square().sum().item()
    return total


def stacked(m: nn.Module, b: Batch) -> Tensor:
    out = m(b[0])
    with torch.no_grad():
        bent = (m(2 * b[0]) - 2 * out + 1).square().mean()
    return torch.stack([0.1 * out.square().mean(), bent]).mean()


@pytest.mark.parametrize("step", [derivative, through_numpy, as_a_number, stacked])
def test_a_term_without_a_gradient_is_named(step: Step) -> None:
    assert "no-gradient" in severities(step)


@pytest.mark.slow
def test_a_derivative_that_trains_nothing_is_severe_and_with_a_graph_sound() -> None:
    assert severities(derivative) == {"no-gradient": "severe"}
    assert severities(with_graph) == {}


def two_views(m: nn.Module, b: Batch) -> Tensor:
    first, second = m(b[0]), m(b[0] + 0.1)
    total = 0
    for one, other in ((first, second), (second, first)):
        total = total - F.cosine_similarity(one, other.detach()).mean()
    return total + 1


def bootstrapped(m: nn.Module, b: Batch) -> Tensor:
    return 0.0 + (m(b[0])[:, :1] - (b[1] + 0.9 * m(b[0].roll(1, 0))[:, :1]).detach()).square().mean()


def with_a_baseline(m: nn.Module, b: Batch) -> Tensor:
    out = m(b[0])
    logp, value = F.log_softmax(out[:, :3], 1)[:, 0], out[:, 3]
    return 0.5 * (b[1][:, 0] - value).square().mean() - (logp * (b[1][:, 0] - value).detach()).mean()


def own_teacher(m: nn.Module, b: Batch) -> Tensor:
    teacher = F.log_softmax(m(b[0]), 1).detach()
    return (teacher.exp() * (teacher - F.log_softmax(m(b[0] + 0.3), 1))).sum(1).mean()


def quantized(m: nn.Module, b: Batch) -> Tensor:
    out = m(b[0])
    return F.mse_loss((out + (out.round() - out).detach())[:, :1], b[1]) + 1e-3


@pytest.mark.parametrize("step", [two_views, bootstrapped, with_a_baseline, own_teacher, quantized, gaussian])
def test_a_stopped_gradient_inside_of_a_term_is_by_design(step: Step) -> None:
    assert lost_slope(problem(step)) is None


def test_nothing_moves_in_the_model() -> None:
    posed = problem(through_numpy)
    before = [p.clone() for p in posed.params.values()]
    assert (lost_slope(posed) or 0) > 0.2
    assert all(torch.equal(p, old) for p, old in zip(posed.params.values(), before, strict=True))
    assert all(p.grad is None for p in posed.params.values())


def with_a_critic(*, is_cut: bool) -> Step:
    """The step of a generator, which trains its discriminator too."""
    critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = Adam(critic.parameters(), 1e-2)

    def step(m: nn.Module, b: Batch) -> Tensor:
        fake = m(b[0])
        with torch.enable_grad():
            loss = F.softplus(-critic(b[0][:, :4])).mean() + F.softplus(critic(fake.detach())).mean()
            gradients = torch.autograd.grad(loss, list(critic.parameters()))
        for p, gradient in zip(critic.parameters(), gradients, strict=True):
            p.grad = gradient
        optimizer.step()
        return F.softplus(-critic(fake.detach() if is_cut else fake)).mean()

    return step


def test_a_step_that_trains_another_network_too_is_judged_by_all_but_the_course_of_its_loss() -> None:
    assert severities(with_a_critic(is_cut=True)) == {"no-gradient": "severe"}
    assert severities(with_a_critic(is_cut=False)) == {}
    diagnosis = wc.diagnose(problem(with_a_critic(is_cut=False)))
    assert "it trains another network too" in diagnosis.failed["trial"]


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 3000.0])
def test_values_of_rewards_in_the_thousands_need_a_scale(scale: float) -> None:
    """The step calls the model twice, so that its outputs and targets are not known but from what it compares."""

    def values(m: nn.Module, b: Batch) -> Tensor:
        with torch.no_grad():
            aim = scale * b[1] + 0.5 * m(0.5 * b[0])[:, :1]
        return F.huber_loss(m(b[0])[:, :1], aim)

    posed = problem(values)
    by_rule = {each.rule: each for each in wc.diagnose(posed, Adam(posed.model.parameters(), 5e-3)).findings}
    assert ("unscaled-target" in by_rule) is (scale > 1)
    if scale > 1:
        finding = by_rule["unscaled-target"]
        assert finding.severity == "severe"
        rms = scale * float(batch()[1].double().square().mean().sqrt())
        assert finding.evidence["RMS of targets"] == pytest.approx(rms, rel=1e-3)
        assert "learning-rate-too-low" not in by_rule
