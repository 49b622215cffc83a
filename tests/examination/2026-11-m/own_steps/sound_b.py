"""Sound programs: several losses, adapters, experts, physics, inner steps, precision."""

import math

import torch
import torch.nn.functional as F
from common import accuracy, clusters, g, loader, manifold, mlp, r2, records
from program import Program, sound
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader


@sound("Distillation with soft and hard labels, SGD with Nesterov momentum and a cosine", steps=400, least=0.9)
def soft_and_hard():
    x, y = clusters(2560, seed=61)
    teacher = mlp(16, 128, 6)
    first = torch.optim.Adam(teacher.parameters(), 1e-2)
    for _ in range(120):
        first.zero_grad()
        F.cross_entropy(teacher(x[:2048]), y[:2048]).backward()
        first.step()
    teacher.eval().requires_grad_(False)
    student = mlp(16, 32, 32, 6)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)

    def step(model, batch, T=4.0):
        x, y = batch
        with torch.no_grad():
            goal = teacher(x).div(T).softmax(-1)
        logits = model(x)
        soft = F.kl_div(F.log_softmax(logits / T, -1), goal, reduction="batchmean") * T * T
        return 0.7 * soft + 0.3 * F.cross_entropy(logits, y)

    return Program(
        student,
        None,
        loader(x[:2048], y[:2048]),
        optimizer,
        lambda m: accuracy(m(x[2048:]), y[2048:]),
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400),
        step=step,
    )


class Denoiser(nn.Module):
    def __init__(self, dim=8, embed=32):
        super().__init__()
        self.register_buffer("freq", torch.exp(-math.log(10000.0) * torch.arange(embed // 2) / (embed // 2)))
        self.time = nn.Sequential(nn.Linear(embed, 64), nn.SiLU(), nn.Linear(64, 64))
        self.inp, self.mid, self.out = nn.Linear(dim, 64), nn.Linear(64, 64), nn.Linear(64, dim)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x, t):
        p = t[:, None] * self.freq
        e = self.time(torch.cat([p.sin(), p.cos()], 1))
        h = F.silu(self.inp(x) + e)
        return self.out(h + F.silu(self.mid(h) + e))


@sound(
    "Diffusion: the network starts by returning zeros, its loss depends on drawn noise and never comes near 0",
    steps=500,
    least=0.6,
)
def noise_from_zero():
    def sample(n, seed):
        gen = g(seed)
        p = torch.rand(n, 1, generator=gen) * 2 * math.pi * torch.arange(1, 5)
        return torch.cat([p.cos(), p.sin()], 1) * 1.4

    x, held = sample(2048, 1), sample(512, 2)
    bars = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)
    net = Denoiser()

    def noised(x, t, eps):
        ab = bars[t][:, None]
        return ab.sqrt() * x + (1 - ab).sqrt() * eps

    def step(model, batch):
        (x,) = batch
        t, eps = torch.randint(0, 1000, (len(x),)), torch.randn_like(x)
        return F.mse_loss(model(noised(x, t, eps), t.float()), eps)

    def score(m):
        t, eps = torch.randint(0, 1000, (512,), generator=g(3)), torch.randn(512, 8, generator=g(4))
        return r2(m(noised(held, t, eps), t.float()), eps)

    return Program(net, None, loader(x, size=128), torch.optim.AdamW(net.parameters(), 3e-3), score, step=step)


class ThreeHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 96), nn.LayerNorm(96), nn.GELU(), nn.Dropout(0.1), nn.Linear(96, 96), nn.GELU())
        self.kind, self.size, self.flag = nn.Linear(96, 6), nn.Linear(96, 1), nn.Linear(96, 1)

    def forward(self, x):
        h = self.body(x)
        return {"kind": self.kind(h), "size": self.size(h)[:, 0], "flag": self.flag(h)[:, 0]}


@sound("Three heads on dict batches, groups with and without weight decay, one cycle of the rate", steps=400, least=0.85)
def three_heads():
    x, y = clusters(2560, seed=62)
    size = torch.sin(x[:, 0]) + 0.5 * x[:, 1]
    flag = (x[:, 2] * x[:, 3] > 0).float()
    net = ThreeHeads()
    decay = [p for p in net.parameters() if p.ndim > 1]
    rest = [p for p in net.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=1e-3)

    def loss(out, goal):
        return (
            F.cross_entropy(out["kind"], goal["kind"])
            + 0.5 * F.smooth_l1_loss(out["size"], goal["size"])
            + 0.5 * F.binary_cross_entropy_with_logits(out["flag"], goal["flag"])
        )

    return Program(
        net,
        loss,
        DataLoader(
            [({"x": x[i]}, {"kind": y[i], "size": size[i], "flag": flag[i]}) for i in range(2048)],
            batch_size=64,
            shuffle=True,
        ),
        optimizer,
        lambda m: accuracy(m(x[2048:])["kind"], y[2048:]),
        scheduler=torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=1000),
    )


