"""Faults in scripts with a training step of their own."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

from bts_data import hits, loader, logged_decisions, mlp, r2, record_loader, surface
from program import Program, fault


@fault(
    "Fitted Q-learning: values of shape (B, 1) minus targets of shape (B,) broadcast to (B, B)",
    rules=["output-loss-mismatch", "mixed-examples"],
    fails=False,
    steps=400,
)
def bts_q_values_broadcast(is_faulty):
    s, a, r, s2, best = logged_decisions(2400)
    net = mlp(6, 64, 64, 4)
    target_net = copy.deepcopy(net).requires_grad_(False)

    def step(model, batch):
        s, a, r, s2 = batch
        q = model(s).gather(1, a[:, None])
        if not is_faulty:
            q = q.squeeze(1)
        target = r + 0.2 * target_net(s2).max(1).values
        return ((q - target) ** 2).mean()

    k = 1800
    return Program(
        net, None, loader(s[:k], a[:k], r[:k], s2[:k]), torch.optim.Adam(net.parameters(), 3e-3),
        lambda m: hits(m(s[k:]), best[k:]), step=step,
    )


@fault(
    "Policy gradient on logged decisions that minimises the expected reward: the minus sign is missing",
    rules=["output-loss-mismatch", "saturated-output", "diverging"],
    fails=True,
    steps=400,
)
def bts_policy_gradient_sign(is_faulty):
    s, a, r, _, best = logged_decisions(2400)
    r = (r > 0.3).float()
    policy = mlp(6, 64, 4, act=nn.Tanh)

    def step(model, batch):
        s, a, r = batch
        logp = model(s).log_softmax(1).gather(1, a[:, None])[:, 0]
        objective = (logp * r).mean()
        return objective if is_faulty else -objective

    k = 1800
    return Program(
        policy, None, loader(s[:k], a[:k], r[:k]), torch.optim.Adam(policy.parameters(), 3e-3),
        lambda m: hits(m(s[k:]), best[k:]), step=step,
    )


class Embedder(nn.Module):
    """Unit vectors for rows of a table."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.net = mlp(width, 64, out)

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


def centroid_score(m, x, y, classes):
    """Accuracy of the nearest mean of each class."""
    z = m(x)
    means = torch.stack([z[y == c].mean(0) for c in range(classes)])
    return hits(-torch.cdist(z, means), y)


def noisy_classes(n, classes=5):
    """Class means in 6 columns, and 18 columns of noise."""
    y = torch.randint(classes, (n,))
    means = 2.2 * torch.randn(classes, 6)
    return torch.cat([means[y] + 0.6 * torch.randn(n, 6), 2 * torch.randn(n, 18)], 1), y


def triplets(x, y):
    """For each row another of its class, and one of another class."""
    other = torch.stack([torch.nonzero(y == c)[torch.randint(int((y == c).sum()), (1,)), 0][0] for c in y])
    away = torch.stack([torch.nonzero(y != c)[torch.randint(int((y != c).sum()), (1,)), 0][0] for c in y])
    return x, x[other], x[away]


@fault(
    "Triplet loss with the margin subtracted instead of added: the hinge is off for all triplets",
    rules=["no-gradient", "output-loss-mismatch", "loss-not-decreasing", "constant-target"],
    fails=True,
    steps=300,
)
def bts_triplet_margin(is_faulty):
    x, y = noisy_classes(1200)
    model = Embedder(24, 3)
    margin = 2.0

    def step(model, batch):
        anchor, positive, negative = (model(part) for part in batch)
        d_pos = (anchor - positive).square().sum(1)
        d_neg = (anchor - negative).square().sum(1)
        gap = d_pos - d_neg
        return F.relu(gap - margin if is_faulty else gap + margin).mean()

    return Program(
        model, None, loader(*triplets(x[:800], y[:800])), torch.optim.Adam(model.parameters(), 2e-3),
        lambda m: centroid_score(m, x[800:], y[800:], 5), step=step,
    )


