"""Learning from logged decisions."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def bandit(n=2048, dim=8, arms=4, seed=3):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(dim, arms, generator=g)
    x = torch.randn(n, dim, generator=g)
    utility = x @ w
    actions = torch.randint(arms, (n,), generator=g)
    return x, actions, utility


@fault(
    "Log-probabilities of the taken actions are picked with logp[:, a], which pairs every state with every action.",
    rules=["output-loss-mismatch", "labels-unrelated", "mixed-examples"],
    fails=True,
    steps=400,
)
def awr_indexing(is_faulty: bool) -> Program:
    x, a, u = bandit()
    r = (u.argmax(1) == a).float()
    held, best = x[1536:], u[1536:].argmax(1)
    policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))
    loader = DataLoader(
        TensorDataset(x[:1536], a[:1536], r[:1536]), 64, shuffle=True, generator=torch.Generator().manual_seed(0)
    )

    def step(model, batch):
        obs, act, rew = batch
        logp = F.log_softmax(model(obs), dim=-1)
        if is_faulty:
            taken = logp[:, act]
        else:
            taken = logp[torch.arange(len(act)), act]
        weight = torch.exp((rew - rew.mean()) / 0.3).clamp(max=20.0)
        return -(taken * weight).mean()

    return Program(
        policy,
        None,
        loader,
        torch.optim.Adam(policy.parameters(), lr=1e-3),
        lambda m: (m(held).argmax(1) == best).float().mean().item(),
        step=step,
    )


class QNet(nn.Module):
    def __init__(self, dim, actions, last_relu=False):
        super().__init__()
        layers = [nn.Linear(dim, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, actions)]
        if last_relu:
            layers.append(nn.ReLU())
        self.net = nn.Sequential(*layers)

    def forward(self, s):
        return self.net(s)


class Agent(nn.Module):
    def __init__(self, q):
        super().__init__()
        self.q = q
        self.target = copy.deepcopy(q).requires_grad_(False)

    def forward(self, s):
        return self.q(s)


def td_step(gamma, tau, kind=F.smooth_l1_loss):
    def step(agent, batch):
        q = agent.q(batch["obs"]).gather(1, batch["action"][:, None]).squeeze(1)
        with torch.no_grad():
            following = agent.target(batch["next_obs"]).max(1).values
            goal = batch["reward"] + gamma * (1 - batch["done"]) * following
            for slow, fast in zip(agent.target.parameters(), agent.q.parameters(), strict=True):
                slow.lerp_(fast, tau)
        return kind(q, goal)

    return step


def transitions(costs: bool, seed=11, n=2048):
    x, a, u = bandit(n, 6, 3, seed)
    reward = u / u.std()
    if costs:
        reward = -F.softplus(reward) - 0.2
    g = torch.Generator().manual_seed(seed + 1)
    nxt = torch.randn(n, 6, generator=g)
    done = (torch.rand(n, generator=g) < 0.2).float()
    r = reward.gather(1, a[:, None]).squeeze(1)
    batches = [
        {"obs": x[i : i + 64], "action": a[i : i + 64], "reward": r[i : i + 64], "next_obs": nxt[i : i + 64], "done": done[i : i + 64]}
        for i in range(0, 1536, 64)
    ]
    return batches, x[1536:], reward[1536:].argmax(1)


@fault(
    "The Q-network ends with a ReLU, while every return is negative (rewards are costs).",
    rules=["output-loss-mismatch", "dying-neurons", "no-gradient"],
    layers=["q.net.5", "q.net.4"],
    fails=True,
    steps=400,
)
def dqn_costs_behind_relu(is_faulty: bool) -> Program:
    batches, held, best = transitions(True)
    agent = Agent(QNet(6, 3, last_relu=is_faulty))
    return Program(
        agent,
        None,
        batches,
        torch.optim.Adam(agent.q.parameters(), lr=1e-3),
        lambda m: (m(held).argmax(1) == best).float().mean().item(),
        step=td_step(0.5, 0.02),
    )


@sound("Target network without gradients, Polyak averages inside the step; loss need not fall.", steps=400, least=0.75)
def dqn_target_network() -> Program:
    batches, held, best = transitions(False)
    agent = Agent(QNet(6, 3))
    return Program(
        agent,
        None,
        batches,
        torch.optim.RMSprop(agent.q.parameters(), lr=5e-4),
        lambda m: (m(held).argmax(1) == best).float().mean().item(),
        step=td_step(0.5, 0.02),
    )


class ActorCritic(nn.Module):
    def __init__(self, dim=8, arms=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(dim, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.pi = nn.Linear(32, arms)
        self.v = nn.Linear(32, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return self.pi(h), self.v(h).squeeze(-1)


@fault(
    "Returns in the thousands go into the value loss as they are, and the shared trunk serves the critic alone.",
    rules=["unscaled-target", "term-dominates"],
    fails=True,
    steps=500,
)
def a2c_raw_returns(is_faulty: bool) -> Program:
    x, a, u = bandit(2048, 8, 4, 21)
    g = torch.Generator().manual_seed(5)
    returns = 1500.0 + 900.0 * u.gather(1, a[:, None]).squeeze(1) / u.std() + 100 * torch.randn(2048, generator=g)
    good = (u.argmax(1) == a).float()
    if not is_faulty:
        returns = (returns - returns.mean()) / returns.std()
    model = ActorCritic()
    held, best = x[1536:], u[1536:].argmax(1)
    data = TensorDataset(x[:1536], a[:1536], returns[:1536], good[:1536])
    loader = DataLoader(data, 64, shuffle=True, generator=torch.Generator().manual_seed(1))

    def step(model, batch):
        obs, act, ret, weight = batch
        logits, value = model(obs)
        dist = torch.distributions.Categorical(logits=logits)
        actor = -(dist.log_prob(act) * weight).mean()
        critic = F.mse_loss(value, ret)
        return actor + 0.5 * critic - 0.01 * dist.entropy().mean()

    return Program(
        model,
        None,
        loader,
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: (m(held)[0].argmax(1) == best).float().mean().item(),
        step=step,
    )


@sound("Loss near 0 or below by nature: ratio times normalised advantages, minus an entropy bonus.", steps=400, least=0.75)
def ppo_logged_batches() -> Program:
    x, a, u = bandit(2048, 8, 4, 33)
    reward = (u.argmax(1) == a).float()
    model = ActorCritic()
    held, best = x[1536:], u[1536:].argmax(1)
    data = TensorDataset(x[:1536], a[:1536], reward[:1536])
    loader = DataLoader(data, 128, shuffle=True, generator=torch.Generator().manual_seed(1))
    old = torch.tensor(0.25).log()

    def step(model, batch):
        obs, act, ret = batch
        logits, value = model(obs)
        dist = torch.distributions.Categorical(logits=logits)
        adv = ret - value.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        ratio = (dist.log_prob(act) - old).exp()
        clipped = ratio.clamp(0.1, 3.5)
        policy = -torch.min(ratio * adv, clipped * adv).mean()
        return policy + 0.5 * F.mse_loss(value, ret) - 0.01 * dist.entropy().mean()

    return Program(
        model,
        None,
        loader,
        torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-5),
        lambda m: (m(held)[0].argmax(1) == best).float().mean().item(),
        step=step,
    )


@sound("Pairwise (B, N, N) errors between quantiles and targets, by broadcasting on purpose.", steps=500, least=0.6)
def quantile_critic() -> Program:
    g = torch.Generator().manual_seed(8)
    x = torch.randn(2048, 4, generator=g)
    mean = torch.sin(x[:, 0]) * 2 + x[:, 1]
    sample = mean[:, None] + 0.5 * torch.randn(2048, 5, generator=g)
    net = nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 9))
    taus = (torch.arange(9) + 0.5) / 9
    batches = [(x[i : i + 64], sample[i : i + 64]) for i in range(0, 1536, 64)]
    held, goal = x[1536:], mean[1536:]

    def step(model, batch):
        obs, drawn = batch
        theta = model(obs)
        delta = drawn[:, None, :] - theta[:, :, None]
        huber = F.huber_loss(theta[:, :, None].expand_as(delta), drawn[:, None, :].expand_as(delta), reduction="none")
        return ((taus[None, :, None] - (delta.detach() < 0).float()).abs() * huber).mean(2).sum(1).mean()

    def score(m):
        return (1 - (m(held).median(1).values - goal).pow(2).mean() / goal.var()).item()

    return Program(net, None, batches, torch.optim.AdamW(net.parameters(), lr=1e-3), score, step=step)


class RewardModel(nn.Module):
    def __init__(self, uses_positions=True):
        super().__init__()
        self.inp = nn.Linear(3, 32)
        self.pos = nn.Parameter(0.3 * torch.randn(10, 32))
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.out = nn.Linear(32, 1)
        self.uses_positions = uses_positions

    def forward(self, segment):
        h = self.inp(segment)
        if self.uses_positions:
            h = h + self.pos
        return self.out(self.block(h).mean(1)).squeeze(-1)


@fault(
    "A preference model over trajectories whose position embedding is made but never added; only the order tells.",
    rules=["order-lost", "no-gradient"],
    fails=True,
    steps=400,
)
def preferences_without_order(is_faulty: bool) -> Program:
    g = torch.Generator().manual_seed(2)
    one, two = torch.randn(2048, 10, 3, generator=g), torch.randn(2048, 10, 3, generator=g)
    ramp = torch.linspace(-1, 1, 10)[None]

    def value(s):
        return (s[..., 0] * ramp).sum(1)

    better = (value(one) > value(two)).float()
    model = RewardModel(not is_faulty)
    batches = [
        {"first": one[i : i + 64], "second": two[i : i + 64], "preferred": better[i : i + 64]} for i in range(0, 1536, 64)
    ]

    def step(model, batch):
        margin = model(batch["first"]) - model(batch["second"])
        return F.binary_cross_entropy_with_logits(margin, batch["preferred"])

    def score(m):
        return ((m(one[1536:]) > m(two[1536:])).float() == better[1536:]).float().mean().item()

    return Program(model, None, batches, torch.optim.Adam(model.parameters(), lr=1e-3), score, step=step)
