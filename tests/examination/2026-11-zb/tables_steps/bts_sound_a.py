"""Sound scripts with a training step of their own."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from bts_data import from_sklearn, hits, loader, logged_decisions, mlp, r2, surface
from bts_faults_a import (
    ConditionalProcess,
    Embedder,
    Flow,
    Forecaster,
    GaussianPolicy,
    TwoTowers,
    Variational,
    centroid_score,
    crescents,
    density_score,
    noisy_classes,
    seasons,
    triplets,
    waves,
)
from program import Program, sound


@sound("Fitted Q-learning with a frozen copy for the targets", steps=400, least=0.7)
def bts_q_with_frozen_copy():
    s, a, r, s2, best = logged_decisions(2400)
    model = nn.ModuleDict({"online": mlp(6, 64, 64, 4)})
    model["target"] = copy.deepcopy(model["online"]).requires_grad_(False)

    def step(model, batch):
        s, a, r, s2 = batch
        q = model["online"](s).gather(1, a[:, None]).squeeze(1)
        with torch.no_grad():
            goal = r + 0.3 * model["target"](s2).max(1).values
        return F.smooth_l1_loss(q, goal)

    k = 1800
    return Program(
        model, None, loader(s[:k], a[:k], r[:k], s2[:k]), torch.optim.Adam(model["online"].parameters(), 3e-3),
        lambda m: hits(m["online"](s[k:]), best[k:]), step=step,
    )


@sound("Policy gradient with weights of both signs and an entropy bonus; its loss is noise around 0", steps=400,
       least=0.65)
def bts_policy_gradient():
    s, a, r, _, best = logged_decisions(2400)
    policy = mlp(6, 64, 4, act=nn.Tanh)

    def step(model, batch):
        s, a, r = batch
        logp = model(s).log_softmax(1)
        ratio = (logp.gather(1, a[:, None])[:, 0] + math.log(4)).exp()
        gain = (r - r.mean()) / r.std()
        entropy = -(logp.exp() * logp).sum(1).mean()
        return -(ratio.clamp(max=4) * gain).mean() - 0.01 * entropy

    k = 1800
    return Program(
        policy, None, loader(s[:k], a[:k], r[:k]), torch.optim.Adam(policy.parameters(), 3e-3),
        lambda m: hits(m(s[k:]), best[k:]), step=step,
    )


@sound("Triplet loss, trained: nearly all hinges are off", trained=200, steps=300, least=0.9)
def bts_triplets_nearly_done():
    x, y = noisy_classes(1200)
    model = Embedder(24, 3)

    def step(model, batch):
        a, p, n = (model(part) for part in batch)
        return F.triplet_margin_loss(a, p, n, margin=0.3)

    return Program(
        model, None, loader(*triplets(x[:800], y[:800])), torch.optim.Adam(model.parameters(), 2e-3),
        lambda m: centroid_score(m, x[800:], y[800:], 5), step=step,
    )


@sound("Contrastive loss over a batch: other rows are the negatives, at a temperature of 0.07", steps=400, least=0.85)
def bts_contrastive_tables():
    z = torch.randn(1700, 5)
    one = z @ torch.randn(5, 12) + 0.2 * torch.randn(1700, 12)
    two = z @ torch.randn(5, 10) + 0.2 * torch.randn(1700, 10)
    model = TwoTowers()

    def step(model, batch):
        a, b = model.left(batch[0]), model.right(batch[1])
        return F.cross_entropy(a @ b.T / 0.07, torch.arange(len(a)))

    return Program(
        model, None, loader(one[:1600], two[:1600]), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: hits(m.left(one[1600:]) @ m.right(two[1600:]).T, torch.arange(100)), step=step,
    )


@sound("Neural process that averages over the points of a context", steps=500, least=0.75)
def bts_process():
    x, y = waves(1200, 20)
    model = ConditionalProcess(1)
    held = slice(1000, None)
    return Program(
        model, None, loader(x[:1000], y[:1000], size=32), torch.optim.Adam(model.parameters(), 4e-3),
        lambda m: r2(m(x[held, :10], y[held, :10], x[held, 10:]), y[held, 10:]),
        step=lambda m, b: F.mse_loss(m(b[0][:, :10], b[1][:, :10], b[0][:, 10:]), b[1][:, 10:]),
    )


@sound("Decay by a physics-informed network: no data at all, one column of inputs", steps=500, least=0.9)
def bts_physics_decay():
    model = mlp(1, 32, 32, 1, act=nn.Tanh)

    def step(model, batch):
        t = batch[0].requires_grad_()
        u = model(t)
        slope = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        return (slope + 1.5 * u).square().mean() + 10 * (model(torch.zeros(1, 1)) - 2).square().mean()

    grid = torch.linspace(0, 2, 100)[:, None]
    return Program(
        model, None, loader(2 * torch.rand(640, 1)), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: r2(m(grid), 2 * torch.exp(-1.5 * grid)), step=step,
    )


@sound("Normalizing flow whose couplings begin as the identity", steps=500, least=0.75)
def bts_flow_from_identity():
    x = crescents(2000)
    model = Flow()
    for part in model.parts:
        nn.init.zeros_(part.net[-1].weight)
        nn.init.zeros_(part.net[-1].bias)
    return Program(
        model, None, loader(x[:1600], size=128), torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: density_score(m, x[1600:]), step=lambda m, batch: -m(batch[0]).mean(),
    )


@sound("Variational autoencoder with a small weight on its divergence, half trained", trained=150, steps=500, least=0.6)
def bts_variational_half_way():
    z = torch.randn(2000, 4)
    x = torch.tanh(z @ torch.randn(4, 16)) + 0.1 * torch.randn(2000, 16)
    x = (x - x.mean(0)) / x.std(0)
    model = Variational(16, 6)

    def step(model, batch):
        out, mu, log_var = model(batch[0])
        kl = -0.5 * (1 + log_var - mu.square() - log_var.exp()).sum(1).mean()
        return F.mse_loss(out, batch[0]) + 0.01 * kl

    return Program(
        model, None, loader(x[:1600]), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: r2(m(x[1600:])[0], x[1600:]), step=step,
    )


@sound("Forecaster padded on the left, with a loss at every place", steps=500, least=0.8)
def bts_causal_forecaster():
    series = seasons(900, 33)
    model = Forecaster(True)
    held = series[700:]
    return Program(
        model, None, loader(series[:700], size=32), torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: r2(m(held[:, :-1])[:, -1], held[:, -1]),
        step=lambda m, b: F.mse_loss(m(b[0][:, :-1]), b[0][:, 1:]),
    )


@sound("Imitation by a Gaussian policy, trained: its likelihood loss is below 0", trained=300, steps=500, least=0.7)
def bts_imitation():
    s = torch.randn(2000, 8)
    expert = torch.stack([surface(s), torch.tanh(s[:, 4] + s[:, 5] * s[:, 6])], 1) + 0.1 * torch.randn(2000, 2)
    policy = GaussianPolicy(-0.5)

    def step(model, batch):
        mean, log_std = model(batch[0])
        return (0.5 * ((batch[1] - mean) / log_std.exp()).square() + log_std).mean()

    return Program(
        policy, None, loader(s[:1600], expert[:1600]), torch.optim.Adam(policy.parameters(), 4e-3),
        lambda m: r2(m(s[1600:])[0], expert[1600:]), step=step,
    )


class Mixture(nn.Module):
    """Weights, means and log spreads of three Gaussians."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(4, 64, 64, 9, act=nn.Tanh)

    def forward(self, x):
        return self.net(x).chunk(3, 1)