class Lora(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@sound(
    "LoRA on a trained and frozen network: half of each adapter is zero, so that the other half gets no gradient at first",
    steps=400,
    least=0.8,
)
def adapters():
    x, y = clusters(2560, seed=63)
    net = mlp(16, 96, 96, 6)
    first = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(100):
        first.zero_grad()
        F.cross_entropy(net(x[:2048]), y[:2048]).backward()
        first.step()
    for i in (0, 2, 4):
        net[i] = Lora(net[i])
    new = (y + 1) % 6
    turned = x.flip(1)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 5e-3)

    def step(model, batch):
        return F.cross_entropy(model(batch["x"]), batch["y"], label_smoothing=0.05)

    return Program(
        net,
        None,
        records(x=turned[:2048], y=new[:2048]),
        optimizer,
        lambda m: accuracy(m(turned[2048:]), new[2048:]),
        step=step,
    )


@sound(
    "PINN: no targets, one input, a loss of derivatives and boundary terms of very different size",
    steps=600,
    least=0.75,
)
def oscillator():
    t = 4 * torch.rand(2048, 1, generator=g(1))
    net = mlp(1, 48, 48, 1, act=nn.Tanh)
    grid = torch.linspace(0, 4, 200)[:, None]

    def solution(t):
        w = math.sqrt(4 - 0.09)
        return torch.exp(-0.3 * t) * (torch.cos(w * t) + 0.3 / w * torch.sin(w * t))

    def step(model, batch):
        t = batch[0].detach().requires_grad_(True)
        u = model(t)
        (v,) = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)
        (a,) = torch.autograd.grad(v, t, torch.ones_like(v), create_graph=True)
        zero = torch.zeros(1, 1, requires_grad=True)
        u0 = model(zero)
        (v0,) = torch.autograd.grad(u0, zero, torch.ones_like(u0), create_graph=True)
        return (a + 0.6 * v + 4 * u).pow(2).mean() + 20 * ((u0 - 1) ** 2).mean() + 5 * v0.pow(2).mean()

    return Program(
        net, None, loader(t), torch.optim.Adam(net.parameters(), 5e-3), lambda m: r2(m(grid), solution(grid)), step=step
    )


class ReZero(nn.Module):
    def __init__(self, depth=10, width=32):
        super().__init__()
        self.inp, self.out = nn.Linear(16, width), nn.Linear(width, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(depth)
        )
        self.alpha = nn.Parameter(torch.zeros(depth))

    def forward(self, x):
        h = self.inp(x)
        for a, block in zip(self.alpha, self.blocks):
            h = h + a * block(h)
        return self.out(h)


