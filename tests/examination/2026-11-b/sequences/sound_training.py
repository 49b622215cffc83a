import copy
import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from data import accuracy, flagged, gen, loader, next_score, ordered, r2, recall, second_order, seed, sentiment, tagged, waves
from program import Program, sound


@sound("A frozen pre-trained encoder with a fresh head.", steps=200, least=0.85)
def frozen_encoder():
    seed(131)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 24, padding_idx=0)
            self.gru = nn.GRU(24, 32, batch_first=True)
            self.head = nn.Linear(32, 3)

        def forward(self, x):
            return self.head(self.gru(self.embed(x))[0].mean(1))

    x, _, y = sentiment(1600, s=131)
    tx, _, ty = sentiment(400, s=132)
    model = Net()
    pre = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(3):
        for a, b in loader(x, y):
            pre.zero_grad()
            F.cross_entropy(model(a), b).backward()
            pre.step()
    model.requires_grad_(False)
    model.head = nn.Linear(32, 2)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x, (y == 1).long()),
        torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), 1e-2),
        lambda m: accuracy(m(tx), (ty == 1).long()),
    )


@sound("LoRA on a frozen network: the second factor starts at zero, as it should.", steps=400, least=0.7)
def lora():
    seed(132)

    class Lora(nn.Linear):
        def __init__(self, old, rank=8):
            super().__init__(old.in_features, old.out_features)
            self.load_state_dict(old.state_dict())
            self.weight.requires_grad = self.bias.requires_grad = False
            self.down = nn.Parameter(torch.randn(rank, old.in_features) / old.in_features**0.5)
            self.up = nn.Parameter(torch.zeros(old.out_features, rank))

        def forward(self, x):
            return super().forward(x) + F.linear(F.linear(x, self.down), self.up)

    def task(n, s, which):
        x = torch.randn(n, 12, generator=gen(s))
        a = x[:, which]
        return x, (a[:, 0] + a[:, 1] > 0).long() + 2 * (a[:, 2] > 0).long()

    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    pre = torch.optim.Adam(model.parameters(), 3e-3)
    x, y = task(1600, 133, [0, 1, 2])
    for _ in range(4):
        for a, b in loader(x, y):
            pre.zero_grad()
            F.cross_entropy(model(a), b).backward()
            pre.step()
    model.requires_grad_(False)
    model[0], model[2], model[4] = Lora(model[0]), Lora(model[2]), Lora(model[4])
    x, y = task(1600, 134, [5, 1, 7])
    tx, ty = task(400, 135, [5, 1, 7])
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x, y),
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3),
        lambda m: accuracy(m(tx), ty),
    )


def two_views(label, s):
    g = gen(s)
    centers = torch.randn(12, 6, generator=gen(140))
    n = len(label)
    return torch.cat([centers[label] + 0.3 * torch.randn(n, 6, generator=g), 1.5 * torch.randn(n, 10, generator=g)], 1)


def prototypes(encode):
    label, query = torch.arange(12).repeat(10), torch.arange(12).repeat(20)
    known, asked = F.normalize(encode(two_views(label, 141)), dim=1), F.normalize(encode(two_views(query, 142)), dim=1)
    return (torch.cdist(asked, known.view(10, 12, -1).mean(0)).argmin(1) == query).float().mean().item()


@sound("InfoNCE: the loss compares the examples of a batch with each other.", steps=300, least=0.75)
def info_nce():
    seed(133)
    label = torch.randint(12, (3000,), generator=gen(143))
    a, b = two_views(label, 144), two_views(label, 145)
    encoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

    def step(model, batch):
        u, v = (F.normalize(model(z), dim=1) for z in batch)
        logits = u @ v.T / 0.2
        target = torch.arange(len(u))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    return Program(encoder, None, loader(a, b), torch.optim.Adam(encoder.parameters(), 3e-3), prototypes, step=step)


@sound("Dropout of a half in a small text classifier.", steps=400, least=0.85)
def dropout_half():
    seed(135)
    x, _, y = sentiment(1600, s=151)
    tx, _, ty = sentiment(400, s=152)
    model = nn.Sequential(
        nn.EmbeddingBag(20, 32, mode="mean", padding_idx=0), nn.Dropout(0.5), nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 3)
    )
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(model.parameters(), 5e-3), lambda m: accuracy(m(tx), ty)
    )