class TwoTowers(nn.Module):
    """One encoder for each view."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = Embedder(12, 8), Embedder(10, 8)


@fault(
    "Contrastive pairs whose second table was sorted by another key, so that rows do not belong together",
    rules=["labels-unrelated", "loss-not-decreasing", "output-loss-mismatch"],
    fails=True,
    steps=400,
)
def bts_contrastive_pairs(is_faulty):
    z = torch.randn(1700, 5)
    one = z @ torch.randn(5, 12) + 0.2 * torch.randn(1700, 12)
    two = z @ torch.randn(5, 10) + 0.2 * torch.randn(1700, 10)
    train_one, train_two = one[:1600], two[:1600]
    if is_faulty:
        train_two = train_two[train_two[:, 0].argsort()]
    model = TwoTowers()

    def step(model, batch):
        a, b = model.left(batch[0]), model.right(batch[1])
        logits = a @ b.T / 0.1
        truth = torch.arange(len(a))
        return (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth)) / 2

    return Program(
        model, None, loader(train_one, train_two), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: hits(m.left(one[1600:]) @ m.right(two[1600:]).T, torch.arange(100)), step=step,
    )


class ConditionalProcess(nn.Module):
    """A function's values at new places, from a context of points of it."""

    def __init__(self, over) -> None:
        super().__init__()
        self.over = over
        self.encoder, self.decoder = mlp(2, 64, 32), mlp(33, 64, 64, 1)

    def forward(self, cx, cy, tx):
        r = self.encoder(torch.stack([cx, cy], -1))
        r = r.mean(dim=self.over, keepdim=True).expand(len(tx), tx.shape[1], -1)
        return self.decoder(torch.cat([r, tx[..., None]], -1))[..., 0]


def waves(n, points):
    """Sines of random phase and size at random places."""
    x = 4 * torch.rand(n, points) - 2
    return x, (0.5 + torch.rand(n, 1)) * torch.sin(1.5 * x + 6.3 * torch.rand(n, 1))


@fault(
    "Neural process whose summary is the mean over points and over the tasks of a batch",
    rules=["mixed-examples", "labels-unrelated"],
    fails=True,
    steps=500,
)
def bts_context_over_tasks(is_faulty):
    x, y = waves(1200, 20)
    model = ConditionalProcess((0, 1) if is_faulty else 1)

    def step(model, batch):
        x, y = batch
        return F.mse_loss(model(x[:, :10], y[:, :10], x[:, 10:]), y[:, 10:])

    held = slice(1000, None)
    return Program(
        model, None, loader(x[:1000], y[:1000], size=32), torch.optim.Adam(model.parameters(), 4e-3),
        lambda m: r2(m(x[held, :10], y[held, :10], x[held, 10:]), y[held, 10:]), step=step,
    )


@fault(
    "Oscillator by a physics-informed network whose residual weighs 10000 times its initial conditions",
    rules=["term-dominates"],
    fails=True,
    steps=600,
)
def bts_residual_weight(is_faulty):
    model = mlp(1, 32, 32, 1, act=nn.Tanh)
    weight = 1e4 if is_faulty else 0.3

    def step(model, batch):
        t = batch[0].requires_grad_()
        u = model(t)
        v = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        acc = torch.autograd.grad(v.sum(), t, create_graph=True)[0]
        zero = torch.zeros(1, 1, requires_grad=True)
        start = model(zero)
        slope = torch.autograd.grad(start.sum(), zero, create_graph=True)[0]
        initial = start.square().mean() + (slope - 2).square().mean()
        return weight * (acc + 4 * u).square().mean() + 10 * initial

    grid = torch.linspace(0, 2.5, 100)[:, None]
    return Program(
        model, None, loader(2.5 * torch.rand(640, 1)), torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: r2(m(grid), torch.sin(2 * grid)), step=step,
    )


