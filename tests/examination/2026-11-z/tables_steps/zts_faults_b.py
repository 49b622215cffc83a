"""Scripts with a step of their own."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from zts_data import (Flow, accuracy, blobs, concordance, friedman, gen, likelihood_score, loader, mlp, moons, r2,
                      r2_of, ratings, ring, ring_score, sk, survival)


@fault("In Q-learning the chosen values keep a column of their own and are broadcast against a row of targets",
       rules=["output-loss-mismatch"], fails=True, steps=400)
def zts_q_broadcast(is_faulty):
    model = mlp(12, 32, 2)

    def step(net, batch):
        s, a, r, t = batch
        eye = torch.eye(12)
        q = net(eye[s]).gather(1, a.unsqueeze(1))
        with torch.no_grad():
            target = r + 0.8 * net(eye[t]).max(1).values
        return F.mse_loss(q if is_faulty else q.squeeze(1), target)

    return Program(model, None, loader(*ring(2000, 1)), torch.optim.Adam(model.parameters(), lr=5e-3), ring_score(),
                   step=step)


def logged(n, seed):
    """A logged bandit: context, action drawn at random, reward."""
    x, best = blobs(n, seed)
    a = torch.randint(0, 4, (n,), generator=gen(seed + 50))
    return x, a, (a == best).float()


@fault("The policy gradient has lost its minus sign, so rewarded actions become rarer",
       rules=["output-loss-mismatch", "diverging", "saturated-output"], fails=True, steps=400)
def zts_policy_sign(is_faulty):
    policy = mlp(6, 64, 4)

    def step(net, batch):
        x, a, reward = batch
        log_p = torch.distributions.Categorical(logits=net(x)).log_prob(a)
        gain = (log_p * reward).mean()
        return gain if is_faulty else -gain

    return Program(policy, None, loader(*logged(6000, 1), batch=128), torch.optim.Adam(policy.parameters(), lr=3e-3),
                   accuracy(*blobs(500, 2)), step=step)


@fault("The residual of a physics-informed network weighs ten thousand times more than the initial value, "
       "and vanishes at zero",
       rules=["term-dominates"], fails=True, steps=500)
def zts_decay_law_weights(is_faulty):
    net = mlp(1, 32, 32, 1, act=nn.Tanh)
    weight = 1e4 if is_faulty else 1.0
    points = loader(torch.rand(640, 1, generator=gen(1)) * 2, batch=64)

    def step(model, batch):
        t = batch[0].clone().requires_grad_(True)
        u = model(t)
        du = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        residual = (du + 2 * u).pow(2).mean()
        start = (model(torch.zeros(1, 1)) - 1).pow(2).mean()
        return weight * residual + start

    grid = torch.linspace(0, 2, 100).unsqueeze(1)
    return Program(net, None, points, torch.optim.Adam(net.parameters(), lr=2e-3), r2(grid, torch.exp(-2 * grid)),
                   step=step)


@fault("For the partial likelihood times and events are sorted, but the predicted risks are not",
       rules=["output-loss-mismatch", "labels-unrelated"], fails=True, steps=300)
def zts_cox_unsorted_risk(is_faulty):
    net = mlp(6, 32, 1)

    def step(model, batch):
        x, t, e = batch
        risk = model(x).squeeze(1)
        order = t.argsort(descending=True)
        if not is_faulty:
            risk = risk[order]
        return -((risk - risk.logcumsumexp(0)) * e[order]).sum() / e.sum().clamp(min=1)

    return Program(net, None, loader(*survival(1500, 1)), torch.optim.Adam(net.parameters(), lr=3e-3),
                   concordance(*survival(400, 2)), step=step)


class Towers(nn.Module):
    """Descriptors of a molecule and its spectrum, brought to one space."""

    def __init__(self):
        super().__init__()
        self.left, self.right = mlp(8, 64, 16), mlp(12, 64, 16)

    def forward(self, a, b):
        return F.normalize(self.left(a), dim=1), F.normalize(self.right(b), dim=1)


def views(n, seed):
    z = torch.randn(n, 6, generator=gen(seed))
    g = gen(40)
    one, two = torch.randn(6, 8, generator=g) / 2, torch.randn(6, 12, generator=g) / 2
    return torch.tanh(z @ one), torch.tanh(z @ two)


def retrieval(a, b):
    def score(model):
        x, y = model(a, b)
        return float(((x @ y.T).argmax(1) == torch.arange(len(a))).float().mean())

    return score


@fault("The contrastive loss asks for column 0 in every row, where the pair of a row stands on the diagonal",
       rules=["output-loss-mismatch", "constant-target", "labels-unrelated", "rank-collapse", "loss-not-decreasing"],
       fails=True, steps=400)
def zts_pairs_in_column_zero(is_faulty):
    model = Towers()

    def step(net, batch):
        x, y = net(*batch)
        logits = x @ y.T / 0.1
        labels = torch.zeros(len(x), dtype=torch.long) if is_faulty else torch.arange(len(x))
        return F.cross_entropy(logits, labels)

    return Program(model, None, loader(*views(2000, 1), batch=48), torch.optim.Adam(model.parameters(), lr=2e-3),
                   retrieval(*views(100, 2)), step=step)


@fault("The whole network is kept in bfloat16, whose grid is coarser than the steps of the optimizer",
       rules=["lost-updates", "rounding-error"], fails=False, steps=600)
def zts_bfloat_weights(is_faulty):
    dtype = torch.bfloat16 if is_faulty else torch.float32
    model = mlp(8, 128, 64, 1).to(dtype)

    def step(net, batch):
        x, y = batch
        return F.mse_loss(net(x.to(dtype)).float(), y)

    xt, yt = friedman(400, 2)
    return Program(model, None, loader(*friedman(1500, 1)), torch.optim.Adam(model.parameters(), lr=1e-4),
                   lambda m: r2_of(m(xt.to(dtype)), yt), step=step)


@fault("The network is turned into half precision with .half(), where the epsilon of Adam is zero",
       rules=["non-finite", "gradient-underflow", "lost-updates", "half-overflow", "optimizer-setting",
              "rounding-error"], fails=True, steps=300)
def zts_half_with_adam(is_faulty):
    model = mlp(6, 64, 64, 4)
    if is_faulty:
        model = model.half()
    dtype = next(model.parameters()).dtype
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def step(net, batch):
        x, y = batch
        return F.cross_entropy(net(x.to(dtype)), y)

    xt, yt = blobs(500, 2)
    return Program(model, None, loader(*blobs(1600, 1)), optimizer, accuracy(xt.to(dtype), yt), step=step)


class TwoTasks(nn.Module):
    def __init__(self, detached):
        super().__init__()
        self.detached = detached
        self.trunk = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6), nn.ReLU())
        self.group, self.size = nn.Linear(6, 4), nn.Linear(6, 1)

    def forward(self, x):
        h = self.trunk(x)
        if self.detached:
            h = h.detach()
        return self.group(h), self.size(h)


def two_tasks(n, seed):
    x, y = blobs(n, seed)
    return x, y, (x[:, :1] * 0.4 + (x[:, 1:2] > 0))


@fault("The features of two tasks are detached before both heads, left over from an experiment",
       rules=["no-gradient"], layers=["trunk"], fails=False, steps=600)
def zts_trunk_detached(is_faulty):
    model = TwoTasks(is_faulty)

    def step(net, batch):
        x, y, size = batch
        logits, predicted = net(x)
        return F.cross_entropy(logits, y) + 0.5 * F.mse_loss(predicted, size)

    xt, yt, st = two_tasks(500, 2)

    def score(net):
        logits, predicted = net(xt)
        return 0.5 * float((logits.argmax(1) == yt).float().mean()) + 0.5 * r2_of(predicted, st)

    return Program(model, None, loader(*two_tasks(1600, 1)), torch.optim.Adam(model.parameters(), lr=5e-3), score,
                   step=step)


class Hyper(nn.Module):
    """Makes the weights of a small network from the description of a task."""

    def __init__(self, std):
        super().__init__()
        self.body = mlp(2, 32, 32)
        self.weights = nn.Linear(32, 16 * 3 + 16 + 1)
        nn.init.normal_(self.weights.weight, std=std)
        nn.init.zeros_(self.weights.bias)
        with torch.no_grad():
            self.weights.bias.normal_(0, 0.5)

    def forward(self, task, x):
        w = self.weights(torch.relu(self.body(task)))
        h = torch.tanh(torch.einsum("boi,bi->bo", w[:, :48].view(-1, 16, 3), torch.cat([x, x[:, :1] * 0 + 1], 1)))
        return (h * w[:, 48:64]).sum(1, keepdim=True) + w[:, 64:]


def waves(n, seed):
    g = gen(seed)
    task, x = torch.rand(n, 2, generator=g) * 2 - 1, torch.rand(n, 2, generator=g) * 2 - 1
    return task, x, torch.sin(2 * x[:, :1] + task[:, :1] * 2) + task[:, 1:] * x[:, 1:]


@fault("The layer of a hypernetwork that makes the weights starts with standard deviation 5",
       rules=["bad-initialisation", "saturated-activation", "activation-drift", "exploding-gradient",
              "last-layer-drift"], layers=["weights"], fails=False, steps=500)
def zts_hypernetwork_start(is_faulty):
    model = Hyper(5.0 if is_faulty else 0.05)

    def step(net, batch):
        task, x, y = batch
        return (net(task, x) - y).pow(2).mean()

    task, x, y = waves(400, 2)
    return Program(model, None, loader(*waves(3000, 1)), torch.optim.Adam(model.parameters(), lr=4e-3),
                   lambda m: r2_of(m(task, x), y), step=step)


class Pilot(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*mlp(8, 48, 48, 1), nn.Tanh())

    def forward(self, state):
        return self.net(state)


@fault("A pilot that ends in tanh imitates steering angles in degrees, not in shares of full lock",
       rules=["output-loss-mismatch", "unscaled-target", "saturated-output"], fails=True, steps=400)
def zts_steering_in_degrees(is_faulty):
    def demonstrations(n, seed):
        x, y = friedman(n, seed)
        return x, 30 * torch.tanh(0.7 * y)

    pilot = Pilot()

    def clone(net, batch):
        state, angle = batch
        return F.smooth_l1_loss(net(state), angle if is_faulty else angle / 30)

    xt, at = demonstrations(400, 2)
    return Program(pilot, None, loader(*demonstrations(1500, 1)), torch.optim.Adam(pilot.parameters(), lr=3e-3),
                   lambda m: r2_of(30 * m(xt), at), step=clone)


@fault("A normalizing flow is trained with Adam at a rate of 0.3",
       rules=["learning-rate-too-high", "diverging"], fails=True, steps=400)
def zts_flow_rate(is_faulty):
    flow = Flow(4)
    return Program(flow, None, loader(moons(2000, 1)[0], batch=128),
                   torch.optim.Adam(flow.parameters(), lr=0.3 if is_faulty else 3e-3),
                   likelihood_score(moons(500, 2)[0], -2.8, -1.2), step=lambda net, batch: -net(batch[0]).mean())


class Lags(nn.Module):
    """Attention over the last eight readings."""

    def __init__(self, has_places):
        super().__init__()
        self.value = nn.Linear(2, 24)
        self.place = nn.Parameter(torch.randn(8, 24) * 0.5) if has_places else None
        self.attend = nn.MultiheadAttention(24, 2, batch_first=True)
        self.out = mlp(24, 32, 1)

    def forward(self, x):
        h = self.value(x)
        if self.place is not None:
            h = h + self.place
        h = h + self.attend(h, h, h, need_weights=False)[0]
        return self.out(torch.relu(h).mean(1))


@fault("Attention over the readings of a sensor without anything that tells their places",
       rules=["order-lost"], fails=True, steps=500)
def zts_readings_without_places(is_faulty):
    def data(n, seed):
        x = torch.randn(n, 8, 2, generator=gen(seed))
        trend = (x[:, :, 0] * torch.linspace(-1, 1, 8)).sum(1, keepdim=True) + 0.5 * x[:, -1:, 1]
        return x, trend / 1.8

    model = Lags(not is_faulty)

    def step(net, batch):
        x, y = batch
        return F.huber_loss(net(x), y)

    return Program(model, None, loader(*data(2000, 1)), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r2(*data(400, 2)), step=step)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.decode = mlp(64, 96, 24), mlp(12, 96, 64)

    def forward(self, x):
        mean, log_var = self.encode(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp() if self.training else mean
        return self.decode(z), mean, log_var


@fault("The divergence of a variational autoencoder is summed over batch and code while the error is a mean",
       rules=["term-dominates", "rank-collapse", "summed-loss"], fails=True, steps=500)
def zts_divergence_summed(is_faulty):
    x, _, xt, _ = sk("digits", scale=False)
    x, xt = x / 16, xt / 16
    model = Vae()

    def step(net, batch):
        out, mean, log_var = net(batch[0])
        error = F.mse_loss(out, batch[0])
        divergence = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum()
        return error + (divergence if is_faulty else divergence / batch[0].numel() * 0.05)

    seen = xt[:, xt.std(0) > 0.1]
    columns = xt.std(0) > 0.1
    return Program(model, None, loader(x), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: r2_of(m(xt)[0][:, columns], seen), step=step)


@fault("The price is predicted in dollars by a network that starts near zero and moves by thousandths",
       rules=["unscaled-target"], fails=True, steps=500)
def zts_price_quantiles(is_faulty):
    x, y = friedman(1500, 1)
    xt, yt = friedman(400, 2)
    unit = 1.0 if is_faulty else 100000.0
    model = mlp(8, 48, 3)
    levels = torch.tensor([0.1, 0.5, 0.9])

    def pinball(net, batch):
        features, price = batch
        e = price / unit - net(features)
        return torch.maximum(levels * e, (levels - 1) * e).mean()

    return Program(model, None, loader(x, 240000 + 90000 * y), torch.optim.Adam(model.parameters(), lr=3e-3),
                   lambda m: r2_of(m(xt)[:, 1:2] * unit, 240000 + 90000 * yt), step=pinball)


@fault("The time of an event goes in as seconds since 1970 next to standardised columns",
       rules=["unscaled-input", "ill-conditioned-input"], fails=True, steps=500)
def zts_unix_time(is_faulty):
    def data(n, seed):
        x, y = friedman(n, seed)
        seconds = 1.7e9 + 1e7 * x[:, 5:6]
        when = seconds if is_faulty else (seconds - 1.7e9) / 1e7
        return torch.cat([x[:, :5], when, x[:, 6:]], 1), y

    model = mlp(8, 48, 1)

    def step(net, batch):
        features, y = batch
        return F.l1_loss(net(features), y)

    return Program(model, None, loader(*data(1500, 1)), torch.optim.Adam(model.parameters(), lr=3e-3),
                   r2(*data(400, 2)), step=step)


class Euler(nn.Module):
    """A neural differential equation from time 0 to 1."""

    def __init__(self, dt):
        super().__init__()
        self.dt = dt
        self.lift, self.field, self.read = nn.Linear(4, 16), mlp(16, 32, 16), nn.Linear(16, 1)
        for p in self.field.parameters():
            if p.dim() == 2:
                nn.init.kaiming_normal_(p)

    def forward(self, x):
        h = self.lift(x)
        for _ in range(16):
            h = h + self.dt * self.field(h)
        return self.read(h)


@fault("Sixteen Euler steps of a neural differential equation forget the step size",
       rules=["activation-drift", "exploding-gradient", "diverging", "bad-initialisation"],
       fails=True, steps=400)
def zts_euler_without_dt(is_faulty):
    def data(n, seed):
        x = torch.randn(n, 4, generator=gen(seed))
        return x, torch.sin(1.5 * x[:, :1]) + x[:, 1:2] * 0.5

    model = Euler(1.0 if is_faulty else 1 / 16)

    def step(net, batch):
        x, y = batch
        return ((net(x) - y) ** 2).mean()

    return Program(model, None, loader(*data(1500, 1)), torch.optim.Adam(model.parameters(), lr=2e-3),
                   r2(*data(400, 2)), step=step)


@fault("Scores of items are pushed by a term for their size that is far larger than the error of the ratings",
       rules=["term-dominates", "weight-decay-dominates"], fails=True, steps=400)
def zts_ratings_penalty(is_faulty):
    class Dot(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = nn.Embedding(60, 6), nn.Embedding(40, 6)
            self.user_bias, self.item_bias = nn.Embedding(60, 1), nn.Embedding(40, 1)

        def forward(self, p):
            a, b = p.T
            dot = (self.users(a) * self.items(b)).sum(1, keepdim=True) * 0.3
            return dot + self.user_bias(a) + self.item_bias(b)

    model = Dot()
    weight = 1.0 if is_faulty else 1e-5

    def step(net, batch):
        pairs, stars = batch
        return F.mse_loss(net(pairs), stars) + weight * sum(p.pow(2).sum() for p in net.parameters())

    return Program(model, None, loader(*ratings(2000, 1)), torch.optim.Adam(model.parameters(), lr=1e-2),
                   r2(*ratings(400, 2)), step=step)


@fault("Negatives of the triplets are drawn from the class of the anchor, and positives from the others",
       rules=["output-loss-mismatch", "labels-unrelated", "rank-collapse", "loss-not-decreasing"], fails=True,
       steps=400)
def zts_triplets_swapped(is_faulty):
    x, y = blobs(1600, 1)
    g = gen(6)
    anchor = torch.randint(0, len(x), (3000,), generator=g)
    same = torch.stack([(lambda k: k[torch.randint(0, len(k), (1,), generator=g)][0])((y == y[i]).nonzero()[:, 0])
                        for i in anchor])
    other = torch.stack([(lambda k: k[torch.randint(0, len(k), (1,), generator=g)][0])((y != y[i]).nonzero()[:, 0])
                         for i in anchor])
    positive, negative = (other, same) if is_faulty else (same, other)
    model = mlp(6, 64, 64, 2)

    def step(net, batch):
        a, p, n = (net(part) for part in batch)
        return F.triplet_margin_loss(a, p, n, margin=1.0)

    xt, yt = blobs(400, 2)

    def score(net):
        d = torch.cdist(net(xt), net(x[:400]))
        d5 = y[:400][d.topk(5, largest=False).indices]
        vote = F.one_hot(d5, 4).sum(1).argmax(1)
        return float((vote == yt).float().mean())

    return Program(model, None, loader(x[anchor], x[positive], x[negative]),
                   torch.optim.Adam(model.parameters(), lr=2e-3), score, step=step)


@fault("The variance of a mixture density is made with exp of raw outputs, and its log-likelihood is maximised "
       "without the minus",
       rules=["output-loss-mismatch", "diverging", "non-finite"], fails=True, steps=500)
def zts_mixture_sign(is_faulty):
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(1, 48, 48, 9, act=nn.Tanh)

        def forward(self, x):
            weight, mean, scale = self.net(x).chunk(3, 1)
            return torch.log_softmax(weight, 1), mean, scale.exp() + 1e-2

    def data(n, seed):
        g = gen(seed)
        x = torch.rand(n, 1, generator=g) * 4 - 2
        up = (torch.rand(n, 1, generator=g) < 0.5).float() * 2 - 1
        return x, up * (0.5 + x.abs() * 0.5) + 0.1 * torch.randn(n, 1, generator=g)

    def log_density(net, x, y):
        log_w, mean, scale = net(x)
        each = -0.5 * ((y - mean) / scale) ** 2 - scale.log() - 0.5 * math.log(2 * math.pi)
        return torch.logsumexp(log_w + each, 1)

    model = Mixture()

    def step(net, batch):
        value = log_density(net, *batch).mean()
        return value if is_faulty else -value

    xt, yt = data(500, 2)

    def score(net):
        value = float(log_density(net, xt, yt).mean())
        return min(1.0, max(0.0, (value + 1.6) / 1.8)) if math.isfinite(value) else 0.0

    return Program(model, None, loader(*data(2000, 1)), torch.optim.Adam(model.parameters(), lr=3e-3), score,
                   step=step)
