"""Embeddings, contrastive learning, rewards and latent codes over sequences, with one mistake each."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn

from data import accuracy, loader, motifs, order, r2, ratings, rng, waves


class Factors(nn.Module):
    def __init__(self, users=60, items=50, rank=8, std=0.1, squash=False):
        super().__init__()
        self.user, self.item = nn.Embedding(users, rank), nn.Embedding(items, rank)
        self.bias = nn.Embedding(items, 1)
        self.mean = nn.Parameter(torch.zeros(1))
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=std)
        nn.init.zeros_(self.bias.weight)
        self.squash = squash

    def forward(self, ids):
        u, i = ids.unbind(-1)
        out = (self.user(u) * self.item(i)).sum(-1) + self.bias(i)[:, 0] + self.mean
        return out.sigmoid() if self.squash else out


@fault(
    "The optimizer was made before the tables were enlarged for new users and items, and still holds the old ones.",
    rules=["lost-updates", "no-gradient"],
    layers=["user", "item", "bias"],
    fails=True,
    steps=400,
)
def tables_grown_after_optimizer(is_faulty):
    model = Factors(users=10, items=10)
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    grown = Factors(60, 50)
    model.user, model.item, model.bias = grown.user, grown.item, grown.bias
    if not is_faulty:
        opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    ids, y, tids, ty = ratings()
    return Program(model, F.mse_loss, loader(ids, y, batch=64), opt, r2(tids, ty))


@fault(
    "A sigmoid at the end of a model of ratings from 1 to 5, which are not scaled to between 0 and 1.",
    rules=["unscaled-target", "output-loss-mismatch", "saturated-output"],
    fails=True,
    steps=400,
)
def sigmoid_for_five_stars(is_faulty):
    ids, y, tids, ty = ratings()
    model = Factors(squash=is_faulty)
    return Program(
        model, nn.MSELoss(), loader(ids, y, batch=64), torch.optim.Adam(model.parameters(), lr=2e-2), r2(tids, ty)
    )


@fault(
    "Both factors of a factorization start at zero, and each one's gradient is the other one.",
    rules=["symmetric-initialisation", "vanishing-gradient", "loss-not-decreasing", "no-gradient", "rank-collapse"],
    layers=["user", "item"],
    fails=True,
    steps=400,
)
def both_factors_zero(is_faulty):
    ids, y, tids, ty = ratings()

    class Dot(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.item = nn.Embedding(60, 6), nn.Embedding(50, 6)
            for table in (self.user, self.item):
                nn.init.zeros_(table.weight) if is_faulty else nn.init.normal_(table.weight, std=0.3)

        def forward(self, ids):
            return 3 + (self.user(ids[:, 0]) * self.item(ids[:, 1])).sum(1)

    model = Dot()
    return Program(
        model, nn.MSELoss(), loader(ids, y, batch=64), torch.optim.Adam(model.parameters(), lr=2e-2), r2(tids, ty)
    )


@fault(
    "The second view of each recording is drawn from a loader of its own, so that the positive pairs are not pairs.",
    rules=["labels-unrelated", "loss-not-decreasing"],
    fails=True,
    steps=250,
)
def views_of_different_recordings(is_faulty):
    g = rng(5)
    mix = torch.randn(2, 6, 30, generator=g)
    z = torch.randn(1024, 6, generator=g)
    left, right = (z @ m + 0.3 * torch.randn(1024, 30, generator=g) for m in mix)
    tz = torch.randn(64, 6, generator=g)
    tests = [tz @ m + 0.3 * torch.randn(64, 30, generator=g) for m in mix]

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 16))
            self.b = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, left, right):
            return F.normalize(self.a(left), dim=-1), F.normalize(self.b(right), dim=-1)

    class Views:
        def __iter__(self):
            one = torch.randperm(1024)
            two = torch.randperm(1024) if is_faulty else one
            for i, j in zip(one.split(64), two.split(64), strict=True):
                yield left[i], right[j]

    def step(model, batch):
        a, b = model(*batch)
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a)))

    def retrieval(model):
        a, b = model(*tests)
        return ((a @ b.T).argmax(1) == torch.arange(64)).float().mean().item()

    net = Two()
    return Program(net, None, Views(), torch.optim.Adam(net.parameters(), 2e-3), retrieval, step=step)


@fault(
    "The policy's loss is minus the mean reward of the actions that were drawn: no gradient passes through a draw.",
    rules=["no-gradient"],
    fails=True,
    steps=300,
)
def reward_is_the_loss(is_faulty):
    def best(s):
        return (s[:, 0] > 0).long() + (s[:, 1] > 0).long()

    states = torch.randn(2048, 4, generator=rng(1))
    test = torch.randn(512, 4, generator=rng(2))
    policy = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 3))

    def step(policy, batch):
        dist = torch.distributions.Categorical(logits=policy(batch[0]))
        action = dist.sample()
        reward = (action == best(batch[0])).float()
        if is_faulty:
            return (-reward.mean()).requires_grad_()
        return -(dist.log_prob(action) * (reward - 0.5)).mean()

    def score(policy):
        return (policy(test).argmax(-1) == best(test)).float().mean().item()

    return Program(
        policy, None, loader(states, batch=64), torch.optim.Adam(policy.parameters(), 5e-3), score, step=step
    )


@fault(
    "The ascent of a policy gradient is asked for twice: the loss has its minus sign, and the optimizer has maximize=True.",
    rules=["diverging"],
    fails=True,
    steps=200,
)
def maximize_and_minus(is_faulty):
    x, y = motifs()
    tx, ty = motifs(seed=4)
    net = nn.Sequential(nn.Conv1d(3, 16, 7), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 4))

    def negative_log_likelihood(logits, y):
        return -torch.distributions.Categorical(logits=logits).log_prob(y).mean()

    opt = torch.optim.Adam(net.parameters(), lr=5e-3, maximize=is_faulty)
    return Program(net, negative_log_likelihood, loader(x, y), opt, accuracy(tx, ty))


@fault(
    "The codes of a sequence autoencoder are looked up by argmin without a straight-through estimate: the encoder learns nothing.",
    rules=["no-gradient", "lost-updates"],
    layers=["encoder"],
    fails=False,
    steps=400,
)
def codebook_cuts_the_encoder(is_faulty):
    x, _ = waves(n=1024)
    tx, _ = waves(seed=2)
    x, tx = x[..., 0], tx[..., 0]

    class VQ(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 16))
            self.book = nn.Embedding(64, 2)
            self.decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 24))
            nn.init.normal_(self.book.weight)

        def forward(self, x):
            z = self.encoder(x).reshape(len(x), 8, 2)
            q = self.book(torch.cdist(z, self.book.weight[None]).argmin(-1))
            aside = F.mse_loss(q, z.detach()) + (0.0 if is_faulty else 0.25 * F.mse_loss(z, q.detach()))
            if not is_faulty:
                q = z + (q - z).detach()
            return self.decoder(q.flatten(1)), aside

    def step(model, batch):
        out, aside = model(batch[0])
        return F.mse_loss(out, batch[0]) + aside

    def score(model):
        return max(0.0, 1 - (F.mse_loss(model(tx)[0], tx) / tx.var()).item())

    net = VQ()
    return Program(net, None, loader(x, batch=64), torch.optim.Adam(net.parameters(), 3e-3), score, step=step)


@fault(
    "The encoder's state is taken through NumPy before the decoder reads it (somebody logged it there).",
    rules=["no-gradient", "lost-updates"],
    layers=["encoder", "emb"],
    fails=False,
    steps=400,
)
def state_through_numpy(is_faulty):
    class Summarizer(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(10, 4)
            self.encoder = nn.GRU(4, 8, batch_first=True)
            self.decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))

        def forward(self, ids):
            h = self.encoder(self.emb(ids))[1][0]
            if is_faulty:
                h = torch.from_numpy(h.detach().numpy().copy())
            return self.decoder(h)

    x, y = order()
    tx, ty = order(seed=1)
    net = Summarizer()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 1e-2), accuracy(tx, ty))
