"""Reinforcement learning, with mistakes."""
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal

from osr_base import accuracy, bandit, ema, gen, loader, mlp, r2, room
from program import Program, fault


class Twin(nn.Module):
    def __init__(self, online):
        super().__init__()
        self.online = online
        self.target = copy.deepcopy(online).requires_grad_(False)

    def forward(self, x):
        return self.online(x)


def dqn_step(model, batch, gamma=0.8):
    s, a, r, t = batch
    with torch.no_grad():
        goal = r + gamma * model.target(t).max(1).values
    loss = F.smooth_l1_loss(model.online(s).gather(1, a[:, None])[:, 0], goal)
    ema(model.target, model.online, 0.02)
    return loss


@fault("Q-network that ends in a ReLU though all rewards are negative", rules=["output-loss-mismatch", "dying-neurons"],
       layers=[], fails=False, steps=500)
def osr_dqn_relu_out(is_faulty):
    s, a, r, t, score = room(11)
    net = mlp(2, 64, 64, 4)
    if is_faulty:
        net.append(nn.ReLU())
    model = Twin(net)
    return Program(model, None, loader(s, a, r, t), torch.optim.Adam(model.online.parameters(), 3e-3),
                   lambda m: score(m), step=dqn_step)


@fault("Q-values regressed on returns of thousands", rules=["unscaled-target"], layers=[], fails=True, steps=400)
def osr_big_returns(is_faulty):
    x, v, xt, vt = bandit(21)
    a = torch.randint(4, (len(x),), generator=gen(3))
    r = 3000 + 400 * v.gather(1, a[:, None])[:, 0]
    if not is_faulty:
        r = (r - 3000) / 400
    model = mlp(8, 64, 64, 4)

    def step(m, batch):
        s, act, ret = batch
        return F.mse_loss(m(s).gather(1, act[:, None]).squeeze(1), ret)

    return Program(model, None, loader(x, a, r), torch.optim.Adam(model.parameters(), 1e-3),
                   lambda m: accuracy(m(xt), vt.argmax(1)), step=step)


def reinforce(m, batch, bonus=0.0):
    s, best = batch
    dist = Categorical(logits=m(s))
    a = dist.sample()
    r = (a == best).float()
    return -(dist.log_prob(a) * (r - r.mean())).mean() - bonus * dist.entropy().mean()


@fault("policy ends in a softmax, and its outputs are taken for logits", rules=["output-loss-mismatch"], layers=[],
       fails=False, steps=500)
def osr_policy_softmax_twice(is_faulty):
    x, v, xt, vt = bandit(22)
    model = mlp(8, 64, 64, 4)
    if is_faulty:
        model.append(nn.Softmax(-1))
    return Program(model, None, loader(x, v.argmax(1)), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: Categorical(logits=m(xt)).probs.gather(1, vt.argmax(1)[:, None]).mean().item(), step=reinforce)


@fault("entropy bonus of 3 in a policy gradient", rules=["term-dominates"], layers=[], fails=True, steps=400)
def osr_entropy_bonus(is_faulty):
    x, v, xt, vt = bandit(23)
    model = mlp(8, 64, 64, 4, act=nn.Tanh)
    bonus = 3.0 if is_faulty else 0.003
    return Program(model, None, loader(x, v.argmax(1)), torch.optim.Adam(model.parameters(), 5e-3),
                   lambda m: m(xt).softmax(1).gather(1, vt.argmax(1)[:, None]).mean().item(),
                   step=lambda m, b: reinforce(m, b, bonus))


class ActorCritic(nn.Module):
    def __init__(self, d=8, k=4, width=64):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, width), nn.Tanh())
        self.actor = mlp(width, width, k)
        self.critic = mlp(width, width, 1)

    def forward(self, x):
        h = self.body(x)
        return self.actor(h), self.critic(h)


@fault("log-probabilities of the actor taken without a graph", rules=["no-gradient"], layers=["actor"], fails=True, steps=400)
def osr_actor_detached(is_faulty):
    x, v, xt, vt = bandit(24)
    model = ActorCritic()

    def step(m, batch):
        s, best = batch
        logits, value = m(s)
        if is_faulty:
            logits = logits.detach()
        dist = Categorical(logits=logits)
        a = dist.sample()
        r = (a == best).float()
        adv = r - value.squeeze(1)
        return -(dist.log_prob(a) * adv.detach()).mean() + 0.5 * adv.pow(2).mean()

    return Program(model, None, loader(x, v.argmax(1)), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: accuracy(m(xt)[0], vt.argmax(1)), step=step)