@sound("Rare events (4 %) in a sensor's windows, with pos_weight; scored by balanced accuracy.", trained=200, steps=400, least=0.85)
def rare_events():
    seed(136)

    def windows(n, s):
        g = gen(s)
        x = torch.randn(n, 1, 20, generator=g)
        y = (torch.rand(n, generator=g) < 0.04).float()
        at = torch.randint(2, 15, (n,), generator=g)
        for k in range(3):
            x[torch.arange(n), 0, at + k] += 3 * y
        return x, y

    x, y = windows(3200, 153)
    tx, ty = windows(2000, 154)

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(1, 16, 3)
            self.fc = nn.Linear(16, 1)

        def forward(self, x):
            return self.fc(F.relu(self.conv(x)).amax(2)).squeeze(1)

    def score(m):
        p = m(tx) > 0
        return (p[ty == 1].float().mean().item() + (~p[ty == 0]).float().mean().item()) / 2

    model = Detector()
    return Program(
        model,
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(20.0)),
        loader(x, y, batch_size=64),
        torch.optim.Adam(model.parameters(), 5e-3),
        score,
    )


@sound("Targets of about 20000: the head multiplies by their deviation and adds their mean, and the loss is divided by it.", steps=300, least=0.85)
def scaled_head():
    seed(138)
    x, y = waves(1600, 16, s=157)
    tx, ty = waves(400, 16, s=158)
    y, ty = 20000 + 4000 * y, 20000 + 4000 * ty

    class Sales(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(1, 32, batch_first=True)
            self.fc = nn.Linear(32, 4)
            self.register_buffer("mean", y.mean())
            self.register_buffer("std", y.std())

        def forward(self, x):
            return self.fc(self.gru(x)[1][0]) * self.std + self.mean

    model = Sales()
    return Program(
        model,
        lambda out, y: F.huber_loss(out / 4000, y / 4000),
        loader(x, y),
        torch.optim.Adam(model.parameters(), 1e-2),
        lambda m: r2(m(tx), ty),
    )


@sound("Deep supervision: each of three layers has its own output and its own loss.", steps=400, least=0.85)
def deep_supervision():
    seed(139)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(8, 32)
            self.convs = nn.ModuleList(nn.Conv1d(32, 32, 3, padding=1) for _ in range(3))
            self.outs = nn.ModuleList(nn.Conv1d(32, 5, 1) for _ in range(3))

        def forward(self, x):
            h, result = self.emb(x).transpose(1, 2), []
            for conv, out in zip(self.convs, self.outs):
                h = F.relu(conv(h)) + h
                result.append(out(h))
            return result

    x, y = tagged(1600, s=159)
    tx, ty = tagged(300, s=160)
    model = Net()
    return Program(
        model,
        lambda outs, y: sum(w * F.cross_entropy(o, y) for w, o in zip((0.3, 0.3, 1.0), outs)),
        loader(x, y),
        torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: accuracy(m(tx)[-1].transpose(1, 2), ty),
    )


@sound("Mean teacher: a slow copy of the encoder, without gradients, gives targets; half of a batch has labels.", steps=300, least=0.7)
def ema_teacher():
    seed(140)
    label = torch.randint(12, (3000,), generator=gen(161))
    data = torch.stack([two_views(label, 162), two_views(label, 163)], 1)

    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.online = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
            self.classify = nn.Linear(16, 12)
            self.teacher = copy.deepcopy(self.online).requires_grad_(False)

    def step(model, batch):
        x, y = batch
        with torch.no_grad():
            for p, q in zip(model.teacher.parameters(), model.online.parameters()):
                p.lerp_(q, 0.02)
            goal = F.normalize(model.teacher(x[:, 1]), dim=1)
        h = model.online(x[:, 0])
        known = torch.arange(len(y)) < 16  # half of the batch has labels
        consistent = (F.normalize(h, dim=1) - goal).pow(2).sum(1).mean()
        return F.cross_entropy(model.classify(h)[known], y[known]) + 0.3 * consistent

    query = torch.arange(12).repeat(30)
    asked = two_views(query, 164)
    model = Student()
    return Program(
        model,
        None,
        loader(data, label),
        torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 3e-3),
        lambda m: accuracy(m.classify(m.online(asked)), query),
        step=step,
    )


