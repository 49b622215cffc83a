"""Precision, schedules, parametrizations, sequences, likelihoods."""

import copy
import math

import torch
import torch.nn.functional as F
from common import accuracy, clusters, g, loader, mlp, r2, records
from program import Program, fault
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader


@fault(
    "Weight normalization is put on after the optimizer was made, which holds the former weights",
    rules=["no-gradient"],
    layers=["0", "2", "4"],
    fails=True,
    steps=300,
)
def late_weight_norm(is_faulty):
    x, y = clusters(2560, seed=8)
    net = mlp(16, 64, 64, 6, act=nn.ELU)
    if is_faulty:
        optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for layer in net:
        if isinstance(layer, nn.Linear):
            weight_norm(layer)
    if not is_faulty:
        optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)

    def step(model, batch):
        x, y = batch
        logits = model(x)
        with torch.no_grad():
            guess = model(x + 0.05 * torch.randn_like(x)).softmax(-1)
        return F.cross_entropy(logits, y) + 0.1 * F.mse_loss(logits.softmax(-1), guess)

    return Program(
        net,
        None,
        loader(x[:2048], y[:2048]),
        optimizer,
        lambda m: accuracy(m(x[2048:]), y[2048:]),
        step=step,
    )


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.label = nn.Linear(64, 6)
        self.rebuild = nn.Linear(64, 16)

    def forward(self, inputs):
        h = self.body(inputs)
        return {"logits": self.label(h), "rebuilt": self.rebuild(h)}


@fault(
    "Warm-up: the factor is step // 1000 instead of step / 50, which is 0 during the whole run",
    rules=["learning-rate-too-low", "no-gradient", "loss-not-decreasing"],
    fails=True,
    steps=300,
)
def whole_warmup(is_faulty):
    x, y = clusters(2560, seed=9)
    net = TwoHeads()
    optimizer = torch.optim.AdamW(
        [{"params": net.body.parameters()}, {"params": [*net.label.parameters(), *net.rebuild.parameters()], "lr": 4e-3}],
        lr=2e-3,
        weight_decay=0.01,
    )

    def factor(step):
        return min(1, (step + 1) // 1000) if is_faulty else min(1, (step + 1) / 50)

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    def loss(out, goal):
        return F.cross_entropy(out["logits"], goal["labels"]) + 0.3 * F.mse_loss(out["rebuilt"], goal["inputs"])

    rows = [({"inputs": x[i]}, {"labels": y[i], "inputs": x[i]}) for i in range(2048)]

    return Program(
        net,
        loss,
        DataLoader(rows, batch_size=64, shuffle=True),
        optimizer,
        lambda m: accuracy(m(x[2048:])["logits"], y[2048:]),
        scheduler=scheduler,
    )


class Signal(nn.Module):
    """A network of coordinates, with Fourier features."""

    def __init__(self, careful):
        super().__init__()
        self.careful = careful
        self.phases = nn.Linear(1, 32, bias=False).requires_grad_(False)
        with torch.no_grad():
            self.phases.weight.copy_(2 * math.pi * torch.arange(1, 33)[:, None])
        self.net = mlp(64, 96, 1)

    def forward(self, t):
        if self.careful:
            with torch.autocast("cpu", enabled=False):
                p = self.phases(t.float())
        else:
            p = self.phases(t)
        return self.net(torch.cat([p.sin(), p.cos()], 1))


@fault(
    "A signal over time: autocast also takes the phases of the Fourier features, thousands of radians, to bfloat16",
    rules=["rounding-error"],
    layers=["phases"],
    fails=True,
    steps=400,
)
def phases_in_bfloat16(is_faulty):
    def signal(t):
        return torch.sin(2 * math.pi * 3 * t) + 0.7 * torch.cos(2 * math.pi * 11 * t) + 0.6 * torch.sin(2 * math.pi * 26 * t)

    t = 60 * torch.rand(2048, 1, generator=g(1))
    held = 60 * torch.rand(512, 1, generator=g(2))
    net = Signal(not is_faulty)

    def step(model, batch):
        t, y = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(t)
        return F.mse_loss(out.float(), y)

    def score(m):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return r2(m(held).float(), signal(held))

    return Program(
        net, None, loader(t, signal(t)), torch.optim.Adam(net.net.parameters(), 3e-3), score, step=step
    )


@fault(
    "Fine-tuning in pure bfloat16: the weights themselves were cast, so that small steps round to nothing",
    rules=["lost-updates"],
    fails=False,
    steps=500,
)
def cast_weights(is_faulty):
    x, y = clusters(2560, seed=10)
    net = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 6))
    if is_faulty:
        net = net.to(torch.bfloat16)

    def step(model, batch):
        x, y = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x.to(next(model.parameters()).dtype))
        return F.cross_entropy(logits.float(), y)

    return Program(
        net,
        None,
        loader(x[:2048], y[:2048]),
        torch.optim.Adam(net.parameters(), lr=5e-5),
        lambda m: accuracy(m(x[2048:].to(next(m.parameters()).dtype)).float(), y[2048:]),
        step=step,
    )


class SelfEnsemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(
            nn.BatchNorm1d(16), nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 6)
        )
        self.ema = copy.deepcopy(self.student).requires_grad_(False)
        self.ema.eval()

    def train(self, mode=True):
        super().train(mode)
        self.ema.eval()
        return self

    def forward(self, x):
        return self.ema(x)


@fault(
    "The EMA of the student takes its parameters but not its buffers: the BatchNorms of the teacher keep mean 0, variance 1",
    rules=["batchnorm-mode-gap"],
    layers=["ema"],
    fails=False,
    steps=300,
)
def ema_without_buffers(is_faulty):
    x, y = clusters(2560, seed=11)
    x = x * (0.5 + 5 * torch.rand(16, generator=g(1))) + 6 * torch.randn(16, generator=g(2))
    net = SelfEnsemble()

    @torch.no_grad()
    def follow(model):
        for t, s in zip(model.ema.parameters(), model.student.parameters()):
            t.mul_(0.98).add_(s, alpha=0.02)
        if not is_faulty:
            for t, s in zip(model.ema.buffers(), model.student.buffers()):
                t.copy_(s)

    def step(model, batch):
        x, y = batch["x"], batch["y"]
        follow(model)
        logits = model.student(x)
        goal = model.ema(x).softmax(-1)
        return F.cross_entropy(logits, y) + 0.1 * F.mse_loss(logits.softmax(-1), goal)

    return Program(
        net,
        None,
        records(x=x[:2048], y=y[:2048]),
        torch.optim.Adam(net.student.parameters(), 2e-3),
        lambda m: accuracy(m(x[2048:]), y[2048:]),
        step=step,
    )


class TinyLm(nn.Module):
    """Shifts the labels itself, as the models of a well-known library do."""

    def __init__(self, vocabulary=24, dim=48):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.rnn(self.embed(input_ids))[0])
        if labels is None:
            return logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


@fault(
    "The data set shifts the labels, and so does the model: it learns the token after the next",
    rules=["label-shift"],
    fails=True,
    steps=300,
)
def shifted_twice(is_faulty):
    gen = g(3)
    follow = torch.rand(24, 24, generator=gen).mul(12).exp()
    rows = [torch.randint(0, 24, (1200,), generator=gen)]
    for _ in range(15):
        rows.append(torch.multinomial(follow[rows[-1]], 1, generator=gen)[:, 0])
    text = torch.stack(rows, 1)
    ids, held = text[:1024], text[1024:]
    labels = ids.clone()
    if is_faulty:
        labels = torch.cat([ids[:, 1:], torch.full((1024, 1), -100)], 1)
    net = TinyLm()
    best = follow.argmax(1)

    def score(m):
        return float((m(held).argmax(-1) == best[held]).float().mean())

    return Program(
        net,
        None,
        records(input_ids=ids, labels=labels, size=32),
        torch.optim.Adam(net.parameters(), 3e-3),
        score,
        step=lambda model, batch: model(**batch),
    )