@fault("values of shape (n, 1) against returns of shape (n,)", rules=["output-loss-mismatch"], layers=[], fails=True,
       steps=300)
def osr_value_broadcast(is_faulty):
    x, v, xt, vt = bandit(25)
    y, yt = v.mean(1), vt.mean(1)
    model = mlp(8, 64, 64, 1, act=nn.ELU)

    def step(m, batch):
        s, ret = batch
        value = m(s)
        if not is_faulty:
            value = value.squeeze(-1)
        return ((value - ret) ** 2).mean()

    return Program(model, None, loader(x, y, n=32), torch.optim.AdamW(model.parameters(), 2e-3),
                   lambda m: r2(m(xt)[:, 0], yt), step=step)


class SquashedActor(nn.Module):
    def __init__(self, bound):
        super().__init__()
        self.net = mlp(6, 64, 64, 2)
        self.bound = bound

    def forward(self, x):
        return self.bound * torch.tanh(self.net(x))


@fault("actor squashed into (-1, 1) though actions reach ±3", rules=["output-loss-mismatch", "unscaled-target"], layers=[], fails=False,
       steps=400)
def osr_actor_range(is_faulty):
    g = gen(31)
    x = torch.randn(2500, 6, generator=g)
    y = 3 * torch.tanh(1.5 * (torch.sin(x @ torch.randn(6, 2, generator=g)) + x @ torch.randn(6, 2, generator=g) / 3))
    model = SquashedActor(1.0 if is_faulty else 3.2)
    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: r2(m(x[2000:]), y[2000:]),
                   step=lambda m, b: F.mse_loss(m(b[0]), b[1]))


@fault("expert's states are shuffled, their actions are not", rules=["labels-unrelated"], layers=[], fails=True, steps=400)
def osr_cloning_mispaired(is_faulty):
    x, v, xt, vt = bandit(26, k=5)
    a = v.argmax(1)
    p = torch.randperm(len(x), generator=gen(1))
    x = x[p]
    if not is_faulty:
        a = a[p]

    class Gaussianless(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(8, 64), nn.LayerNorm(64), nn.GELU())
            self.policy = nn.Linear(64, 5)

        def forward(self, s):
            return self.policy(self.encoder(s))

    model = Gaussianless()

    def step(m, b):
        dist = Categorical(logits=m(b[0]))
        return -dist.log_prob(b[1]).mean() - 0.001 * dist.entropy().mean()

    return Program(model, None, loader(x, a), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: accuracy(m(xt), vt.argmax(1)), step=step)


@fault("offline data come action by action, unshuffled", rules=["sorted-batches"], layers=[], fails=False, steps=330)
def osr_cloning_sorted(is_faulty):
    x, v, xt, vt = bandit(27, k=5, n=2112)
    order = v.argmax(1).argsort()
    x, a = x[order], v.argmax(1)[order]
    model = mlp(8, 64, 5)

    def step(m, b):
        return -Categorical(logits=m(b[0])).log_prob(b[1]).mean()

    return Program(model, None, loader(x, a, n=64, shuffle=not is_faulty), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
                   lambda m: accuracy(m(xt), vt.argmax(1)), step=step)


@fault("policy head with orthogonal weights of gain 100 instead of 0.01", rules=["bad-initialisation", "saturated-output"],
       layers=["head"], fails=False, steps=400)
def osr_policy_gain(is_faulty):
    x, v, xt, vt = bandit(28)

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.torso = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
            self.head = nn.Linear(64, 4)
            for layer in self.torso:
                if isinstance(layer, nn.Linear):
                    nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.orthogonal_(self.head.weight, 100.0 if is_faulty else 0.01)

        def forward(self, s):
            return self.head(self.torso(s))

    model = Policy()
    return Program(model, None, loader(x, v.argmax(1)), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: accuracy(m(xt), vt.argmax(1)), step=reinforce)


@fault("conservative penalty of 100 pushes all Q-values but the logged one down", rules=["term-dominates"], layers=[],
       fails=True, steps=400)
def osr_cql_weight(is_faulty):
    x, v, xt, vt = bandit(29)
    g = gen(4)
    a = torch.where(torch.rand(len(x), generator=g) < 0.5, v.argmin(1), torch.randint(4, (len(x),), generator=g))
    r = v.gather(1, a[:, None])[:, 0]
    weight = 100.0 if is_faulty else 0.02
    model = mlp(8, 64, 64, 4)

    def step(m, b):
        s, act, ret = b
        q = m(s)
        taken = q.gather(1, act[:, None])[:, 0]
        return F.mse_loss(taken, ret) + weight * (q.logsumexp(1) - taken).mean()

    return Program(model, None, loader(x, a, r), torch.optim.Adam(model.parameters(), 2e-3),
                   lambda m: accuracy(m(xt), vt.argmax(1)), step=step)