class PriceAndChurn(nn.Module):
    """A shared trunk with a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 6), nn.Tanh())
        self.price, self.churn = nn.Linear(6, 1), nn.Linear(6, 2)

    def forward(self, x):
        h = self.trunk(x)
        return self.price(h)[:, 0], self.churn(h)


@fault(
    "Two tasks in one loss: squared errors of prices in dollars drown the churn task",
    rules=["term-dominates", "unscaled-target"],
    fails=True,
    steps=500,
)
def bts_price_and_churn(is_faulty):
    x = torch.randn(2000, 10)
    price = 50000 + 20000 * (x[:, 4] + x[:, 5] * x[:, 6])
    if not is_faulty:
        price = (price - 50000) / 20000
    y = (surface(x) > 0).long()
    model = PriceAndChurn()

    def step(model, batch):
        x, price, y = batch
        p, c = model(x)
        return F.mse_loss(p, price) + F.cross_entropy(c, y)

    return Program(
        model, None, loader(x[:1600], price[:1600], y[:1600]), torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: max(0.0, 2 * hits(m(x[1600:])[1], y[1600:]) - 1), step=step,
    )


@fault(
    "Exponential survival model fitted to times in days, thousands of them",
    rules=["unscaled-target", "learning-rate-too-high", "exploding-gradient"],
    fails=True,
    steps=500,
)
def bts_survival_in_days(is_faulty):
    x = torch.randn(2000, 8)
    rate = torch.exp(1.2 * surface(x)) / 5
    years = -torch.log(torch.rand(2000)) / rate
    seen = (years < 15).float()
    t = years.clamp(max=15) * (365.0 if is_faulty else 1.0)
    model = mlp(8, 64, 64, 1)

    def step(model, batch):
        x, t, event = batch
        log_rate = model(x)[:, 0]
        return (log_rate.exp() * t - event * log_rate).mean()

    def score(m):
        out = m(x[1600:])[:, 0]
        return torch.corrcoef(torch.stack([out, rate[1600:].log()]))[0, 1].clamp(min=0).item() ** 2

    return Program(
        model, None, loader(x[:1600], t[:1600], seen[:1600]), torch.optim.SGD(model.parameters(), 0.02, momentum=0.9),
        score, step=step,
    )


class Coupling(nn.Module):
    """An affine coupling of two columns."""

    def __init__(self, first: bool) -> None:
        super().__init__()
        self.first, self.net = first, mlp(1, 32, 2, act=nn.Tanh)

    def forward(self, x):
        a, b = (x[:, :1], x[:, 1:]) if self.first else (x[:, 1:], x[:, :1])
        s, t = self.net(a).chunk(2, 1)
        s = 2 * torch.tanh(s / 2)
        b = b * s.exp() + t
        return torch.cat([a, b] if self.first else [b, a], 1), s[:, 0]


class Flow(nn.Module):
    """Log densities of rows."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Coupling(i % 2 == 0) for i in range(depth))

    def forward(self, x):
        total = 0
        for part in self.parts:
            x, s = part(x)
            total = total + s
        return total - x.square().sum(1) / 2 - math.log(2 * math.pi)


def crescents(n):
    """Two correlated readings along a curve."""
    a = 2 * torch.rand(n) - 1
    x = torch.stack([a, 1.5 * torch.sin(3 * a) + 0.1 * torch.randn(n)], 1)
    return (x - x.mean(0)) / x.std(0)


def density_score(m, x):
    """Twice how often a row is likelier than one of mixed columns, less 1."""
    mixed = torch.stack([x[:, 0], x[:, 1].roll(37)], 1)
    return max(0.0, 2 * (m(x) > m(mixed)).float().mean().item() - 1)


@fault(
    "Normalizing flow on raw sensor readings in the hundreds and thousands",
    rules=["unscaled-input"],
    fails=False,
    steps=500,
)
def bts_flow_raw_readings(is_faulty):
    x = crescents(2000)
    if is_faulty:
        x = x * torch.tensor([180.0, 40.0]) + torch.tensor([1013.0, 300.0])
    model = Flow()
    return Program(
        model, None, loader(x[:1600], size=128), torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: density_score(m, x[1600:]), step=lambda m, batch: -m(batch[0]).mean(),
    )


