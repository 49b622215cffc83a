"""A bonus of the outputs alone, as of a policy's entropy, that keeps a term from being learned."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

import wellcond as wc

DRAW = torch.Generator().manual_seed(0)
STATES = torch.randn(1024, 6, generator=DRAW)
WORTH = STATES @ torch.randn(6, 3, generator=DRAW)
ACTIONS = torch.randint(0, 3, (1024,), generator=DRAW)
GAINS = WORTH.gather(1, ACTIONS[:, None])[:, 0] + 0.3 * torch.randn(1024, generator=DRAW)
BATCHES = list(zip(STATES.split(64), ACTIONS.split(64), GAINS.split(64), strict=True))


def policy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))


def findings(model: nn.Module, factor: float) -> list[wc.Finding]:
    def step(model: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        states, actions, gains = batch
        log_odds = F.log_softmax(model(states), 1)
        odds = log_odds.exp()
        entropy = -(odds * log_odds).sum(1).mean()
        gain = (odds.gather(1, actions[:, None])[:, 0] * (gains - gains.mean())).mean()
        return -gain - factor * entropy

    problem = wc.Problem.from_step(model, step, BATCHES)
    return list(wc.diagnose(problem, Adam(model.parameters(), 3e-3), select=["term-dominates"]).findings)


@pytest.mark.slow
def test_a_bonus_for_entropy_that_outweighs_the_gain() -> None:
    (finding,) = findings(policy(), 20.0)
    assert finding.severity == "severe"
    even = 20 * torch.tensor(3.0).log().item()
    assert finding.evidence["bonus after"] == pytest.approx(-even, rel=0.01)
    assert finding.evidence["term alone"] < finding.evidence["term with all"] - 0.2


@pytest.mark.slow
def test_a_small_bonus_for_entropy_is_usual() -> None:
    assert findings(policy(), 0.02) == []


@pytest.mark.slow
def test_a_likelihood_below_zero_that_has_been_learned_is_no_bonus() -> None:
    """A density above one next to a penalty of the weights, which falls by itself and not next to it."""
    torch.manual_seed(0)
    x = torch.randn(512, 4)
    y = x.sum(1, keepdim=True) + 1e-3 * torch.randn(512, 1)
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.zero_()

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        likelihood = -torch.distributions.Normal(model(batch[0]), 1e-3).log_prob(batch[1]).mean()
        return likelihood + 1e-3 * sum(p.square().sum() for p in model.parameters())

    problem = wc.Problem.from_step(model, step, list(zip(x.split(64), y.split(64), strict=True)))
    diagnosis = wc.diagnose(problem, Adam(model.parameters(), 1e-6), select=["term-dominates"])
    assert diagnosis.findings == ()