@sound("Mixture density network for a response with two branches", steps=500, least=0.7)
def bts_mixture_density():
    x = torch.randn(2400, 4)
    sign = torch.where(torch.rand(2400) < 0.7, 1.0, -1.0)
    curve = 1.5 + torch.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1]
    y = sign * curve + 0.15 * torch.randn(2400)

    def step(model, batch):
        w, mu, s = model(batch[0])
        s = s.clamp(-4, 3)
        part = w.log_softmax(1) - s - 0.5 * ((batch[1][:, None] - mu) / s.exp()).square()
        return -part.logsumexp(1).mean()

    def score(m):
        w, mu, _ = m(x[2000:])
        return r2(mu.gather(1, (w + 0).argmax(1, keepdim=True))[:, 0], curve[2000:])

    model = Mixture()
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    return Program(model, None, loader(x[:2000], y[:2000]), optimizer, score, step=step)


@sound("Cox regression: the loss of a batch compares its rows with one another", steps=400, least=0.6)
def bts_cox():
    x = torch.randn(2000, 8)
    risk = 1.5 * surface(x)
    t = -torch.log(torch.rand(2000)) / risk.exp()
    seen = t < 5

    def step(model, batch):
        x, t, seen = batch
        order = t.argsort(descending=True)
        out = model(x)[order, 0]
        return -((out - out.logcumsumexp(0)) * seen[order]).sum() / seen.sum()

    def score(m):
        return torch.corrcoef(torch.stack([m(x[1600:])[:, 0], risk[1600:]]))[0, 1].clamp(min=0).item() ** 2

    model = mlp(8, 64, 64, 1)
    return Program(
        model, None, loader(x[:1600], t[:1600], seen[:1600]), torch.optim.Adam(model.parameters(), 3e-3), score,
        step=step,
    )


