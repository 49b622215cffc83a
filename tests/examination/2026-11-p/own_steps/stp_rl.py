"""Reinforcement learning: bandits, Q-learning, actor-critic."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical, Normal

from program import Program, fault, sound
from stp_tools import accuracy, loader, r2, seeded


def world(n=4096, dim=8, actions=4, seed=3, hidden=False):
    g = seeded(seed)
    s = torch.randn(n, dim, generator=g)
    w = torch.randn(dim, actions, generator=g)
    if hidden:
        v = torch.randn(dim, 12, generator=g)
        u = torch.randn(12, actions, generator=g)
        q = torch.relu(s @ v) @ u
        q = (q - q.mean(0)) / q.std()
    else:
        q = s @ w / dim**0.5
    return s, q


class Policy(nn.Module):
    def __init__(self, obs_dim, n_actions, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs_dim, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, n_actions)

    def forward(self, obs):
        return self.head(self.body(obs))


@fault(
    "The policy gradient is descended without its minus sign: what was rewarded becomes less likely.",
    rules=("output-loss-mismatch",),
    fails=True,
    steps=300,
)
def stp_reinforce_sign(is_faulty):
    s, q = world()
    policy = Policy(8, 4)

    def step(model, batch):
        obs, values = batch
        dist = Categorical(logits=model(obs))
        action = dist.sample()
        reward = values.gather(1, action[:, None]).squeeze(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        log_prob = dist.log_prob(action)
        return (log_prob * advantage).mean() if is_faulty else -(log_prob * advantage).mean()

    return Program(
        policy, None, loader(s[:3072], q[:3072], batch_size=128), torch.optim.Adam(policy.parameters(), lr=3e-3),
        lambda m: accuracy(m(s[3072:]), q[3072:].argmax(1)), step=step,
    )


@fault(
    "Q-values of shape (B, 1) from gather are compared with targets of shape (B,): the difference is a (B, B) matrix.",
    rules=("output-loss-mismatch", "mixed-examples"),
    fails=False,
    steps=400,
)
def stp_dqn_broadcast(is_faulty):
    s, q = world(seed=4, hidden=True)
    g = seeded(5)
    a = torch.randint(4, (4096,), generator=g)
    r = q.gather(1, a[:, None]).squeeze(1) + 0.05 * torch.randn(4096, generator=g)
    s2 = s[torch.randperm(4096, generator=g)]
    done = (torch.rand(4096, generator=g) < 0.2).float()
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    gamma = 0.5

    def step(model, batch):
        obs, action, reward, obs2, end = batch
        q_sa = model(obs).gather(1, action.unsqueeze(1))
        if not is_faulty:
            q_sa = q_sa.squeeze(1)
        with torch.no_grad():
            target = reward + gamma * (1 - end) * model(obs2).max(1).values
        import warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return F.smooth_l1_loss(q_sa, target)

    return Program(
        net, None, loader(s[:3584], a[:3584], r[:3584], s2[:3584], done[:3584]),
        torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: (accuracy(m(s[3584:]), q[3584:].argmax(1)) - 0.25) / 0.75, step=step,
    )


class ActorCritic(nn.Module):
    def __init__(self, obs=8, actions=4, hidden=24):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.pi = nn.Linear(hidden, actions)
        self.v = nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.pi(h), self.v(h).squeeze(-1)


@fault(
    "Returns of several hundred go unscaled into the value loss, whose gradient in the shared trunk drowns the policy's.",
    rules=("term-dominates", "unscaled-target"),
    fails=False,
    steps=400,
)
def stp_actor_critic_raw_returns(is_faulty):
    s, q = world(n=6144, seed=9)
    g = seeded(10)
    level = 200 * torch.sin(2 * s[:, :1] + s[:, 1:2] * s[:, 2:3]) + 300
    ret = level + 40 * q
    ac = ActorCritic()
    scale = 1.0 if is_faulty else 200.0

    def step(model, batch):
        obs, returns = batch
        logits, value = model(obs)
        dist = Categorical(logits=logits)
        act = dist.sample()
        R = returns.gather(1, act[:, None]).squeeze(1) / scale
        # several rollouts per state give the baseline of the policy
        base = returns.mean(1) / scale
        adv = R - base
        adv = adv / (adv.std() + 1e-8)
        pi_loss = -(dist.log_prob(act) * adv).mean()
        v_loss = F.mse_loss(value, R)
        return pi_loss + 0.5 * v_loss - 0.01 * dist.entropy().mean()

    opt = torch.optim.Adam(ac.parameters(), lr=2e-3)
    return Program(
        ac, None, loader(s[:5120], ret[:5120], batch_size=128), opt,
        lambda m: (accuracy(m(s[5120:])[0], q[5120:].argmax(1)) - 0.25) / 0.75, step=step,
    )


@fault(
    "The critic ends in a ReLU, but all returns are costs, below zero.",
    rules=("output-loss-mismatch", "dying-neurons", "no-gradient"),
    layers=("net.4", "net.5"),
    fails=True,
    steps=400,
)
def stp_critic_relu_end(is_faulty):
    g = seeded(21)
    s = torch.rand(3000, 3, generator=g) * 2 - 1
    cost = -(s[:, 0] ** 2 + 0.4 * s[:, 1] ** 2 + 0.3 * (s[:, 0] * s[:, 2]).abs() + 0.2)
    cost = cost[:, None]

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            layers = [nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1)]
            if is_faulty:
                layers.append(nn.ReLU())
            self.net = nn.Sequential(*layers)

        def forward(self, state):
            return self.net(state)

    critic = Critic()
    return Program(
        critic, nn.MSELoss(), loader(s[:2500], cost[:2500]), torch.optim.Adam(critic.parameters(), lr=2e-3),
        lambda m: max(-1.0, r2(m(s[2500:]), cost[2500:])),
    )


# ------------------------------------------------------------------ sound


@sound("The loss of REINFORCE hovers around zero and does not fall, while the policy improves.", steps=300, least=0.7)
def stp_reinforce_baseline():
    s, q = world(seed=30)
    policy = Policy(8, 4)

    def step(model, batch):
        obs, values = batch
        dist = Categorical(logits=model(obs))
        action = dist.sample()
        reward = values.gather(1, action[:, None]).squeeze(1)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        return -(dist.log_prob(action) * advantage).mean()

    return Program(
        policy, None, loader(s[:3072], q[:3072], batch_size=128), torch.optim.Adam(policy.parameters(), lr=3e-3),
        lambda m: accuracy(m(s[3072:]), q[3072:].argmax(1)), step=step,
    )


class DoubleQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        return self.online(x)

    @torch.no_grad()
    def follow(self, tau=0.02):
        for t, o in zip(self.target.parameters(), self.online.parameters()):
            t.lerp_(o, tau)


@sound("Double DQN: a frozen target net inside the model follows slowly; targets move.", steps=500, least=0.6)
def stp_double_dqn():
    s, q = world(seed=4, hidden=True)
    g = seeded(5)
    a = torch.randint(4, (4096,), generator=g)
    r = q.gather(1, a[:, None]).squeeze(1)
    s2 = s[torch.randperm(4096, generator=g)]
    done = (torch.rand(4096, generator=g) < 0.2).float()
    agent = DoubleQ()

    def step(model, batch):
        obs, action, reward, obs2, end = batch
        if model.training:
            model.follow()
        q_sa = model.online(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = model.online(obs2).argmax(1, keepdim=True)
            y = reward + 0.6 * (1 - end) * model.target(obs2).gather(1, best).squeeze(1)
        return F.smooth_l1_loss(q_sa, y)

    return Program(
        agent, None, loader(s[:3584], a[:3584], r[:3584], s2[:3584], done[:3584]),
        torch.optim.Adam(agent.online.parameters(), lr=2e-3),
        lambda m: accuracy(m(s[3584:]), q[3584:].argmax(1)), step=step,
    )


@sound("PPO with clipped ratios, entropy bonus and small value term, examined half trained.", trained=150, steps=400, least=0.65)
def stp_ppo_half():
    s, q = world(n=6144, seed=9)
    ac = ActorCritic(hidden=32)

    def step(model, batch):
        obs, rewards = batch
        logits, value = model(obs)
        with torch.no_grad():
            old = Categorical(logits=logits + 0.05 * torch.randn_like(logits))
            act = old.sample()
            old_lp = old.log_prob(act)
        ret = rewards.gather(1, act[:, None]).squeeze(1)
        adv = ret - value.detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        dist = Categorical(logits=logits)
        ratio = (dist.log_prob(act) - old_lp).exp()
        surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        return -surrogate.mean() + 0.5 * F.mse_loss(value, ret) - 0.01 * dist.entropy().mean()

    return Program(
        ac, None, loader(s[:5120], q[:5120], batch_size=128), torch.optim.Adam(ac.parameters(), lr=2e-3),
        lambda m: accuracy(m(s[5120:])[0], q[5120:].argmax(1)), step=step,
    )


class TanhGaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.mu = nn.Linear(64, 2)
        self.log_std = nn.Parameter(torch.full((2,), -1.0))

    def forward(self, s):
        h = self.net(s)
        return self.mu(h), self.log_std.expand(s.shape[0], 2)


@sound("A squashed Gaussian policy against a known reward, with reparameterised noise and an entropy term; the log std is a "
       "bare parameter that shrinks.", steps=300, least=0.8)
def stp_squashed_policy():
    g = seeded(33)
    s = torch.randn(3000, 6, generator=g)
    best = torch.tanh(0.7 * s[:, :2] + 0.4 * s[:, 2:4] * s[:, 4:])
    actor = TanhGaussian()

    def step(model, batch):
        obs, wanted = batch
        mu, log_std = model(obs)
        dist = Normal(mu, log_std.exp())
        raw = dist.rsample()
        act = torch.tanh(raw)
        log_prob = (dist.log_prob(raw) - torch.log(1 - act**2 + 1e-6)).sum(-1)
        reward = -((act - wanted) ** 2).sum(-1)
        return (0.02 * log_prob - reward).mean()

    return Program(
        actor, None, loader(s[:2500], best[:2500]), torch.optim.Adam(actor.parameters(), lr=1e-3),
        lambda m: r2(torch.tanh(m(s[2500:])[0]), best[2500:]), step=step,
    )


@sound("An ordinary critic regressing discounted costs with Huber loss.", steps=400, least=0.85)
def stp_critic():
    g = seeded(21)
    s = torch.rand(3000, 3, generator=g) * 2 - 1
    cost = -(s[:, 0] ** 2 + 0.4 * s[:, 1] ** 2 + 0.3 * (s[:, 0] * s[:, 2]).abs() + 0.2)[:, None]
    critic = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    return Program(
        critic, nn.SmoothL1Loss(), loader(s[:2500], cost[:2500]), torch.optim.Adam(critic.parameters(), lr=2e-3),
        lambda m: r2(m(s[2500:]), cost[2500:]),
    )