class Operator(nn.Module):
    """A branch for the function and a trunk for the place."""

    def __init__(self, is_faulty) -> None:
        super().__init__()
        self.is_faulty = is_faulty
        self.branch, self.trunk = mlp(20, 64, 5, act=nn.Tanh), mlp(1, 64, 64, 5, act=nn.Tanh)

    def forward(self, u, y):
        b = self.branch(u)
        if self.is_faulty:
            b = b.detach()
        return torch.einsum("bk,bnk->bn", b, self.trunk(y[..., None]))


@fault(
    "Neural operator whose branch output is detached before the product",
    rules=["no-gradient"],
    layers=["branch"],
    fails=False,
    steps=600,
)
def bts_operator_branch_detached(is_faulty):
    c = torch.randn(1200, 12)
    k = torch.arange(1, 13) * math.pi / 2
    sensors = torch.linspace(0, 1, 20)
    u = c @ torch.cos(k[:, None] * sensors)
    y = torch.rand(1200, 16)
    g = torch.einsum("bk,bkn->bn", c / k.sqrt(), torch.sin(k[None, :, None] * y[:, None, :])) / 1.2
    model = Operator(is_faulty)

    def step(model, batch):
        u, y, g = batch
        return F.mse_loss(model(u, y), g)

    return Program(
        model, None, loader(u[:1000], y[:1000], g[:1000]), torch.optim.Adam(model.parameters(), 4e-3),
        lambda m: r2(m(u[1000:], y[1000:]), g[1000:]), step=step,
    )


class GaussianPolicy(nn.Module):
    """Means from the state, one learned spread per action."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.mean = mlp(8, 64, 2, act=nn.Tanh)
        self.log_std = nn.Parameter(torch.full((2,), start))

    def forward(self, s):
        return self.mean(s), self.log_std


@fault(
    "Imitation by a Gaussian policy whose log spread begins at -5",
    rules=["bad-initialisation", "exploding-gradient", "non-finite", "learning-rate-too-high", "diverging"],
    layers=["log_std"],
    fails=True,
    steps=400,
)
def bts_imitation_narrow_policy(is_faulty):
    s = torch.randn(2000, 8)
    expert = torch.stack([surface(s), torch.tanh(s[:, 4] + s[:, 5] * s[:, 6])], 1)
    expert = expert + 0.2 * torch.randn(2000, 2)
    policy = GaussianPolicy(-5.0 if is_faulty else 0.0)

    def step(model, batch):
        mean, log_std = model(batch[0])
        return (0.5 * ((batch[1] - mean) / log_std.exp()).square() + log_std).mean()

    return Program(
        policy, None, loader(s[:1600], expert[:1600]), torch.optim.SGD(policy.parameters(), 0.03, momentum=0.9),
        lambda m: r2(m(s[1600:])[0], expert[1600:]), step=step,
    )


class Variational(nn.Module):
    """A small variational autoencoder."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(width, 64, 2 * latent), mlp(latent, 64, width)

    def forward(self, x):
        mu, log_var = self.encoder(x).chunk(2, 1)
        z = mu + torch.randn_like(mu) * (log_var / 2).exp() if self.training else mu
        return self.decoder(z), mu, log_var


@fault(
    "Variational autoencoder for anomalies whose divergence is a sum and whose error is a mean",
    rules=["term-dominates"],
    fails=True,
    steps=500,
)
def bts_divergence_weight(is_faulty):
    z = torch.randn(2000, 4)
    x = torch.tanh(z @ torch.randn(4, 16)) + 0.1 * torch.randn(2000, 16)
    x = (x - x.mean(0)) / x.std(0)
    model = Variational(16, 6)

    def step(model, batch):
        out, mu, log_var = model(batch[0])
        kl = -0.5 * (1 + log_var - mu.square() - log_var.exp())
        return F.mse_loss(out, batch[0]) + (kl.sum() if is_faulty else 0.01 * kl.sum(1).mean())

    return Program(
        model, None, loader(x[:1600]), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: r2(m(x[1600:])[0], x[1600:]), step=step,
    )