class Weighted(nn.Module):
    """Two heads, and a learned log variance for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.number, self.kind = nn.Linear(48, 1), nn.Linear(48, 3)
        self.log_vars = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        h = self.trunk(x)
        return self.number(h)[:, 0], self.kind(h)


@sound("Two tasks weighed by learned uncertainties that begin at 0", steps=500, least=0.7)
def bts_uncertainty_weights():
    x = torch.randn(2000, 8)
    number, kind = surface(x), torch.bucketize(x[:, 4] + x[:, 5], torch.tensor([-0.6, 0.6]))
    model = Weighted()

    def step(model, batch):
        x, number, kind = batch
        a, b = model(x)
        losses = torch.stack([F.mse_loss(a, number), F.cross_entropy(b, kind)])
        return (losses * torch.exp(-model.log_vars) + model.log_vars).sum()

    def score(m):
        a, b = m(x[1600:])
        return (r2(a, number[1600:]) + hits(b, kind[1600:])) / 2

    return Program(
        model, None, loader(x[:1600], number[:1600], kind[:1600]), torch.optim.Adam(model.parameters(), 3e-3), score,
        step=step,
    )


class Reader(nn.Module):
    """An autoencoder through two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(20, 48, 2), mlp(2, 48, 20)

    def forward(self, x):
        return self.decoder(self.encoder(x))


@sound("Autoencoder through two numbers for anomalies", steps=500, least=0.7)
def bts_two_number_bottleneck():
    z = torch.randn(2000, 2)
    x = torch.tanh(z @ torch.randn(2, 20)) + 0.05 * torch.randn(2000, 20)
    x = (x - x.mean(0)) / x.std(0)
    model = Reader()
    return Program(
        model, None, loader(x[:1600]), torch.optim.Adam(model.parameters(), 4e-3),
        lambda m: r2(m(x[1600:]), x[1600:]), step=lambda m, b: F.mse_loss(m(b[0]), b[0]),
    )


@sound("Handwritten digits in a plain step", steps=300, least=0.85)
def bts_digits_step():
    x, x_held, y, y_held = from_sklearn("digits", scaled=False)
    x, x_held = x / 16, x_held / 16
    model = mlp(64, 64, 10)
    return Program(
        model, None, loader(x, y), torch.optim.Adam(model.parameters(), 2e-3), lambda m: hits(m(x_held), y_held),
        step=lambda m, b: F.cross_entropy(m(b[0]), b[1], label_smoothing=0.05),
    )
