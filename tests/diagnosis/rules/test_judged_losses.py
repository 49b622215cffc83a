"""Losses whose course tells nothing, terms that swamp others, and outputs that are reshaped before a comparison."""

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
from wellcond.diagnosis.after_runs import Swamped
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.handful import Handful
from wellcond.diagnosis.probes.drawn import weighs_by_itself
from wellcond.diagnosis.probes.paired import Paired
from wellcond.diagnosis.rules.term_dominates import term_dominates
from wellcond.diagnosis.trial_result import Trial
from wellcond.results.run import Run

Step = Callable[[nn.Module, Tensor], Any]


def states(count: int = 128) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0))


def policy(step: Step) -> wc.Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
    return wc.Problem.from_step(model, step, list(states().split(32)))


def regret(x: Tensor, action: Tensor) -> Tensor:
    return x.gather(1, action[:, None])[:, 0] - x.max(1).values - 1


def reinforce(m: nn.Module, x: Tensor) -> Tensor:
    drawn = Categorical(logits=m(x))
    action = drawn.sample()
    return -(drawn.log_prob(action) * regret(x, action)).mean()


def in_a_loop(m: nn.Module, x: Tensor) -> Tensor:
    losses = []
    for row in x[:8]:
        log_p = m(row).log_softmax(-1)
        action = int(torch.multinomial(log_p.exp().detach(), 1))
        losses.append(-log_p[action] * (float(row[action]) - 5))
    return torch.stack(losses).sum()


def with_gumbel_noise(m: nn.Module, x: Tensor) -> Tensor:
    logits = m(x)
    action = (logits.detach() - torch.rand_like(logits).log().neg().log()).argmax(1)
    return (F.cross_entropy(logits, action, reduction="none") * regret(x, action)).mean()


def actor_and_critic(m: nn.Module, x: Tensor) -> Tensor:
    mean, value, _ = m(x).unbind(1)
    drawn = Normal(mean, 1.0)
    action = drawn.sample()
    returns = -10 - (action - x[:, 0]).abs()
    return -(drawn.log_prob(action) * (returns - value).detach()).mean() + 0.5 * F.mse_loss(value, returns)


def clipped(m: nn.Module, x: Tensor) -> Tensor:
    log_p = m(x).log_softmax(1)
    ratio = (log_p[:, 0] - log_p[:, 0].detach()).exp()
    advantage = (x[:, 0] - log_p.exp() @ x[:, :3].mean(0)).detach()
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


@pytest.mark.parametrize("step", [reinforce, in_a_loop, with_gumbel_noise, actor_and_critic, clipped])
def test_a_loss_that_the_models_draws_weigh_is_not_judged_by_its_course(step: Step) -> None:
    problem = policy(step)
    diagnosis = wc.diagnose(problem, Adam(problem.model.parameters(), 1e-2))
    assert not [each for each in diagnosis.findings if each.severity != "note"]
    assert "draws" in diagnosis.failed["trial"]


def mixed_up(m: nn.Module, x: Tensor) -> Tensor:
    share, order = torch.rand(()), torch.randperm(len(x))
    out, target = m(share * x + (1 - share) * x[order]), x[:, :3].argmax(1)
    return share * F.cross_entropy(out, target) + (1 - share) * F.cross_entropy(out, target[order])


def denoised(m: nn.Module, x: Tensor) -> Tensor:
    noise = torch.randn_like(x)
    return F.mse_loss(m(x + noise), noise[:, :3])


def reparametrized(m: nn.Module, x: Tensor) -> Tensor:
    return -(5 - (m(x) + 0.3 * torch.randn(len(x), 3) - x[:, :3]).square()).mean()


def with_stored_advantages(m: nn.Module, x: Tensor) -> Tensor:
    return -(m(x).log_softmax(1)[:, 0] * x[:, 0]).mean()


def with_weights(m: nn.Module, x: Tensor) -> Tensor:
    out = F.dropout(m(x), 0.3)
    return (F.cross_entropy(out, x[:, :3].argmax(1), reduction="none") * x[:, 3].abs()).mean() * 0.5