class Forecaster(nn.Module):
    """Convolutions over time that give the next value at each place."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.first, self.second = nn.Conv1d(1, 16, 5), nn.Conv1d(16, 16, 5)
        self.head = nn.Conv1d(16, 1, 1)

    def forward(self, x):
        h = x[:, None]
        for conv in (self.first, self.second):
            h = torch.relu(conv(F.pad(h, (4, 0) if self.causal else (2, 2))))
        return self.head(h)[:, 0]


def seasons(n, length):
    """Noisy sums of two waves."""
    t = torch.arange(length)
    y = torch.sin(0.9 * t + 6.3 * torch.rand(n, 1)) + torch.sin(0.37 * t + 6.3 * torch.rand(n, 1))
    return y + 0.05 * torch.randn(n, length)


@fault(
    "Forecaster whose convolutions are centred, so that each place sees the value it is asked for",
    rules=["future-seen"],
    fails=True,
    steps=500,
)
def bts_centred_forecaster(is_faulty):
    series = seasons(900, 33)
    model = Forecaster(not is_faulty)

    def step(model, batch):
        y = batch[0]
        return F.mse_loss(model(y[:, :-1])[:, 6:-6], y[:, 7:-6])  # not at the edges

    held = series[700:]
    return Program(
        model, None, loader(series[:700], size=32), torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: r2(m(held[:, :-1])[:, -1], held[:, -1]), step=step,
    )


@fault(
    "Q-learning on rewards in cents, far above what the network returns",
    rules=["unscaled-target"],
    fails=True,
    steps=500,
)
def bts_rewards_in_cents(is_faulty):
    s, a, r, s2, best = logged_decisions(2400)
    if is_faulty:
        r = 8000 + 2500 * r
    net = mlp(6, 64, 64, 4)
    frozen = copy.deepcopy(net).requires_grad_(False)

    def step(model, batch):
        s, a, r, s2 = batch
        q = model(s).gather(1, a[:, None])[:, 0]
        with torch.no_grad():
            goal = r + 0.1 * frozen(s2).max(1).values
        return F.mse_loss(q, goal)

    k = 1800
    return Program(
        net, None, loader(s[:k], a[:k], r[:k], s2[:k]), torch.optim.Adam(net.parameters(), 1e-3),
        lambda m: hits(m(s[k:]), best[k:]), step=step,
    )


class Experts(nn.Module):
    """Linear experts with a gate."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.gate, self.experts = mlp(6, 32, 4), nn.Linear(6, 4)

    def forward(self, x):
        return (self.gate(x).softmax(self.dim) * self.experts(x)).sum(1)


@fault(
    "Mixture of experts whose gate is a softmax over the batch",
    rules=["wrong-softmax-dimension", "mixed-examples"],
    fails=True,
    steps=500,
)
def bts_gate_over_batch(is_faulty):
    x = torch.randn(2400, 6)
    which = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    y = (x @ torch.randn(6, 4)).gather(1, which[:, None])[:, 0]
    y = (y - y.mean()) / y.std()
    model = Experts(0 if is_faulty else 1)

    def step(model, batch):
        return F.smooth_l1_loss(model(batch[0]), batch[1])

    return Program(
        model, None, loader(x[:2000], y[:2000]), torch.optim.Adam(model.parameters(), 1e-2),
        lambda m: r2(m(x[2000:]), y[2000:]), step=step,
    )