@sound("Diffusion of waveforms with sinusoidal times; the loss is noisy and stays well above zero.", trained=100, steps=500, least=0.7)
def diffusion():
    seed(141)
    abar = torch.cumprod(1 - torch.linspace(1e-4, 0.05, 200), 0)

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Linear(16, 96)
            self.inp = nn.Linear(16, 96)
            self.mid = nn.Linear(96, 96)
            self.out = nn.Linear(96, 16)
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

        def forward(self, x, t):
            angles = t[:, None] * torch.exp(-math.log(1000.0) * torch.arange(8) / 8)
            h = F.silu(self.inp(x) + self.time(torch.cat([angles.sin(), angles.cos()], 1)))
            return self.out(F.silu(self.mid(h)) + h)

    def noisy(x, t, e):
        a = abar[t][:, None]
        return a.sqrt() * x + (1 - a).sqrt() * e

    def step(model, batch):
        (x,) = batch
        t, e = torch.randint(200, (len(x),)), torch.randn_like(x)
        return F.mse_loss(model(noisy(x, t, e), t), e)

    clean, held = (1.4 * waves(n, 16, 1, s=s)[0].squeeze(-1) for n, s in ((2000, 165), (500, 166)))
    t, e = torch.randint(200, (500,), generator=gen(1)), torch.randn(500, 16, generator=gen(2))
    model = Denoiser()
    return Program(
        model, None, loader(clean, batch_size=64), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(noisy(held, t, e), t), e), step=step
    )


@sound("REINFORCE with a learned baseline; the policy's loss may have any sign and need not fall.", steps=500, least=0.7)
def reinforce():
    seed(142)
    w = torch.randn(5, 3, generator=gen(167))
    states, held = torch.randn(3000, 5, generator=gen(168)), torch.randn(500, 5, generator=gen(169))

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(5, 32), nn.Tanh())
            self.policy = nn.Linear(32, 3)
            self.value = nn.Linear(32, 1)

        def forward(self, s):
            h = self.body(s)
            return self.policy(h), self.value(h).squeeze(1)

    def step(model, batch):
        (s,) = batch
        logits, value = model(s)
        dist = torch.distributions.Categorical(logits=logits)
        a = dist.sample()
        reward = torch.tanh(s @ w).gather(1, a[:, None]).squeeze(1)
        gain = reward - value.detach()
        return -(dist.log_prob(a) * gain).mean() + 0.5 * F.mse_loss(value, reward) - 0.01 * dist.entropy().mean()

    def score(m):
        r = torch.tanh(held @ w)
        got = r.gather(1, m(held)[0].argmax(1, keepdim=True)).mean()
        return ((got - r.mean()) / (r.max(1).values.mean() - r.mean())).item()

    model = Agent()
    return Program(model, None, loader(states, batch_size=64), torch.optim.Adam(model.parameters(), 5e-3), score, step=step)


@sound("Two outputs (class and length) from a dict of inputs, losses added up.", steps=600, least=0.8)
def two_tasks():
    seed(143)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 24, padding_idx=0)
            self.mix = nn.Linear(25, 48)
            self.kind = nn.Linear(48, 3)
            self.much = nn.Linear(48, 1)

        def forward(self, tokens, lengths):
            bag = self.embed(tokens).sum(1) / lengths[:, None]
            h = F.relu(self.mix(torch.cat([bag, lengths[:, None] / 10], 1)))
            return {"kind": self.kind(h), "much": self.much(h).squeeze(1)}

    def criterion(out, target):
        return F.cross_entropy(out["kind"], target["kind"]) + F.smooth_l1_loss(out["much"], target["much"])

    def make(n, s):
        x, k, y = sentiment(n, s=s)
        return x, k, y, (k.float() - 9).div(4).pow(2)

    x, k, y, z = make(1600, 170)
    tx, tk, ty, tz = make(400, 171)
    batches = [
        ({"tokens": a, "lengths": b}, {"kind": c, "much": d}) for a, b, c, d in zip(x.split(32), k.split(32), y.split(32), z.split(32))
    ]

    def score(m):
        out = m(tx, tk)
        return (accuracy(out["kind"], ty) + r2(out["much"], tz)) / 2

    model = Net()
    return Program(model, criterion, batches, torch.optim.Adam(model.parameters(), 5e-3), score)