class Mdn(nn.Module):
    def __init__(self, k=5):
        super().__init__()
        self.body = mlp(3, 64, 64, act=nn.Tanh)
        self.pi, self.mu, self.sigma = nn.Linear(64, k), nn.Linear(64, k), nn.Linear(64, k)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.pi(h), self.mu(h), F.softplus(self.sigma(h)) + 0.05


@fault(
    "Mixture density network: the likelihood is summed before the logarithm is taken, and underflows to 0",
    rules=["non-finite", "unscaled-target"],
    fails=True,
    steps=400,
)
def likelihood_underflow(is_faulty):
    gen = g(6)
    x = torch.randn(2560, 3, generator=gen)
    y = 8 * torch.sin(x[:, 0]) + 5 * x[:, 1] + 0.3 * torch.randn(2560, generator=gen)
    net = Mdn()

    def step(model, batch):
        x, y = batch
        pi, mu, sigma = model(x)
        if is_faulty:
            density = torch.exp(-0.5 * ((y[:, None] - mu) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
            return -torch.log((pi.softmax(1) * density).sum(1)).mean()
        log_p = -0.5 * ((y[:, None] - mu) / sigma) ** 2 - sigma.log() - 0.5 * math.log(2 * math.pi)
        return -torch.logsumexp(pi.log_softmax(1) + log_p, 1).mean()

    def score(m):
        pi, mu, _ = m(x[2048:])
        return r2((pi.softmax(1) * mu).sum(1), y[2048:])

    return Program(
        net, None, loader(x[:2048], y[:2048]), torch.optim.Adam(net.parameters(), 5e-3), score, step=step
    )


class Hyper(nn.Module):
    """Generates the weights of a small network from a task vector."""

    def __init__(self, scaled):
        super().__init__()
        self.make = mlp(4, 64, 32 * 6 + 32 * 32 + 32)
        if scaled:
            with torch.no_grad():
                self.make[-1].weight.mul_(0.1)
                bias = torch.randn(32 * 6 + 32 * 32 + 32)
                bias[: 32 * 6] /= 6**0.5
                bias[32 * 6 :] /= 32**0.5
                self.make[-1].bias.copy_(bias)
        else:
            nn.init.normal_(self.make[-1].weight)
            nn.init.normal_(self.make[-1].bias)

    def forward(self, task, x):
        w = self.make(task)
        a, b, c = w.split([32 * 6, 32 * 32, 32], 1)
        h = torch.tanh(torch.einsum("bi,bji->bj", x, a.view(-1, 32, 6)))
        h = torch.tanh(torch.einsum("bi,bji->bj", h, b.view(-1, 32, 32)))
        return (h * c).sum(1)


@fault(
    "A hypernetwork makes weights of scale 1 and more for a network of tanhs, which are flat from the start",
    rules=["bad-initialisation", "saturated-activation"],
    layers=["make"],
    fails=True,
    steps=400,
)
def generated_weights(is_faulty):
    gen = g(12)
    task = torch.randn(2560, 4, generator=gen)
    x = torch.randn(2560, 6, generator=gen)
    y = (task * x[:, :4]).sum(1) * 0.5
    net = Hyper(not is_faulty)

    def step(model, batch):
        return F.mse_loss(model(batch["task"], batch["x"]), batch["y"])

    return Program(
        net,
        None,
        records(task=task[:2048], x=x[:2048], y=y[:2048]),
        torch.optim.Adam(net.parameters(), 2e-3),
        lambda m: r2(m(task[2048:], x[2048:]), y[2048:]),
        step=step,
    )