@pytest.mark.parametrize("step", [mixed_up, denoised, reparametrized, with_stored_advantages, with_weights])
def test_random_numbers_and_given_weights_are_no_draws_of_the_model(step: Step) -> None:
    assert not weighs_by_itself(policy(step))


class Autoencoder(nn.Module):
    """Variational, of sums of waves."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 8))
        self.decoder = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 24))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp()), mean, log_variance


def waves() -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    phase = 6.28 * torch.rand(256, 1, generator=draw)
    return list(torch.sin(0.4 * torch.arange(24) + phase).split(32))


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp())


def summed_divergence(m: nn.Module, x: Tensor) -> Tensor:
    out, *posterior = m(x)
    return F.mse_loss(out, x) + divergence(*posterior).sum()


def large_factor(m: nn.Module, x: Tensor) -> Tensor:
    out, *posterior = m(x)
    error = (out - x).square().mean()
    return 20 * divergence(*posterior).mean() + error


def squeezed(m: Any, x: Tensor) -> Tensor:
    codes = m.encoder(x)[:, :4]
    return F.mse_loss(m.decoder(codes), x) + 300 * codes.square().mean()


def small_factor(m: nn.Module, x: Tensor) -> Tensor:
    out, *posterior = m(x)
    return F.mse_loss(out, x) + 1e-3 * divergence(*posterior).sum(1).mean()


def both_summed(m: nn.Module, x: Tensor) -> Tensor:
    out, *posterior = m(x)
    return 10 * (out - x).square().sum(1).mean() + divergence(*posterior).sum(1).mean()


def lightly_penalized(m: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(m(x)[0], x) + 1e-5 * sum(p.abs().sum() for p in m.parameters())


def of_waves(step: Step) -> dict[str, str]:
    torch.manual_seed(0)
    problem = wc.Problem.from_step(Autoencoder(), step, waves())
    findings = wc.diagnose(problem, Adam(problem.model.parameters(), 3e-3)).findings
    return {each.rule: each.severity for each in findings}


@pytest.mark.slow
@pytest.mark.parametrize("step", [summed_divergence, large_factor, squeezed])
def test_a_term_that_swamps_another_is_severe(step: Step) -> None:
    assert of_waves(step)["term-dominates"] == "severe"


@pytest.mark.slow
@pytest.mark.parametrize("step", [small_factor, both_summed, lightly_penalized])
def test_terms_of_their_ordinary_sizes_are_sound(step: Step) -> None:
    assert "term-dominates" not in of_waves(step)


WEIGHTS = torch.tensor([0.2, 1.0, 1.5])


def places(loss: Callable[[Tensor, Tensor], Tensor], is_channels_first: bool) -> set[str]:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(128, 10, 3, generator=draw)
    y = x.argmax(-1)
    layers: list[nn.Module] = [nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 3)]
    if is_channels_first:
        x, layers = x.transpose(1, 2), [nn.Conv1d(3, 32, 1), nn.ReLU(), nn.Conv1d(32, 3, 1)]
    model = nn.Sequential(*layers)
    problem = wc.Problem(model, loss, list(zip(x.split(32), y.split(32), strict=True)))
    findings = wc.diagnose(problem, Adam(model.parameters(), 1e-2)).findings
    return {each.rule for each in findings if each.severity == "severe"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "is_channels_first"),
    [
        (lambda o, y: F.cross_entropy(o.reshape(len(o), 3, 10), y), False),
        (lambda o, y: nn.NLLLoss()(o.view(len(o), 3, 10).log_softmax(1), y), False),
        (lambda o, y: F.cross_entropy(o.reshape(-1, 3), y.flatten()), True),
        (lambda o, y: F.cross_entropy(o.reshape(-1, 3), y.flatten(), weight=WEIGHTS), True),
    ],
)
def test_outputs_that_are_reshaped_where_dimensions_are_to_be_exchanged(
    loss: Callable[[Tensor, Tensor], Tensor], is_channels_first: bool
) -> None:
    assert "output-loss-mismatch" in places(loss, is_channels_first)


def more_at_borders(o: Tensor, y: Tensor) -> Tensor:
    is_border = F.pad((y[:, 1:] != y[:, :-1]).float(), (0, 1)) + F.pad((y[:, 1:] != y[:, :-1]).float(), (1, 0))
    return ((1 + 3 * is_border.clamp(max=1)) * F.cross_entropy(o, y, reduction="none")).mean()


def with_overlap(o: Tensor, y: Tensor) -> Tensor:
    p, target = o.softmax(1), F.one_hot(y, 3).movedim(-1, 1)
    return F.cross_entropy(o, y) + 1 - 2 * (p * target).sum() / (p + target).sum()


@pytest.mark.parametrize(
    ("loss", "is_channels_first"),
    [
        (lambda o, y: F.cross_entropy(o.transpose(1, 2), y), False),
        (lambda o, y: F.cross_entropy(o.reshape(-1, 3), y.flatten(), label_smoothing=0.1), False),
        (with_overlap, True),
        (lambda o, y: F.cross_entropy(o, y, weight=WEIGHTS), True),
        (lambda o, y: F.cross_entropy(o.transpose(1, 2).reshape(-1, 3), y.flatten(), weight=WEIGHTS), True),
        (more_at_borders, True),
    ],
)
def test_exchanged_dimensions_flattened_places_and_overlaps_are_sound(
    loss: Callable[[Tensor, Tensor], Tensor], is_channels_first: bool
) -> None:
    assert not places(loss, is_channels_first)


class Coder(nn.Module):
    """Variational, with one layer for mean and variance, so that its code is all noise for some fifty steps."""

    def __init__(self, inputs: int, codes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 2 * codes))
        self.decoder = nn.Sequential(nn.Linear(codes, 64), nn.ReLU(), nn.Linear(64, inputs))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp()), mean, log_variance


@pytest.mark.slow
@pytest.mark.parametrize(("size", "causes"), [(0.4, 10), (0.5, 5)])
@pytest.mark.parametrize("is_faulty", [True, False])
def test_a_code_that_is_only_slow_to_leave_the_noise_is_sound(size: float, causes: int, is_faulty: bool) -> None:
    torch.manual_seed(0)
    pictures = torch.sigmoid(size * torch.randn(1024, causes) @ torch.randn(causes, 64) - 1)

    def step(m: nn.Module, x: Tensor) -> Tensor:
        out, *posterior = m(x)
        error = F.binary_cross_entropy_with_logits(out, x, reduction="none")
        if is_faulty:
            return error.mean() + divergence(*posterior).sum(1).mean()
        return error.sum(1).mean() + divergence(*posterior).sum(1).mean()

    model = Coder(64, 8)
    findings = wc.diagnose(wc.Problem.from_step(model, step, list(pictures.split(32))), Adam(model.parameters(), 3e-3))
    severe = {each.rule for each in findings.findings if each.severity == "severe"}
    assert severe == ({"term-dominates"} if is_faulty else set())


@pytest.mark.parametrize(
    ("still_falls", "alone", "of_few", "expected"),
    [
        (False, 0.4, None, ["severe"]),
        (False, 0.4, Paired(1.0, 1.01), ["severe"]),
        (True, 0.4, Paired(1.0, 1.01), ["warning"]),
        (False, 0.4, Paired(1.0, 2.0), ["warning"]),
        (True, 0.4, Paired(1.0, 2.0), []),
        (False, 0.1, Paired(1.0, 2.0), ["severe"]),
        (False, 0.8, None, []),
    ],
    ids=["stands still", "nor does a handful learn", "only the bias is learned", "a handful learns", "it is only slow",
         "a handful learns, and far more would be", "it is not learned alone either"],
)  # fmt: skip
def test_a_term_that_others_may_only_delay(
    still_falls: bool, alone: float, of_few: Paired | None, expected: list[str]
) -> None:
    few = Handful(8, 1e-2, 1.0, 0.1, None, Run([1.0, 0.1]), paired=of_few)
    swamped = Swamped(1.0, 0.9, alone, others_before=5.0, others_after=0.01, still_falls=still_falls)
    problem = wc.Problem(nn.Linear(1, 1), nn.MSELoss(), [(torch.ones(2, 1), torch.ones(2, 1))])
    evidence = Evidence(problem, trial=Trial((6.0,), few=few, swamped=swamped))
    assert [each.severity for each in term_dominates(evidence)] == expected
