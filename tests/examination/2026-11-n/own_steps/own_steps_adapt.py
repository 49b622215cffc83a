"""Adapters, experts, precision, inner steps and the rest."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset


def r2(prediction, goal):
    return (1 - (prediction.float() - goal).pow(2).mean() / (goal - goal.mean(0)).pow(2).mean()).item()


def two_places(n, dim, classes, seed, spread=0.8):
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(2 * classes, dim, generator=g)
    which = torch.randint(2 * classes, (n,), generator=g)
    return centres[which] + spread * torch.randn(n, dim, generator=g), which % classes


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int, alpha: float, zero_a: bool):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        if zero_a:
            nn.init.zeros_(self.lora_a)
        else:
            nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)


def adapted(seed, zero_a, rank=4):
    """A frozen network with adapters, and data of the same network with other weights of low rank added."""
    g = torch.Generator().manual_seed(seed)
    first, second = nn.Linear(12, 48), nn.Linear(48, 3)
    with torch.no_grad():
        for p in (first.weight, first.bias, second.weight, second.bias):
            p.copy_(torch.randn(p.shape, generator=g) / p.shape[-1] ** 0.5 * (1 if p.ndim == 2 else 0.3))
        x = torch.randn(2048, 12, generator=g)
        shift = torch.randn(48, 2, generator=g) @ torch.randn(2, 12, generator=g) * 0.6
        y = torch.tanh(x @ (first.weight + shift).T + first.bias) @ second.weight.T + second.bias
    model = nn.Sequential(LoRALinear(first, rank, 8, zero_a), nn.Tanh(), LoRALinear(second, rank, 8, zero_a))
    return model, x, y


def adapter_program(model, x, y, lr=5e-3):
    batches = [{"x": x[i : i + 64], "y": y[i : i + 64]} for i in range(0, 1536, 64)]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr, weight_decay=0.0)
    return Program(
        model,
        None,
        batches,
        optimizer,
        lambda m: r2(m(x[1536:]), y[1536:]),
        step=lambda model, batch: F.mse_loss(model(batch["x"]), batch["y"]),
    )


@fault(
    "Both factors of every adapter start at 0, so that neither gets a gradient.",
    rules=["bad-initialisation", "symmetric-initialisation", "no-gradient", "loss-not-decreasing"],
    layers=["0", "2"],
    fails=True,
    steps=400,
)
def lora_both_factors_zero(is_faulty: bool) -> Program:
    return adapter_program(*adapted(4, is_faulty))


@sound("One factor of every adapter starts at 0, most weights are frozen.", steps=500, least=0.6)
def lora_ordinary() -> Program:
    return adapter_program(*adapted(6, False), lr=8e-3)


def sine_tasks(n, seed, shots=10):
    g = torch.Generator().manual_seed(seed)
    amplitude = 0.5 + 2 * torch.rand(n, 1, 1, generator=g)
    sign = torch.where(torch.rand(n, 1, 1, generator=g) < 0.5, -1.0, 1.0)
    x = 4 * torch.rand(n, 2 * shots, 1, generator=g) - 2
    y = sign * amplitude * torch.sin(2 * x)
    return {"xs": x[:, :shots], "ys": y[:, :shots], "xq": x[:, shots:], "yq": y[:, shots:]}


def adapt(model, weights, x, y, lr, is_detached, create_graph):
    error = F.mse_loss(functional_call(model, weights, (x,)), y)
    grads = torch.autograd.grad(error, list(weights.values()), create_graph=create_graph)
    if is_detached:
        return {k: (w.data - lr * d.data).requires_grad_() for (k, w), d in zip(weights.items(), grads, strict=True)}
    return {k: w - lr * d for (k, w), d in zip(weights.items(), grads, strict=True)}


@fault(
    "Adapted weights are made from .data, so that the outer loss never reaches the weights it is to train.",
    rules=["no-gradient", "loss-not-decreasing"],
    fails=True,
    steps=500,
)
def maml_fast_weights_detached(is_faulty: bool) -> Program:
    net = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    tasks = sine_tasks(160, 1)
    batches = [{k: v[i : i + 4] for k, v in tasks.items()} for i in range(0, 160, 4)]
    held = sine_tasks(40, 2)

    def step(model, batch):
        total = 0.0
        for xs, ys, xq, yq in zip(batch["xs"], batch["ys"], batch["xq"], batch["yq"], strict=True):
            fast = adapt(model, dict(model.named_parameters()), xs, ys, 0.1, is_faulty, True)
            total = total + F.mse_loss(functional_call(model, fast, (xq,)), yq)
        return total / len(batch["xs"])

    def score(m):
        out = []
        with torch.enable_grad():
            for xs, ys, xq in zip(held["xs"], held["ys"], held["xq"], strict=True):
                fast = adapt(m, dict(m.named_parameters()), xs, ys, 0.1, True, False)
                out.append(functional_call(m, fast, (xq,)).detach())
        return 1 - ((torch.stack(out) - held["yq"]).pow(2).mean() / held["yq"].pow(2).mean()).item()

    return Program(net, None, batches, torch.optim.Adam(net.parameters(), lr=3e-3), score, step=step)


class Experts(nn.Module):
    def __init__(self, dim, out, count, is_copied):
        super().__init__()
        self.gate = nn.Linear(dim, count)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)
        first = nn.Linear(dim, out)
        self.experts = nn.ModuleList(
            copy.deepcopy(first) if is_copied else nn.Linear(dim, out) for _ in range(count)
        )

    def forward(self, x):
        weight = self.gate(x).softmax(-1)
        return torch.stack([expert(x) for expert in self.experts], -1).mul(weight[:, None]).sum(-1)


def pieces(n, seed, dim=6, out=2, parts=4):
    g = torch.Generator().manual_seed(seed)
    centres = F.normalize(torch.randn(parts, dim, generator=g), dim=1) * 2
    maps = torch.randn(parts, dim, out, generator=g)
    x = torch.randn(n, dim, generator=g)
    part = (x @ centres.T).argmax(1)
    y = torch.einsum("nd,ndo->no", x, maps[part])
    return x, (y - y.mean(0)) / y.std(0)


@fault(
    "All experts are deep copies of one, behind a gate that starts at 0: they stay the same for ever.",
    rules=["symmetric-initialisation"],
    layers=["experts", "gate"],
    fails=False,
    steps=600,
)
def experts_deepcopied(is_faulty: bool) -> Program:
    x, y = pieces(3072, 4)
    model = Experts(6, 2, 6, is_faulty)
    loader = DataLoader(TensorDataset(x[:2560], y[:2560]), 64, shuffle=True, generator=torch.Generator().manual_seed(0))

    def step(model, batch):
        v, goal = batch
        usage = model.gate(v).softmax(-1).mean(0)
        return F.mse_loss(model(v), goal) + 0.01 * (usage * usage.log()).sum()

    return Program(
        model,
        None,
        loader,
        torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
        lambda m: r2(m(x[2560:]), y[2560:]),
        step=step,
    )


class TopOne(nn.Module):
    def __init__(self, dim, out, count=6):
        super().__init__()
        self.router = nn.Linear(dim, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, out)) for _ in range(count)
        )

    def forward(self, x):
        probability = self.router(x).softmax(-1)
        best, index = probability.max(-1)
        out = torch.zeros(len(x), 2)
        for i, expert in enumerate(self.experts):
            rows = (index == i).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * best[rows, None])
        return out, probability, index


@sound("Experts that see a part of the batch, or none of it, and then get no gradient.", steps=500, least=0.75)
def switch_experts() -> Program:
    x, y = pieces(3072, 5)
    model = TopOne(6, 2)
    loader = DataLoader(TensorDataset(x[:2560], y[:2560]), 128, shuffle=True, generator=torch.Generator().manual_seed(0))

    def step(model, batch):
        v, goal = batch
        out, probability, index = model(v)
        share = F.one_hot(index, 6).float().mean(0)
        return F.mse_loss(out, goal) + 0.01 * 6 * (share * probability.mean(0)).sum()

    return Program(
        model, None, loader, torch.optim.Adam(model.parameters(), lr=5e-3), lambda m: r2(m(x[2560:])[0], y[2560:]), step=step
    )


def smooth(n, seed, dim=6):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=g)
    w = torch.randn(dim, 3, generator=g)
    return x, torch.tanh(x @ w[:, :1] * 0.6) + (x @ w[:, 1:2] / 3).sin() + 0.3 * x @ w[:, 2:] / 2


def half_program(seed, is_cast, optimizer, width=64):
    x, y = smooth(2048, seed)
    y = (y - y.mean()) / y.std()
    model = nn.Sequential(nn.Linear(6, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
    if is_cast:
        model = model.to(torch.bfloat16)
    batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, 1536, 64)]

    def step(model, batch):
        v, goal = batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(v)
        return F.mse_loss(out.float(), goal)

    def score(m):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return r2(m(x[1536:]), y[1536:])

    return Program(model, None, batches, optimizer(model.parameters()), score, step=step)


@fault(
    "The weights themselves are cast to bfloat16 (on top of autocast), and small steps round to nothing.",
    rules=["lost-updates", "rounding-error"],
    fails=False,
    steps=600,
)
def weights_cast_to_bfloat16(is_faulty: bool) -> Program:
    return half_program(3, is_faulty, lambda ps: torch.optim.Adam(ps, lr=1.2e-4))


@sound("bfloat16 by autocast, with weights in float32, and SGD with Nesterov's momentum.", steps=400, least=0.8)
def autocast_bfloat16() -> Program:
    return half_program(4, False, lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True))


class Clock(nn.Module):
    """Sines and cosines of the hour."""

    def __init__(self, is_half):
        super().__init__()
        periods = torch.tensor([6.0, 12.0, 24.0, 48.0, 168.0, 720.0, 8760.0])
        self.register_buffer("frequency", 2 * math.pi / periods)
        self.is_half = is_half

    def forward(self, hours):
        if self.is_half:
            phase = hours[:, None].to(torch.bfloat16) * self.frequency.to(torch.bfloat16)
        else:
            phase = hours[:, None].float() * self.frequency
        return torch.cat([phase.sin(), phase.cos()], 1)


class Demand(nn.Module):
    def __init__(self, is_half):
        super().__init__()
        self.time = Clock(is_half)
        self.net = nn.Sequential(nn.Linear(15, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, hours, temperature):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = self.net(torch.cat([self.time(hours), temperature[:, None]], 1))
        return out.float().squeeze(-1)


@fault(
    "The hour since the start, up to 8760, is cast to bfloat16 before the sines are taken of it.",
    rules=["rounding-error"],
    layers=["time"],
    fails=True,
    steps=400,
)
def hours_in_bfloat16(is_faulty: bool) -> Program:
    g = torch.Generator().manual_seed(8)
    hours = torch.randint(0, 8760, (2048,), generator=g)
    warm = torch.randn(2048, generator=g)
    angle = 2 * math.pi * hours / 24
    y = angle.sin() + 0.6 * (2 * angle).cos() + 0.3 * (angle.cos() * warm) + 0.1 * warm
    batches = [
        {"hours": hours[i : i + 64], "temperature": warm[i : i + 64], "load": y[i : i + 64]} for i in range(0, 1536, 64)
    ]
    model = Demand(is_faulty)

    def step(model, batch):
        return F.mse_loss(model(batch["hours"], batch["temperature"]), batch["load"])

    return Program(
        model,
        None,
        batches,
        torch.optim.Adam(model.parameters(), lr=2e-3),
        lambda m: r2(m(hours[1536:], warm[1536:]), y[1536:]),
        step=step,
    )


@fault(
    "A loop that sets all 1-dimensional parameters to 0, meant for biases, also takes the gains of the LayerNorms.",
    rules=["bad-initialisation", "rank-collapse", "dying-neurons", "no-gradient", "loss-not-decreasing"],
    layers=["1", "4"],
    fails=True,
    steps=300,
)
def gains_zeroed_with_biases(is_faulty: bool) -> Program:
    g = torch.Generator().manual_seed(3)
    x = torch.tanh(torch.randn(2048, 3, generator=g) @ torch.randn(3, 12, generator=g))
    net = nn.Sequential(
        nn.Linear(12, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 12)
    )
    for name, p in net.named_parameters():
        if p.ndim > 1:
            nn.init.kaiming_normal_(p)
        elif is_faulty or name.endswith("bias"):
            nn.init.zeros_(p)
    loader = DataLoader(TensorDataset(x[:1536]), 64, shuffle=True, generator=torch.Generator().manual_seed(0))

    def step(model, batch):
        (clean,) = batch
        dropped = clean * (torch.rand_like(clean) > 0.25)
        return F.mse_loss(model(dropped + 0.05 * torch.randn_like(clean)), clean)

    hidden = torch.rand(512, 12, generator=g) > 0.25
    return Program(
        net,
        None,
        loader,
        torch.optim.Adam(net.parameters(), lr=2e-3),
        lambda m: r2(m(x[1536:] * hidden), x[1536:]),
        step=step,
    )


class Tabular(nn.Module):
    def __init__(self):
        super().__init__()
        self.city = nn.Embedding(12, 6)
        self.body = nn.Sequential(nn.Linear(14, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, numeric, city):
        return self.body(torch.cat([numeric, self.city(city)], -1))


def tabular(seed):
    x, y = two_places(2048, 8, 3, seed)
    g = torch.Generator().manual_seed(seed + 1)
    city = torch.randint(12, (2048,), generator=g)
    y = (y + city % 3) % 3
    batches = [({"numeric": x[i : i + 64], "city": city[i : i + 64]}, y[i : i + 64]) for i in range(0, 1536, 64)]
    return batches, lambda m: (m(x[1536:], city[1536:]).argmax(1) == y[1536:]).float().mean().item()


@fault(
    "The function given to LambdaLR returns the rate itself instead of a factor of it.",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=500,
)
def lambda_returns_rate(is_faulty: bool) -> Program:
    batches, score = tabular(5)
    model = Tabular()
    rate = 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    def factor(n):
        warm = min(1.0, (n + 1) / 20)
        return rate * warm if is_faulty else warm

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return Program(model, nn.CrossEntropyLoss(), batches, optimizer, score, scheduler=scheduler)


class Pooled(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Linear(6, 24)
        self.scorer = nn.Sequential(nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))
        self.classifier = nn.Linear(24, 1)
        self.dim = dim

    def forward(self, bag):
        h = self.embed(bag)
        attention = torch.softmax(self.scorer(h), dim=self.dim)
        return self.classifier((attention * h).sum(1)).squeeze(-1)


@fault(
    "Attention pooling takes the softmax of scores (B, N, 1) over the last dimension: every weight is 1.",
    rules=["wrong-softmax-dimension", "no-gradient"],
    layers=["scorer"],
    fails=True,
    steps=500,
)
def bag_attention_last_dimension(is_faulty: bool) -> Program:
    g = torch.Generator().manual_seed(6)
    bags = torch.randn(2048, 16, 6, generator=g)
    bags[..., 0] = -0.5 + 0.2 * torch.randn(2048, 16, generator=g)
    key = torch.randint(16, (2048,), generator=g)
    rows = torch.arange(2048)
    bags[rows, key, 0] = 3.0
    y = (bags[rows, key, 1] + bags[rows, key, 2] > 0).float()
    model = Pooled(-1 if is_faulty else 1)
    batches = [{"bag": bags[i : i + 64], "label": y[i : i + 64]} for i in range(0, 1536, 64)]

    def step(model, batch):
        return F.binary_cross_entropy_with_logits(model(batch["bag"]), batch["label"])

    return Program(
        model,
        None,
        batches,
        torch.optim.Adam(model.parameters(), lr=3e-3),
        lambda m: ((m(bags[1536:]) > 0).float() == y[1536:]).float().mean().item(),
        step=step,
    )


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
        self.kind = nn.Linear(64, 3)
        self.size = nn.Linear(64, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.kind(h), self.size(h).squeeze(-1)


@fault(
    "The last batch of an epoch holds one example, on which BatchNorm raises.",
    rules=["model-fails", "small-batch-batchnorm"],
    fails=True,
    steps=300,
)
def last_batch_of_one(is_faulty: bool) -> Program:
    x, y = two_places(705, 8, 3, 12, spread=0.7)
    size = x[:, 0] - x[:, 1]
    data = TensorDataset(x[:193], y[:193], size[:193])
    loader = DataLoader(data, 32, shuffle=True, drop_last=not is_faulty, generator=torch.Generator().manual_seed(0))
    model = Heads()

    def step(model, batch):
        v, kind, goal = batch
        logits, guess = model(v)
        return F.cross_entropy(logits, kind) + 0.5 * F.mse_loss(guess, goal)

    return Program(
        model,
        None,
        loader,
        torch.optim.Adam(model.parameters(), lr=3e-4),
        lambda m: (m(x[193:])[0].argmax(1) == y[193:]).float().mean().item(),
        step=step,
    )


@sound("Second derivatives by autograd inside the step, and a term for the boundary far larger than the others.", steps=600, least=0.9)
def pinn_poisson() -> Program:
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    g = torch.Generator().manual_seed(0)
    batches = [{"inside": 2 * torch.rand(64, 1, generator=g) - 1, "edge": torch.tensor([[-1.0], [1.0]])} for _ in range(50)]

    def step(model, batch):
        x = batch["inside"].clone().requires_grad_()
        u = model(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
        residual = ddu + math.pi**2 * torch.sin(math.pi * x)
        return residual.pow(2).mean() + 20 * model(batch["edge"]).pow(2).mean()

    grid = torch.linspace(-1, 1, 101)[:, None]
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    return Program(
        net,
        None,
        batches,
        optimizer,
        lambda m: r2(m(grid), torch.sin(math.pi * grid)),
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997),
        step=step,
    )


class Uncertain(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.mean, self.logvar = nn.Linear(64, 1), nn.Linear(64, 1)

    def forward(self, x):
        h = self.net(x)
        return {"mean": self.mean(h), "logvar": self.logvar(h)}


@sound("Fully trained with a likelihood below 0, at a rate that a schedule has brought near 0.", steps=500, trained=500, least=0.85)
def likelihood_trained() -> Program:
    x, y = smooth(2048, 9)
    y = y + 0.05 * torch.randn(2048, 1, generator=torch.Generator().manual_seed(1))
    model = Uncertain()
    batches = [({"x": x[i : i + 64]}, y[i : i + 64]) for i in range(0, 1536, 64)]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def loss(out, goal):
        return F.gaussian_nll_loss(out["mean"], goal, out["logvar"].clamp(-8, 4).exp())

    return Program(
        model,
        loss,
        batches,
        optimizer,
        lambda m: r2(m(x[1536:])["mean"], y[1536:]),
        scheduler=torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda n: max(0.02, 0.5 + 0.5 * math.cos(math.pi * min(n, 500) / 500))
        ),
    )