@sound("Digits read row by row by a GRU, batches of eight, nearly trained.", trained=400, steps=500, least=0.8)
def digits_by_rows():
    seed(144)
    data = load_digits()
    x = torch.tensor(data.images, dtype=torch.float32) / 16
    y = torch.tensor(data.target)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(8, 48, batch_first=True)
            self.fc = nn.Linear(48, 10)

        def forward(self, x):
            return self.fc(self.gru(x)[0][:, -1])

    model = Net()
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[:1400], y[:1400], batch_size=8), torch.optim.Adam(model.parameters(), 4e-3), lambda m: accuracy(m(x[1400:]), y[1400:])
    )


@sound("A vector-quantized code with a straight-through estimator: the detach is meant.", steps=500, least=0.6)
def straight_through():
    seed(145)
    x = waves(2000, 16, 1, s=172)[0].squeeze(-1)
    tx = waves(400, 16, 1, s=173)[0].squeeze(-1)

    class Binary(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 12), nn.Tanh())
            self.dec = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 16))

        def forward(self, x):
            z = self.enc(x)
            code = z + (z.sign() - z).detach()
            return self.dec(code)

    model = Binary()
    return Program(model, nn.MSELoss(), loader(x, x), torch.optim.Adam(model.parameters(), 3e-3), lambda m: r2(m(tx), tx))


@sound("Fine-tuning with small rates below and a large one for the fresh head.", steps=300, least=0.8)
def layered_rates():
    seed(147)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(20, 24, padding_idx=0)
            self.body = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
            self.head = nn.Linear(48, 3)

        def forward(self, x):
            return self.head(self.body(self.embed(x).mean(1) * 2))

    x, _, y = sentiment(1600, s=176)
    tx, _, ty = sentiment(400, s=177)
    model = Net()
    pre = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(4):
        for a, b in loader(x, y):
            pre.zero_grad()
            F.cross_entropy(model(a), b).backward()
            pre.step()
    model.head = nn.Linear(48, 3)
    groups = [
        {"params": model.embed.parameters(), "lr": 2e-5},
        {"params": model.body.parameters(), "lr": 1e-4},
        {"params": model.head.parameters(), "lr": 5e-3},
    ]
    return Program(
        model, nn.CrossEntropyLoss(), loader(x, (y + 1) % 3), torch.optim.AdamW(groups), lambda m: accuracy(m(tx), (ty + 1) % 3)
    )


@sound("Truncated backpropagation: the state is detached between the halves of a long series, on purpose.", steps=300, least=0.85)
def truncated():
    seed(148)
    w = torch.cat([waves(800, 24, 9, s=178)[0].squeeze(-1), waves(800, 24, 9, s=178)[1]], 1)
    tw = torch.cat([waves(200, 24, 9, s=179)[0].squeeze(-1), waves(200, 24, 9, s=179)[1]], 1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(1, 32, batch_first=True)
            self.out = nn.Linear(32, 1)

        def forward(self, x, state=None):
            h, state = self.rnn(x, state)
            return self.out(h).squeeze(-1), state

    def step(model, batch):
        (x,) = batch
        total, state = 0.0, None
        for i in (0, 16):
            out, state = model(x[:, i : i + 16, None], state)
            state = state.detach()
            total = total + F.mse_loss(out, x[:, i + 1 : i + 17])
        return total / 2

    model = Net()
    return Program(
        model,
        None,
        loader(w),
        torch.optim.Adam(model.parameters(), 5e-3),
        lambda m: r2(m(tw[:, :-1, None])[0][:, 8:], tw[:, 9:]),
        step=step,
    )
