"""Faults in training steps of one's own."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from vts_data import vts_acc, vts_loader, vts_r2, vts_relation


def vts_gain_of(choice, rewards):
    """Share of what the best choice gains over a random one."""
    got = rewards.gather(1, choice[:, None]).mean()
    return max(0.0, ((got - rewards.mean()) / (rewards.max(1).values.mean() - rewards.mean())).item())


class LitDQN(nn.Module):
    def __init__(self, d, actions, gamma, keep):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, actions))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.gamma, self.keep, self.seen = gamma, keep, 0

    def forward(self, s):
        return self.online(s)

    def training_step(self, batch):
        s, a, r, s2, done = batch
        if self.seen % 25 == 0:
            self.target.load_state_dict(self.online.state_dict())
        self.seen += 1
        q = self.online(s).gather(1, a[:, None])
        with torch.no_grad():
            aim = r + self.gamma * (1 - done) * self.target(s2).max(1).values
        return F.smooth_l1_loss(q, aim if self.keep else aim[:, None])


@fault(
    "values of shape (batch, 1) are compared with aims of shape (batch,)",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=500,
)
def vts_td_shapes(is_faulty):
    import warnings

    warnings.filterwarnings("ignore", message="Using a target size")
    d, actions, n = 5, 3, 4000
    f = vts_relation(d, outs=actions, pair=0.0)
    s, st = torch.randn(n, d), torch.randn(600, d)
    a = torch.randint(0, actions, (n,))
    r = f(s).gather(1, a[:, None]).squeeze(1) + 0.1 * torch.randn(n)
    s2, done = 0.6 * s + 0.8 * torch.randn(n, d), (torch.rand(n) < 0.1).float()
    net = LitDQN(d, actions, 0.5, is_faulty)

    def centred(q):
        return q - q.mean(1, keepdim=True)

    return Program(
        net, None, vts_loader(s, a, r, s2, done, batch=80), torch.optim.Adam(net.online.parameters(), lr=2e-3),
        lambda m: vts_r2(centred(m(st)), centred(f(st))), step=lambda m, b: m.training_step(b),
    )


class ActorCritic(nn.Module):
    def __init__(self, d, actions):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(d, 48), nn.Tanh(), nn.Linear(48, actions))
        self.critic = nn.Sequential(nn.Linear(d, 48), nn.Tanh(), nn.Linear(48, 1))


@fault(
    "log-probabilities taken over from a roll-out that ran without gradients",
    rules=["no-gradient"],
    layers=["actor"],
    fails=True,
    steps=500,
)
def vts_rollout_logprobs(is_faulty):
    d, actions = 6, 4
    f = vts_relation(d, outs=actions, pair=0.0)
    s, st = torch.randn(4000, d), torch.randn(600, d)
    net = ActorCritic(d, actions)

    def step(model, batch):
        states, rewards = batch
        with torch.no_grad():
            policy = torch.distributions.Categorical(logits=model.actor(states))
            action = policy.sample()
            logp, entropy = policy.log_prob(action), policy.entropy()
            reward = rewards.gather(1, action[:, None]).squeeze(1)
        if not is_faulty:
            policy = torch.distributions.Categorical(logits=model.actor(states))
            logp, entropy = policy.log_prob(action), policy.entropy()
        value = model.critic(states).squeeze(1)
        advantage = reward - value.detach()
        return -(logp * advantage).mean() + 0.5 * F.mse_loss(value, reward) - 0.005 * entropy.mean()

    return Program(
        net, None, vts_loader(s, f(s), batch=100), torch.optim.Adam(net.parameters(), lr=5e-3),
        lambda m: vts_gain_of(m.actor(st).argmax(1), f(st)), step=step,
    )


@fault(
    "a divergence that is given the student's probabilities where it takes their logarithms",
    rules=["output-loss-mismatch"],
    fails=True,
    steps=500,
)
def vts_student_probabilities(is_faulty):
    d, classes, heat = 8, 5, 2.0
    teacher = nn.Sequential(nn.Linear(d, 64), nn.Tanh(), nn.Linear(64, classes)).requires_grad_(False)
    with torch.no_grad():
        z = teacher(torch.randn(2000, d))
        teacher[2].weight.mul_(1.6 / z.std())
        teacher[2].bias.zero_()
    x, xt = torch.randn(4000, d), torch.randn(600, d)
    student = nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, classes))

    def step(model, batch):
        (x,) = batch
        with torch.no_grad():
            soft = F.softmax(teacher(x) / heat, -1)
        logits = model(x) / heat
        mine = F.softmax(logits, -1) if is_faulty else F.log_softmax(logits, -1)
        return F.kl_div(mine, soft, reduction="batchmean") * heat**2

    def score(m):
        p = teacher(xt).log_softmax(-1)
        kl = (p.exp() * (p - m(xt).log_softmax(-1))).sum(-1).mean()
        return max(0.0, (1 - kl / (p.exp() * (p + math.log(classes))).sum(-1).mean()).item())

    return Program(
        student, None, vts_loader(x, batch=100), torch.optim.AdamW(student.parameters(), lr=3e-3), score, step=step
    )


class Experts(nn.Module):
    def __init__(self, d, many, dim):
        super().__init__()
        self.gate = nn.Linear(d, many)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(many)
        )
        self.dim = dim

    def forward(self, x):
        weights = F.softmax(self.gate(x), dim=self.dim)
        answers = torch.cat([e(x) for e in self.experts], dim=1)
        return (weights * answers).sum(1)


@fault(
    "a gate whose softmax runs over the examples instead of the experts",
    rules=["wrong-softmax-dimension", "mixed-examples"],
    layers=["gate"],
    fails=True,
    steps=500,
)
def vts_gate_dimension(is_faulty):
    w = torch.randn(4, 5)

    def truth(x):
        region = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()
        return (w[region] * x).sum(1) / 5**0.5

    x, xt = torch.randn(4000, 5), torch.randn(640, 5)
    net = Experts(5, 4, 0 if is_faulty else 1)

    def step(model, batch):
        x, y = batch
        return F.mse_loss(model(x), y)

    return Program(
        net, None, vts_loader(x, truth(x)), torch.optim.Adam(net.parameters(), lr=6e-3),
        lambda m: vts_r2(m(xt), truth(xt)), step=step,
    )


class Mixture(nn.Module):
    def __init__(self, d, many, zero):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(d, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.pi, self.mu, self.log_sigma = (nn.Linear(48, many) for _ in range(3))
        if zero:
            for head in (self.pi, self.mu, self.log_sigma):
                nn.init.zeros_(head.weight)
                nn.init.zeros_(head.bias)

    def log_likelihood(self, x, y):
        h = self.features(x)
        parts = torch.distributions.Normal(self.mu(h), self.log_sigma(h).clamp(-5, 3).exp()).log_prob(y[:, None])
        return torch.logsumexp(F.log_softmax(self.pi(h), 1) + parts, 1)


@fault(
    "components of a mixture that all start at zero and so stay one",
    rules=["symmetric-initialisation", "bad-initialisation"],
    layers=["pi", "mu", "log_sigma"],
    fails=True,
    steps=500,
)
def vts_equal_components(is_faulty):
    noise = 0.15

    def centre(x):
        return 1.0 + 0.5 * torch.sin(2 * x[:, 0])

    def sample(n):
        x = 2 * torch.rand(n, 1) - 1
        sign = torch.where(torch.rand(n) < 0.5, -1.0, 1.0)
        return x, sign * centre(x) + noise * torch.randn(n)

    x, y = sample(4000)
    xt, yt = sample(1000)

    def normal(y, m, s):
        return -0.5 * ((y - m) / s) ** 2 - math.log(s) - 0.5 * math.log(2 * math.pi)

    best = torch.logaddexp(normal(yt, centre(xt), noise), normal(yt, -centre(xt), noise)).mean() - math.log(2)
    plain = normal(yt, 0.0, yt.std().item()).mean()
    net = Mixture(1, 4, is_faulty)
    return Program(
        net, None, vts_loader(x, y, batch=100), torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: max(0.0, ((m.log_likelihood(xt, yt).mean() - plain) / (best - plain)).item()),
        step=lambda m, b: -m.log_likelihood(*b).mean(),
    )


class TableVAE(nn.Module):
    def __init__(self, d, z):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d, 48), nn.ReLU(), nn.Linear(48, 2 * z))
        self.dec = nn.Sequential(nn.Linear(z, 48), nn.ReLU(), nn.Linear(48, d))

    def forward(self, x):
        mu, logvar = self.enc(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp() if self.training else mu
        return self.dec(z), mu, logvar


@fault(
    "a divergence summed over the batch beside a mean reconstruction",
    rules=["term-dominates", "summed-loss", "rank-collapse"],
    fails=True,
    steps=500,
)
def vts_vae_terms(is_faulty):
    mix = torch.randn(3, 12)

    def sample(n):
        x = torch.tanh(torch.randn(n, 3)) @ mix
        return x / 1.2 + 0.1 * torch.randn(n, 12)

    x, xt = sample(4000), sample(600)
    net = TableVAE(12, 4)

    def step(model, batch):
        (x,) = batch
        out, mu, logvar = model(x)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp())
        kl = kl.sum() if is_faulty else kl.sum(1).mean()
        return F.mse_loss(out, x) + 0.02 * kl

    return Program(
        net, None, vts_loader(x, batch=100), torch.optim.Adam(net.parameters(), lr=3e-3),
        lambda m: vts_r2(m(xt)[0], xt), step=step,
    )


class Imputer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2 * d, 96), nn.GELU(), nn.Linear(96, 96), nn.GELU(), nn.Linear(96, d))

    def forward(self, values, known):
        return self.net(torch.cat([values, known], 1))


@fault(
    "an imputer is shown the cells it has to fill in",
    rules=["future-seen"],
    fails=False,
    steps=500,
)
def vts_shown_cells(is_faulty):
    mix = torch.randn(3, 10)
    mix = mix / mix.norm(dim=0)

    def sample(n):
        return torch.randn(n, 3) @ mix + 0.1 * torch.randn(n, 10)

    x, xt = sample(4000), sample(800)
    hide = (torch.rand(800, 10) < 0.3).float()
    net = Imputer(10)

    def step(model, batch):
        (table,) = batch
        hidden = (torch.rand_like(table) < 0.3).float()
        values = table if is_faulty else table * (1 - hidden)
        filled = model(values, 1 - hidden)
        return ((filled - table) ** 2 * hidden).sum() / hidden.sum().clamp(min=1)

    def score(m):
        out = m(xt * (1 - hide), 1 - hide)
        return max(0.0, (1 - ((out - xt) ** 2 * hide).sum() / (xt**2 * hide).sum()).item())

    return Program(
        net, None, vts_loader(x, batch=100), torch.optim.Adam(net.parameters(), lr=4e-3), score, step=step
    )


class Reward(nn.Module):
    def __init__(self, d, act):
        super().__init__()
        self.layer1, self.layer2, self.layer3 = nn.Linear(d, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        self.act = act

    def forward(self, x):
        x = self.act(self.layer1(x))
        x = self.act(self.layer2(x))
        return self.layer3(x)


@fault(
    "a reward model without activations, for preferences that have an optimum inside",
    rules=["no-nonlinearity"],
    layers=["layer1", "layer2", "layer3"],
    fails=True,
    steps=500,
)
def vts_linear_reward(is_faulty):
    d = 4
    best = 0.2 * torch.randn(d)

    def utility(x):
        return -((x - best) ** 2).sum(1)

    def pairs(n):
        a, b = torch.randn(n, d), torch.randn(n, d)
        swap = (utility(a) < utility(b))[:, None]
        return torch.where(swap, b, a), torch.where(swap, a, b)

    won, lost = pairs(4000)
    wt, lt = pairs(800)
    net = Reward(d, nn.Identity() if is_faulty else nn.SiLU())

    def step(model, batch):
        chosen, rejected = batch
        return -F.logsigmoid(model(chosen) - model(rejected)).mean()

    return Program(
        net, None, vts_loader(won, lost, batch=80), torch.optim.AdamW(net.parameters(), lr=3e-3),
        lambda m: max(0.0, 2 * (m(wt) > m(lt)).float().mean().item() - 1), step=step,
    )


@fault(
    "queries of an episode lie class after class, while their labels are written class by turns",
    rules=["output-loss-mismatch", "labels-unrelated", "loss-not-decreasing"],
    fails=True,
    steps=400,
)
def vts_episode_labels(is_faulty):
    way, shot, query, d = 5, 3, 4, 12
    useful = torch.randn(3, d)
    many = 200
    centres = torch.randn(many, 3) * 1.2

    def episode(centre):
        """(way, shot + query, d) with strong noise outside of the useful directions."""
        code = centre[:, None] + 0.25 * torch.randn(way, shot + query, 3)
        return code @ useful + 1.5 * torch.randn(way, shot + query, d) @ null

    q, _ = torch.linalg.qr(useful.t(), mode="complete")
    null = q[:, 3:] @ q[:, 3:].t()

    class Episodes:
        def __len__(self):
            return 50

        def __iter__(self):
            for _ in range(50):
                yield episode(centres[torch.randperm(many)[:way]])

    held = [episode(1.2 * torch.randn(way, 3)) for _ in range(60)]
    net = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 8))
    turns, rows = torch.arange(way).repeat(query), torch.arange(way).repeat_interleave(query)

    def logits(model, e):
        h = model(e)
        protos = h[:, :shot].mean(1)
        return -torch.cdist(h[:, shot:].reshape(way * query, -1), protos).pow(2)

    def step(model, e):
        return F.cross_entropy(logits(model, e), turns if is_faulty else rows)

    def score(m):
        right = sum(vts_acc(logits(m, e), rows) for e in held) / len(held)
        return max(0.0, (right - 0.2) / 0.8)

    return Program(net, None, Episodes(), torch.optim.Adam(net.parameters(), lr=3e-3), score, step=step)
