"""Policies whose rewarded actions become less likely, and sound ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal
from torch.nn import functional as F

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.probes.chosen import meaning
from wellcond.diagnosis.rules.output_loss_mismatch.sign import avoids_rewards

G = torch.Generator().manual_seed(0)
STATES = torch.randn(128, 6, generator=G)
VALUES = STATES @ torch.randn(6, 4, generator=G)
BEST = VALUES.argmax(1)
ACTIONS = torch.randint(4, (128,), generator=G)
ADVANTAGES = torch.randn(128, generator=G)
Step = Callable[[nn.Module, Any], Tensor]


def severities(step: Step, batch: Any, model: nn.Module | None = None, **setting: Any) -> list[str]:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
    problem = wc.Problem.from_step(model, step, [batch])
    optimizer = torch.optim.Adam(model.parameters(), **setting)
    return [each.severity for each in avoids_rewards(Evidence(problem, optimizer, behavior=behavior(problem)))]


def of_drawn(loss: Callable[[Categorical, Tensor, Tensor], Tensor]) -> list[str]:
    def step(policy: nn.Module, batch: Any) -> Tensor:
        odds = Categorical(logits=policy(batch[0]))
        return loss(odds, odds.sample(), batch[1])

    return severities(step, (STATES, BEST))


def reward(action: Tensor, best: Tensor) -> Tensor:
    right = (action == best).float()
    return right - right.mean()


def cost(action: Tensor, trap: Tensor) -> Tensor:
    return (action == trap).float()


def test_a_policy_without_its_minus() -> None:
    assert of_drawn(lambda odds, a, best: (odds.log_prob(a) * reward(a, best)).mean()) == ["warning"]
    assert of_drawn(lambda odds, a, best: (odds.log_prob(a) * (best == a)).mean() - 0.01 * odds.entropy().mean()) == [
        "warning"
    ]


@pytest.mark.parametrize(
    "loss",
    [
        lambda odds, a, best: -(odds.log_prob(a) * reward(a, best)).mean(),
        lambda odds, a, best: (-odds.log_prob(a) * (a == best).float()).mean() - 0.1 * odds.entropy().mean(),
        lambda odds, a, best: (odds.log_prob(a) * (a != best).float()).mean(),
        lambda odds, a, best: (odds.log_prob(a) * cost(a, best)).mean(),
        lambda odds, a, best: -odds.log_prob(best).mean(),
    ],
    ids=["rewards", "a bonus", "not right", "costs", "imitation"],
)
def test_sound_policies(loss: Callable[[Categorical, Tensor, Tensor], Tensor]) -> None:
    assert of_drawn(loss) == []


def by_values(sign: float, policy: nn.Module, batch: Any) -> Tensor:
    odds = Categorical(logits=policy(batch[0]))
    action = odds.sample()
    reward = batch[1].gather(1, action[:, None])[:, 0]
    return sign * (odds.log_prob(action) * (reward - reward.mean())).mean() - 0.01 * odds.entropy().mean()


def by_entry(sign: float, policy: nn.Module, batch: Any) -> Tensor:
    picked = policy(batch["obs"]).log_softmax(1).gather(1, batch["act"][:, None]).squeeze(1)
    return sign * (picked * batch["advantages"]).mean()


def by_cross_entropy(sign: float, policy: nn.Module, batch: Any) -> Tensor:
    return -sign * (F.cross_entropy(policy(batch["obs"]), batch["act"], reduction="none") * batch["advantages"]).mean()


def by_clipped_ratio(sign: float, policy: nn.Module, batch: Any) -> Tensor:
    new = Categorical(logits=policy(batch["obs"])).log_prob(batch["act"])
    ratio, advantages = (new - new.detach()).exp(), batch["advantages"]
    return sign * torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()


def by_continuous_action(sign: float, policy: nn.Module, batch: Any) -> Tensor:
    odds = Independent(Normal(policy(batch[0]), 0.5), 1)
    action = odds.sample()
    payoff = -(action - batch[1]).square().sum(1)
    return sign * (odds.log_prob(action) * (payoff - payoff.mean())).mean()


def by_episode(sign: float, policy: nn.Module, batch: Any) -> Tensor:
    state, logs, rewards = batch[0], [], []
    for _ in range(5):
        odds = Categorical(logits=policy(state))
        action = odds.sample()
        logs.append(odds.log_prob(action))
        rewards.append(batch[1].gather(1, action[:, None])[:, 0])
        state = state + 0.1 * F.one_hot(action, 6)
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0)
    advantage = returns - returns.mean(1, keepdim=True)
    return sign * (torch.stack(logs) * advantage).sum(0).mean()


def by_code(sign: float, policy: nn.Module, batch: Any) -> Tensor:
    log_odds = policy(batch["obs"]).log_softmax(1)
    return sign * ((log_odds * F.one_hot(batch["act"], 4)).sum(1) * batch["advantages"]).mean()


def by_expectation(sign: float, policy: nn.Module, batch: Any) -> Tensor:
    payoffs = batch[1]
    return sign * (policy(batch[0]).softmax(1) * payoffs).sum(1).mean()


def by_negative_rewards(sign: float, policy: nn.Module, batch: Any) -> Tensor:
    odds = Categorical(logits=policy(batch[0]))
    action = odds.sample()
    rewards = -batch[1].gather(1, action[:, None])[:, 0].sigmoid()
    return sign * (odds.log_prob(action) * rewards).mean()


ENTRIES = {"obs": STATES, "act": ACTIONS, "advantages": ADVANTAGES}
STEPS = [
    (by_values, (STATES, VALUES)),
    (by_entry, ENTRIES),
    (by_cross_entropy, ENTRIES),
    (by_clipped_ratio, ENTRIES),
    (by_continuous_action, (STATES, VALUES)),
    (by_episode, (STATES, VALUES)),
    (by_code, ENTRIES),
    (by_expectation, (STATES, VALUES)),
    (by_negative_rewards, (STATES, VALUES)),
]


@pytest.mark.parametrize(("step", "batch"), STEPS, ids=[step.__name__ for step, _ in STEPS])
def test_the_sign_of_what_the_script_calls_a_reward(step: Any, batch: Any) -> None:
    assert severities(lambda policy, batch: step(1.0, policy, batch), batch) == ["warning"]
    assert severities(lambda policy, batch: step(-1.0, policy, batch), batch) == []
    assert severities(lambda policy, batch: step(1.0, policy, batch), batch, maximize=True) == []


def regrets(policy: nn.Module, batch: Any) -> Tensor:
    odds = Categorical(logits=policy(batch[0]))
    action = odds.sample()
    reward = batch[1].gather(1, action[:, None])[:, 0]
    regret = batch[1].amax(1) - reward
    return (odds.log_prob(action) * (regret - regret.mean())).mean()


def pays_late(policy: nn.Module, batch: Any) -> Tensor:
    """One episode, whose rewards rise with time while what is to come, by which actions are judged, falls."""
    odds = Categorical(logits=policy(batch[0]))
    action = odds.sample()
    rewards = torch.arange(len(action)) / len(action)
    G = rewards.flip(0).cumsum(0).flip(0)
    return -(odds.log_prob(action) * (G - G.mean()) / G.std()).mean()


def pays_late_by_loop(policy: nn.Module, batch: Any) -> Tensor:
    logs, rewards = [], []
    for k, state in enumerate(batch[0][:24]):
        odds = Categorical(logits=policy(state))
        logs.append(odds.log_prob(odds.sample()))
        rewards.append(-0.1 * k)
    ahead, loss = 0.0, torch.zeros(())
    for log, now in zip(reversed(logs), reversed(rewards), strict=True):
        ahead = now + ahead
        loss = loss - log * ahead
    return loss


def prefers(policy: nn.Module, batch: Any) -> Tensor:
    """Raises what was chosen and lowers what was not, by rewards that the policy itself gives them."""
    state, chosen, rejected = batch
    own, others = policy(state).log_softmax(1), reference(state).log_softmax(1)
    chosen_rewards, rejected_rewards = (
        own.gather(1, each[:, None])[:, 0] - others.detach().gather(1, each[:, None])[:, 0]
        for each in (chosen, rejected)
    )
    logged = {"rewards/chosen": chosen_rewards.detach(), "rewards/rejected": rejected_rewards.detach()}
    assert len(logged) == 2
    return -F.logsigmoid(chosen_rewards - rejected_rewards).mean()


def focal(model: nn.Module, batch: Any) -> Tensor:
    picked = model(batch[0]).log_softmax(1).gather(1, batch[1][:, None])[:, 0]
    score = picked.detach().exp()
    return -((1 - score) ** 2 * picked).mean()


def learns_values(model: nn.Module, batch: Any) -> Tensor:
    reward = batch["advantages"]
    return F.mse_loss(model(batch["obs"]).gather(1, batch["act"][:, None])[:, 0], reward)


def likelihood_of_returns(model: nn.Module, batch: Any) -> Tensor:
    mean, log_deviation, *_ = model(batch[0]).unbind(1)
    returns = batch[1][:, 0]
    return -Normal(mean, log_deviation.exp()).log_prob(returns).mean()


reference = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))


@pytest.mark.parametrize(
    ("step", "batch"),
    [
        (regrets, (STATES, VALUES)),
        (pays_late, (STATES, VALUES)),
        (pays_late_by_loop, (STATES, VALUES)),
        (prefers, (STATES, BEST, VALUES.argmin(1))),
        (focal, (STATES, BEST)),
        (learns_values, ENTRIES),
        (likelihood_of_returns, (STATES, VALUES)),
    ],
    ids=["regrets", "late", "late, by a loop", "a preference", "focal", "values", "likelihood"],
)
def test_sound_steps_with_the_same_words(step: Step, batch: Any) -> None:
    assert severities(step, batch, copy.deepcopy(reference)) == []


def test_parts_of_names() -> None:
    assert [meaning(name) for name in ("reward", "adv_norm", "totalReward", "discounted_returns", "scores")] == [
        "rewards"
    ] * 5
    assert [meaning(name) for name in ("cost", "reward_loss", "neg_adv", "regrets")] == ["costs"] * 4
    assert [meaning(name) for name in ("log_prob", "error_rate", "anomaly_score", "advice")] == ["", "costs", "", ""]
