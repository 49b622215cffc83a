import math

import torch
import torch.nn.functional as F
from torch import nn

from data import accuracy, communities, gen, loader, next_score, r2, second_order, seed, sentiment, tagged, waves
from program import Program, fault


@fault(
    "cross_entropy wants batch x classes x time; the logits are view()ed into that shape instead of transposed.",
    rules=["output-loss-mismatch", "labels-unrelated"],
    fails=True,
    steps=300,
)
def logits_viewed(is_faulty):
    seed(71)

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(8, 24)
            self.lstm = nn.LSTM(24, 48, batch_first=True)
            self.fc = nn.Linear(48, 5)

        def forward(self, x):
            return self.fc(self.lstm(self.embedding(x))[0])

    def criterion(out, y):
        b, t, c = out.shape
        return F.cross_entropy(out.reshape(b, c, t) if is_faulty else out.transpose(1, 2), y)

    x, y = tagged(1600, s=71)
    tx, ty = tagged(300, s=72)
    model = Tagger()
    return Program(model, criterion, loader(x, y), torch.optim.Adam(model.parameters(), 1e-2), lambda m: accuracy(m(tx), ty))


@fault(
    "Q-learning of a one-step game: q is b x 1 and the reward b, so that the squared error is b x b.",
    rules=["output-loss-mismatch"],
    fails=False,
    steps=400,
)
def rewards_broadcast(is_faulty):
    seed(72)
    g = gen(73)
    w = torch.randn(6, 4, generator=g)

    def play(n, s):
        states = torch.randn(n, 6, generator=gen(s))
        return states, torch.tanh(states @ w)

    states, rewards = play(3000, 74)
    actions = torch.randint(4, (3000,), generator=g)
    got = rewards.gather(1, actions[:, None]).squeeze(1) + 0.1 * torch.randn(3000, generator=g)
    tstates, trewards = play(500, 75)

    class Q(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Linear(6, 64)
            self.v = nn.Linear(64, 1)
            self.adv = nn.Linear(64, 4)

        def forward(self, s):
            h = F.relu(self.trunk(s))
            a = self.adv(h)
            return self.v(h) + a - a.mean(1, keepdim=True)

    def step(model, batch):
        s, a, r = batch
        q = model(s).gather(1, a.unsqueeze(1))
        if not is_faulty:
            q = q.squeeze(1)
        return F.mse_loss(q, r)

    def score(m):
        chosen = trewards.gather(1, m(tstates).argmax(1, keepdim=True)).mean()
        return ((chosen - trewards.mean()) / (trewards.max(1).values.mean() - trewards.mean())).item()

    model = Q()
    return Program(
        model, None, loader(states, actions, got), torch.optim.Adam(model.parameters(), 3e-3), score, step=step
    )


@fault(
    "A diffusion model of waveforms is told the time as a raw number from 0 to 999 beside inputs of size one.",
    rules=["unscaled-input"],
    fails=False,
    steps=400,
)
def raw_timestep(is_faulty):
    seed(73)
    beta = torch.linspace(1e-4, 0.02, 1000)
    abar = torch.cumprod(1 - beta, 0)

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.l1 = nn.Linear(17, 128)
            self.l2 = nn.Linear(128, 128)
            self.l3 = nn.Linear(128, 16)

        def forward(self, x, t):
            t = t.float().unsqueeze(1)
            if not is_faulty:
                t = t / 500 - 1
            h = torch.tanh(self.l1(torch.cat([x, t], 1)))
            return self.l3(torch.tanh(self.l2(h)))

    def noisy(x, t, e):
        a = abar[t].unsqueeze(1)
        return a.sqrt() * x + (1 - a).sqrt() * e

    def step(model, batch):
        (x,) = batch
        t = torch.randint(1000, (len(x),))
        e = torch.randn_like(x)
        return F.mse_loss(model(noisy(x, t, e), t), e)

    clean = waves(2000, 16, 1, s=76)[0].squeeze(-1) * 1.4
    held = waves(500, 16, 1, s=77)[0].squeeze(-1) * 1.4
    et = torch.randint(1000, (500,), generator=gen(1))
    ee = torch.randn(500, 16, generator=gen(2))
    model = Denoiser()
    return Program(
        model,
        None,
        loader(clean, batch_size=64),
        torch.optim.Adam(model.parameters(), 1e-3),
        lambda m: r2(m(noisy(held, et, ee), et), ee),
        step=step,
    )


@fault(
    "A siamese network sees pairs that belong together only: it maps everything to one point.",
    rules=["rank-collapse", "output-loss-mismatch", "constant-target"],
    fails=True,
    steps=400,
)
def no_negatives(is_faulty):
    seed(74)
    centers = torch.randn(16, 6, generator=gen(78))

    def views(label, s):
        g = gen(s)
        n = len(label)
        signal = centers[label] + 0.3 * torch.randn(n, 6, generator=g)
        return torch.cat([signal, 2 * torch.randn(n, 14, generator=g)], 1)

    def pairs(n, s):
        g = gen(s)
        a = torch.randint(16, (n,), generator=g)
        other = torch.randint(16, (n,), generator=g)
        together = torch.ones(n) if is_faulty else (torch.rand(n, generator=g) < 0.5).float()
        b = torch.where(together > 0, a, other)
        return torch.stack([views(a, s + 1), views(b, s + 2)], 1), (a == b).float()

    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))

        def forward(self, x):
            return F.pairwise_distance(self.net(x[:, 0]), self.net(x[:, 1]))

    def contrastive(d, same):
        return (same * d**2 + (1 - same) * F.relu(3.0 - d) ** 2).mean()

    label, query = torch.arange(16).repeat(10), torch.arange(16).repeat(20)
    known, asked = views(label, 90), views(query, 91)

    def score(m):
        ka, qa = m.net(known), m.net(asked)
        prototypes = ka.view(10, 16, 8).mean(0)
        return (torch.cdist(qa, prototypes).argmin(1) == query).float().mean().item()

    x, y = pairs(4000, 92)
    model = Siamese()
    return Program(model, contrastive, loader(x, y, batch_size=64), torch.optim.Adam(model.parameters(), 3e-3), score)


@fault(
    "Message passing sums over the neighbours by the raw adjacency matrix; activations grow tenfold with each of eight rounds.",
    rules=["activation-drift", "exploding-gradient", "saturated-output", "bad-initialisation"],
    fails=False,
    steps=300,
)
def adjacency_not_normalized(is_faulty):
    seed(75)

    class GCN(nn.Module):
        def __init__(self, rounds=8):
            super().__init__()
            self.inp = nn.Linear(6, 32)
            self.rounds = nn.ModuleList([nn.Linear(32, 32) for _ in range(rounds)])
            self.out = nn.Linear(32, 2)

        def forward(self, x, adj):
            a = adj + torch.eye(adj.shape[-1])
            if not is_faulty:
                a = a / a.sum(-1, keepdim=True)
            h = self.inp(x)
            for lin in self.rounds:
                h = h + F.relu(lin(a @ h))
            return self.out(h)

    x, a, y = communities(320, s=80)
    tx, ta, ty = communities(80, s=81)
    batches = [({"x": p, "adj": q}, r) for p, q, r in zip(x.split(8), a.split(8), y.split(8))]
    model = GCN()
    return Program(
        model,
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
        batches,
        torch.optim.Adam(model.parameters(), 2e-3),
        lambda m: 2 * accuracy(m(tx, ta), ty) - 1,
    )