@sound(
    "ReZero in bfloat16 autocast: every block is multiplied by 0 at first, so that the network is linear and blocks get nothing",
    steps=400,
    least=0.85,
)
def silent_blocks():
    x, y = clusters(2560, seed=64)
    net = ReZero()

    def step(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(batch["x"])
            return F.cross_entropy(logits, batch["y"])

    return Program(
        net,
        None,
        records(x=x[:2048], y=y[:2048], size=48),
        torch.optim.Adam(net.parameters(), 2e-3),
        lambda m: accuracy(m(x[2048:]), y[2048:]),
        step=step,
    )


@sound(
    "MAML on sines: the loss comes after an inner step on copies of the weights, and the network alone predicts little",
    steps=600,
    least=0.6,
)
def inner_steps():
    def tasks(n, seed):
        gen = g(seed)
        amp = 0.5 + 1.5 * torch.rand(n, 1, 1, generator=gen)
        sign = torch.randn(n, 1, 1, generator=gen).sign()
        x = 6 * torch.rand(n, 24, 1, generator=gen) - 3
        return x, amp * sign * torch.sin(1.3 * x)

    net = mlp(1, 40, 40, 1, act=nn.Tanh)

    def adapted(model, x, y, steps=2, rate=0.1):
        fast = dict(model.named_parameters())
        with torch.enable_grad():
            for _ in range(steps):
                inner = F.mse_loss(functional_call(model, fast, (x,)), y)
                slopes = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
                fast = {k: p - rate * s for (k, p), s in zip(fast.items(), slopes)}
        return fast

    def step(model, batch):
        total = 0.0
        for x, y in zip(*batch):
            fast = adapted(model, x[:12], y[:12])
            total = total + F.mse_loss(functional_call(model, fast, (x[12:],)), y[12:])
        return total / len(batch[0])

    x, y = tasks(512, 1)
    hx, hy = tasks(64, 2)

    def score(model):
        outs = [functional_call(model, adapted(model, a[:12], b[:12]), (a[12:],)) for a, b in zip(hx, hy)]
        return r2(torch.stack(outs).detach().flatten(), hy[:, 12:].flatten())

    return Program(net, None, loader(x, y, size=4), torch.optim.Adam(net.parameters(), 3e-3), score, step=step)


class Switch(nn.Module):
    def __init__(self, experts=4):
        super().__init__()
        self.router = nn.Linear(4, experts)
        self.experts = nn.ModuleList(mlp(4, 64, 2) for _ in range(experts))

    def forward(self, x):
        p = self.router(x).softmax(1)
        top, which = p.max(1)
        out = x.new_zeros(len(x), 2)
        for i, expert in enumerate(self.experts):
            mine = which == i
            if mine.any():
                out[mine] = top[mine, None] * expert(x[mine])
        used = F.one_hot(which, len(self.experts)).float().mean(0)
        return out, len(self.experts) * (used * p.mean(0)).sum()


@sound(
    "Switch routing: each example reaches one expert alone, chosen by a maximum, with a loss for balance; half trained",
    trained=150,
    steps=500,
    least=0.75,
)
def switch_routing():
    gen, world = g(71), g(72)
    x = torch.randn(2560, 4, generator=gen)
    maps = torch.randn(4, 4, 2, generator=world)
    y = torch.einsum("bi,bij->bj", x, maps[(x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()])
    net = Switch()

    def step(model, batch):
        out, balance = model(batch[0])
        return F.mse_loss(out, batch[1]) + 0.01 * balance

    return Program(
        net,
        None,
        loader(x[:2048], y[:2048]),
        torch.optim.Adam(net.parameters(), 5e-3),
        lambda m: r2(m(x[2048:])[0], y[2048:]),
        step=step,
    )


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(16, 64, 64)
        self.heads = nn.ModuleDict({"kind": nn.Linear(64, 6), "parity": nn.Linear(64, 2)})

    def forward(self, x, task):
        return self.heads[task](F.relu(self.body(x)))


class Turns:
    """Batches of one task each, in turns."""

    def __init__(self, **tasks):
        self.tasks = tasks

    def __iter__(self):
        names = list(self.tasks)
        for parts in zip(*self.tasks.values()):
            for name, (x, y) in zip(names, parts):
                yield {"task": name, "x": x, "y": y}

    def __len__(self):
        return sum(len(batches) for batches in self.tasks.values())


@sound(
    "Two tasks in turns: each batch is of one task, and the head of the other gets no gradient from it",
    steps=500,
    least=0.9,
)
def tasks_in_turns():
    x, y = clusters(2560, seed=65)
    net = Tasks()

    def step(model, batch):
        return F.cross_entropy(model(batch["x"], batch["task"]), batch["y"])

    def score(m):
        return (
            accuracy(m(x[2048:], "kind"), y[2048:]) + accuracy(m(x[2048:], "parity"), (y[2048:] % 2))
        ) / 2

    batches = Turns(kind=loader(x[:2048], y[:2048]), parity=loader(x[:2048], y[:2048] % 2))
    return Program(net, None, batches, torch.optim.RMSprop(net.parameters(), 1e-3), score, step=step)


@sound(
    "A mean over masked features only, a warm-up that begins at a rate of exactly 0, examined at its start",
    steps=500,
    least=0.8,
)
def masked_features():
    x, held = manifold(3072, seed=81) * 2, manifold(512, seed=82) * 2
    hidden = torch.rand(512, 24, generator=g(83)) < 0.3
    net = mlp(48, 128, 128, 24, act=nn.GELU)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)

    def step(model, batch):
        x = batch["x"]
        mask = torch.rand_like(x) < 0.3
        out = model(torch.cat([x.masked_fill(mask, 0.0), mask.float()], 1))
        return ((out - x).pow(2) * mask).sum() / mask.sum()

    def score(m):
        out = m(torch.cat([held.masked_fill(hidden, 0.0), hidden.float()], 1))
        return r2(out[hidden], held[hidden])

    return Program(
        net,
        None,
        records(x=x),
        optimizer,
        score,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, i / 60)),
        step=step,
    )


@sound(
    "Two networks that pick each other's examples of small loss, as 40% of the labels are drawn at random; trained",
    trained=300,
    steps=500,
    least=0.85,
)
def co_teaching():
    x, y = clusters(2560, seed=66)
    gen = g(67)
    told = torch.where(torch.rand(2048, generator=gen) < 0.4, torch.randint(0, 6, (2048,), generator=gen), y[:2048])
    net = nn.ModuleDict({"one": mlp(16, 64, 64, 6), "two": mlp(16, 64, 64, 6)})

    def step(model, batch):
        x, y = batch["x"], batch["y"]
        a = F.cross_entropy(model["one"](x), y, reduction="none")
        b = F.cross_entropy(model["two"](x), y, reduction="none")
        keep = int(0.8 * len(y))
        return a[b.argsort()[:keep]].mean() + b[a.argsort()[:keep]].mean()

    return Program(
        net,
        None,
        records(x=x[:2048], y=told),
        torch.optim.Adam(net.parameters(), 1e-3),
        lambda m: accuracy(m["one"](x[2048:]).softmax(-1) + m["two"](x[2048:]).softmax(-1), y[2048:]),
        step=step,
    )