class Bag(nn.Module):
    """A sum over the real items of a set."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.inverted = inverted
        self.phi, self.rho = mlp(3, 32, 32), mlp(32, 32, 1)

    def forward(self, items, mask):
        h = self.phi(items)
        hidden = mask if self.inverted else ~mask
        return self.rho(h.masked_fill(hidden[..., None], 0.0).sum(1) / 4)[:, 0]


def baskets(n):
    """Sets of up to 10 items, a mask of what is real, and a response."""
    items = torch.randn(n, 10, 3)
    mask = torch.arange(10) < torch.randint(3, 11, (n, 1))
    items = items * mask[..., None]
    y = ((items[..., 0] * items[..., 1] + items[..., 2].abs()) * mask).sum(1)
    return items, mask, (y - y.mean()) / y.std()


@fault(
    "Deep set whose mask of real items is taken for a mask of padding",
    rules=["wrong-mask"],
    fails=False,
    steps=500,
)
def bts_set_mask_inverted(is_faulty):
    items, mask, y = baskets(1600)
    model = Bag(is_faulty)
    held = slice(1300, None)
    return Program(
        model, nn.MSELoss(), record_loader({"items": items[:1300], "mask": mask[:1300]}, y[:1300]),
        torch.optim.Adam(model.parameters(), 4e-3), lambda m: r2(m(items[held], mask[held]), y[held]),
    )


class Hyper(nn.Module):
    """The weights of a small network from a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.made = mlp(3, 64, 8 * 4 + 8)

    def forward(self, x, c):
        w = self.made(c)
        hidden = torch.tanh(torch.einsum("bij,bj->bi", w[:, :32].view(-1, 8, 4), x))
        return (hidden * w[:, 32:]).sum(1)


def conditioned(n):
    """A response to inputs that a condition turns."""
    x, c = torch.randn(n, 4), torch.randn(n, 3)
    y = torch.tanh(x[:, 0] * c[:, 0] + x[:, 1] * c[:, 1]) + 0.5 * x[:, 2] * c[:, 2]
    return x, c, (y - y.mean()) / y.std()


@fault(
    "Hypernetwork trained with a momentum of 0.999 in place of 0.9",
    rules=["optimizer-setting", "learning-rate-too-high", "diverging"],
    fails=True,
    steps=500,
)
def bts_hyper_momentum(is_faulty):
    x, c, y = conditioned(1800)
    model = Hyper()
    held = slice(1500, None)
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.999 if is_faulty else 0.9)
    return Program(
        model, nn.MSELoss(), record_loader({"x": x[:1500], "c": c[:1500]}, y[:1500]), optimizer,
        lambda m: r2(m(x[held], c[held]), y[held]),
    )


class Molecule(nn.Module):
    """Rounds of averages over neighbouring atoms."""

    def __init__(self, is_residual: bool) -> None:
        super().__init__()
        self.is_residual = is_residual
        self.embed, self.head = nn.Linear(5, 32), nn.Linear(32, 1)
        self.rounds = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))

    def forward(self, atoms, bonds):
        bonds = bonds / bonds.sum(-1, keepdim=True)
        h = self.embed(atoms)
        for part in self.rounds:
            message = torch.relu(part(bonds @ h))
            h = h + message / 3 if self.is_residual else message
        return self.head(h)[..., 0]


@fault(
    "Eight rounds of averaging over bonds without the atom's own state: all atoms become alike",
    rules=["rank-collapse", "activation-drift", "vanishing-gradient"],
    fails=True,
    steps=500,
)
def bts_molecule_smoothed(is_faulty):
    atoms = torch.randn(800, 8, 5)
    bonds = (torch.rand(800, 8, 8) < 0.4).float()
    bonds = ((bonds + bonds.transpose(1, 2) + torch.eye(8)) > 0).float()
    y = atoms[..., 0] * 1.2 + torch.tanh(atoms[..., 1]) + (bonds / bonds.sum(-1, keepdim=True) @ atoms)[..., 2]
    y = y / y.std()
    model = Molecule(not is_faulty)
    held = slice(650, None)
    return Program(
        model, nn.MSELoss(), record_loader({"atoms": atoms[:650], "bonds": bonds[:650]}, y[:650], size=32),
        torch.optim.Adam(model.parameters(), 2e-3), lambda m: r2(m(atoms[held], bonds[held]), y[held]),
    )
