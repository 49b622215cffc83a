"""Policies whose right actions become less likely, and sound ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.rules.output_loss_mismatch.sign import avoids_rewards

G = torch.Generator().manual_seed(0)
STATES = torch.randn(128, 6, generator=G)
BEST = (STATES @ torch.randn(6, 4, generator=G)).argmax(1)
Loss = Callable[[Categorical, Tensor, Tensor], Tensor]


def found(loss: Loss) -> list[str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))

    def step(policy: nn.Module, batch: Any) -> Tensor:
        odds = Categorical(logits=policy(batch[0]))
        return loss(odds, odds.sample(), batch[1])

    problem = wc.Problem.from_step(model, step, [(STATES, BEST)])
    return [each.severity for each in avoids_rewards(Evidence(problem, None, behavior=behavior(problem)))]


def reward(action: Tensor, best: Tensor) -> Tensor:
    right = (action == best).float()
    return right - right.mean()


def test_a_policy_without_its_minus() -> None:
    assert found(lambda odds, a, best: (odds.log_prob(a) * reward(a, best)).mean()) == ["warning"]
    assert found(lambda odds, a, best: (odds.log_prob(a) * (best == a)).mean() - 0.01 * odds.entropy().mean()) == [
        "warning"
    ]


@pytest.mark.parametrize(
    "loss",
    [
        lambda odds, a, best: -(odds.log_prob(a) * reward(a, best)).mean(),
        lambda odds, a, best: (-odds.log_prob(a) * (a == best).float()).mean() - 0.1 * odds.entropy().mean(),
        lambda odds, a, best: (odds.log_prob(a) * (a != best).float()).mean(),
        lambda odds, a, best: -odds.log_prob(best).mean(),
    ],
    ids=["rewards", "a bonus", "costs", "imitation"],
)
def test_sound_policies(loss: Loss) -> None:
    assert found(loss) == []
