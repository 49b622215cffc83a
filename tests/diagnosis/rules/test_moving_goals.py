"""Losses that follow the model itself, or a critic: their course is no verdict, unless it gets out of hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wellcond as wc
from wellcond.diagnosis.probes.goals import moves_with_the_model

G = torch.Generator().manual_seed(0)
STATES, ACTIONS, REWARDS = (
    torch.randn(256, 4, generator=G),
    torch.randint(2, (256,), generator=G),
    torch.rand(256, generator=G),
)
NEXT = torch.randn(256, 4, generator=G)
BATCHES = [tuple(t[i : i + 32] for t in (STATES, ACTIONS, REWARDS, NEXT)) for i in range(0, 256, 32)]


def network(inputs=4, outputs=2):
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def bootstrapped(discount, target=None):
    def step(model, batch):
        states, actions, rewards, following = batch
        with torch.no_grad():
            goal = rewards + discount * (target or model)(following).max(1).values
        return F.mse_loss(model(states).gather(1, actions[:, None])[:, 0], goal)

    return step


def actor(critic):
    def step(model, batch):
        mean, log_std = model(batch[0]).chunk(2, 1)
        drawn = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        before = drawn.rsample()
        action = before.tanh()
        log_p = (drawn.log_prob(before) - torch.log(1 - action.square() + 1e-6)).sum(1)
        return (0.2 * log_p - critic(torch.cat([batch[0], action], 1))[:, 0]).mean()

    return step


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 3), nn.Linear(3, 4)
        self.codes = nn.Parameter(torch.randn(16, 3))

    def forward(self, x):
        z = self.encoder(x)
        code = self.codes[torch.cdist(z, self.codes).argmin(1)]
        return self.decoder(z + (code - z).detach()), z, code


def quantization(outputs, x):
    decoded, z, code = outputs
    return F.mse_loss(decoded, x) + F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())


@pytest.mark.parametrize(
    ("problem", "moves"),
    [
        (lambda: wc.Problem.from_step(network(), bootstrapped(0.9), BATCHES), True),
        (lambda: wc.Problem.from_step(network(), bootstrapped(0.9, network()), BATCHES), False),
        (lambda: wc.Problem(Quantized(), quantization, [(x, x) for x, *_ in BATCHES]), True),
        (lambda: wc.Problem(network(), nn.MSELoss(), [(x, torch.ones(32, 2)) for x, *_ in BATCHES]), False),
    ],
    ids=["its own values", "a target network", "its own codes", "numbers"],
)
def test_whether_goals_move(problem, moves):
    torch.manual_seed(0)
    assert moves_with_the_model(problem()) is moves


def severe(model, step, lr):
    problem = wc.Problem.from_step(model, step, BATCHES)
    diagnosis = wc.diagnose(problem, torch.optim.Adam(model.parameters(), lr))
    return [each.rule for each in diagnosis.findings if each.severity == "severe"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_values_of_its_own_may_rise(seed):
    torch.manual_seed(seed)
    assert severe(network(), bootstrapped(0.9), 1e-3) == []


@pytest.mark.slow
def test_values_that_grow_without_a_bound():
    torch.manual_seed(0)
    assert "diverging" in severe(network(), bootstrapped(1.5), 1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_an_actor_that_a_critic_judges(seed):
    torch.manual_seed(seed)
    critic = network(6, 1).requires_grad_(False)
    assert severe(network(4, 4), actor(critic), 1e-3) == []