@fault("dueling network whose activations were forgotten", rules=["no-nonlinearity"], layers=[], fails=True, steps=500)
def osr_dueling_linear(is_faulty):
    g = gen(33)
    x = torch.rand(2500, 4, generator=g) * 2 - 1
    q = torch.stack([torch.cos(3 * x[:, 0]), x[:, 1] * x[:, 2] * 3, (2 * x[:, 3]).pow(2) - 1, x[:, 0].abs() * 2 - 1], 1)
    a = torch.randint(4, (2500,), generator=g)

    class Dueling(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(4, 64)
            self.fc2 = nn.Linear(64, 64)
            self.value = nn.Linear(64, 1)
            self.advantage = nn.Linear(64, 4)
            self.act = nn.Identity() if is_faulty else nn.ReLU()

        def forward(self, s):
            h = self.act(self.fc2(self.act(self.fc1(s))))
            adv = self.advantage(h)
            return self.value(h) + adv - adv.mean(1, keepdim=True)

    model = Dueling()

    def step(m, b):
        return F.smooth_l1_loss(m(b[0]).gather(1, b[1][:, None])[:, 0], b[2])

    return Program(model, None, loader(x[:2000], a[:2000], q[:2000].gather(1, a[:2000, None])[:, 0]),
                   torch.optim.RMSprop(model.parameters(), 1e-3), lambda m: r2(m(x[2000:]), q[2000:]), step=step)


@fault("Adam with an ε of 3", rules=["optimizer-setting", "learning-rate-too-low"], layers=[], fails=True, steps=400)
def osr_value_eps(is_faulty):
    x, v, xt, vt = bandit(30)
    y, yt = v[:, :1], vt[:, :1]

    class Ensemble(nn.Module):
        def __init__(self):
            super().__init__()
            self.critics = nn.ModuleList(mlp(8, 64, 1) for _ in range(2))

        def forward(self, s):
            return torch.stack([c(s) for c in self.critics])

    model = Ensemble()
    return Program(model, None, loader(x, y), torch.optim.Adam(model.parameters(), 3e-3, eps=3.0 if is_faulty else 1e-5),
                   lambda m: r2(m(xt).mean(0), yt), step=lambda m, b: (m(b[0]) - b[1]).abs().mean())


@fault("critic of a team reads absent agents instead of present ones", rules=["wrong-mask"], layers=[], fails=True, steps=500)
def osr_team_mask(is_faulty):
    g = gen(35)
    n, k = 2500, 6
    x = torch.randn(n, k, 4, generator=g)
    count = torch.randint(1, k, (n,), generator=g)
    there = torch.arange(k)[None] < count[:, None]
    x = x * there[..., None]
    y = ((torch.tanh(x[..., 0] * 2) + x[..., 1].abs()) * there).sum(1) / count

    class Critic(nn.Module):
        def __init__(self):
            super().__init__()
            self.agent = mlp(4, 48, 48)
            self.out = mlp(48, 48, 1)

        def forward(self, s, mask):
            hidden = mask if is_faulty else ~mask
            h = self.agent(s).masked_fill(hidden[..., None], 0.0)
            return self.out(h.sum(1) / (~hidden).sum(1, keepdim=True).clamp(min=1))[:, 0]

    model = Critic()
    return Program(model, None, loader(x[:2000], there[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 3e-3),
                   lambda m: max(0.0, r2(m(x[2000:], there[2000:]), y[2000:])),
                   step=lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]))


@fault("rate of 0.5 for a Gaussian policy's likelihood", rules=["learning-rate-too-high", "non-finite", "diverging"], layers=[], fails=True,
       steps=400)
def osr_gaussian_policy_rate(is_faulty):
    g = gen(36)
    x = torch.randn(2500, 5, generator=g)
    y = torch.sin(x[:, :2] * 1.5) + 0.1 * torch.randn(2500, 2, generator=g)

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = mlp(5, 64, 64, 2, act=nn.SiLU)
            self.log_std = nn.Parameter(torch.zeros(2))

        def forward(self, s):
            return Normal(self.mean(s), self.log_std.clamp(-4, 2).exp())

    model = Policy()
    return Program(model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 0.5 if is_faulty else 3e-3),
                   lambda m: r2(m(x[2000:]).mean, y[2000:]),
                   step=lambda m, b: -m(b[0]).log_prob(b[1]).sum(1).mean())
