"""Faults of models, optimizers and schedules."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from program import Program, fault
from ti_common import accuracy, blobs, loader, mlp, r2, rng, shapes
from torch import nn


class Backbone(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU())
        self.fc = nn.Linear(48, classes)

    def forward(self, x):
        return self.fc(self.features(x))


@fault(
    "the optimizer is made before the last layer is replaced by one for the new classes, so that it holds the old one",
    rules=["no-gradient"],
    layers=["fc"],
    fails=True,
    steps=300,
)
def head_replaced_after_optimizer(is_faulty: bool) -> Program:
    x, y = blobs(2400, 4, 12, 201, spread=0.8)
    model = Backbone(20)
    for p in model.features.parameters():
        p.requires_grad = False
    if is_faulty:
        optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=5e-3)
        model.fc = nn.Linear(48, 4)
    else:
        model.fc = nn.Linear(48, 4)
        optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=5e-3)
    return Program(
        model, F.cross_entropy, loader(x[:2000], y[:2000]), optimizer, lambda m: accuracy(m(x[2000:]), y[2000:])
    )


class PatchBlock(nn.Module):
    def __init__(self, dim, heads, batch_first):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=batch_first)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        h = self.norm1(x)
        x = x + self.attn(h, h, h, need_weights=False)[0]
        return x + self.ff(self.norm2(x))


class PatchNet(nn.Module):
    """A small ViT over the pixels around one, which is the one to classify."""

    def __init__(self, patches, size, classes, batch_first=True, dim=32, depth=2):
        super().__init__()
        self.embed = nn.Linear(size, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(1, patches, dim))
        self.blocks = nn.ModuleList(PatchBlock(dim, 4, batch_first) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.embed(x) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, x.shape[1] // 2]))


def patch_data(n, seed):
    g = rng(seed)
    y = torch.randint(4, (n,), generator=g)
    prototypes = torch.randn(4, 8, generator=rng(999)) * 1.5
    x = 0.7 * torch.randn(n, 9, 8, generator=g)
    for j in range(3):
        where = torch.tensor([0, 1, 2, 3, 5, 6, 7, 8])[torch.randint(8, (n,), generator=g)]
        x[torch.arange(n), where] += prototypes[y]
    return x, y


@fault(
    "nn.MultiheadAttention without batch_first=True is given (batch, patches, dim), and attends over the batch",
    rules=["mixed-examples"],
    layers=["blocks"],
    fails=True,
    steps=300,
)
def vit_attends_over_batch(is_faulty: bool) -> Program:
    x, y = patch_data(2400, 211)
    model = PatchNet(9, 8, 4, batch_first=not is_faulty)
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:2000], y[:2000], batch=32),
        torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01),
        lambda m: accuracy(m(x[2000:]), y[2000:]),
    )


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank, is_zero):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.zeros(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        if not is_zero:
            nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        return self.base(x) + 2.0 * (x @ self.lora_A.T) @ self.lora_B.T


@fault(
    "both factors of the low-rank adapters of a frozen network start at zero, so neither gets a gradient",
    rules=["bad-initialisation", "no-gradient", "symmetric-initialisation", "vanishing-gradient", "loss-not-decreasing"],
    layers=["0", "2", "4"],
    fails=True,
    steps=400,
)
def adapters_zero_times_zero(is_faulty: bool) -> Program:
    x, y = blobs(2400, 4, 12, 231, spread=0.8)
    model = nn.Sequential(
        LoRALinear(nn.Linear(12, 64), 8, is_faulty),
        nn.ReLU(),
        LoRALinear(nn.Linear(64, 64), 8, is_faulty),
        nn.ReLU(),
        LoRALinear(nn.Linear(64, 4), 8, is_faulty),
    )
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:2000], y[:2000]),
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3),
        lambda m: accuracy(m(x[2000:]), y[2000:]),
    )


@fault(
    "what was meant as a weight decay is the fourth argument of Adam, which is its epsilon",
    rules=["optimizer-setting", "learning-rate-too-low"],
    fails=False,
    steps=400,
)
def fourth_argument_of_adam(is_faulty: bool) -> Program:
    x, y = blobs(2400, 5, 16, 241, spread=1.0)
    model = mlp(16, 64, 64, 64, 5)
    if is_faulty:
        optimizer = torch.optim.Adam(model.parameters(), 5e-4, (0.9, 0.999), 0.1)
    else:
        optimizer = torch.optim.Adam(model.parameters(), 5e-4, (0.9, 0.999), weight_decay=1e-4)
    return Program(
        model, nn.CrossEntropyLoss(), loader(x[:2000], y[:2000]), optimizer, lambda m: accuracy(m(x[2000:]), y[2000:])
    )


@fault(
    "a weight decay of 0.3, as is usual with AdamW, is given to Adam, which adds it to the gradients",
    rules=["weight-decay-dominates"],
    fails=True,
    steps=500,
)
def decay_of_adamw_in_adam(is_faulty: bool) -> Program:
    g = rng(251)
    x = torch.randn(3000, 10, generator=g)
    w = torch.randn(10, 3, generator=g)
    y = (torch.sin(x @ w * 0.6).sum(1) + 0.3 * x[:, 0] * x[:, 1]) * 0.6
    make = torch.optim.Adam if is_faulty else torch.optim.AdamW
    model = nn.Sequential(mlp(10, 96, 96, 1, act=nn.GELU), nn.Flatten(0))
    return Program(
        model,
        nn.MSELoss(),
        loader(x[:2500], y[:2500]),
        make(model.parameters(), lr=2e-3, weight_decay=0.3),
        lambda m: r2(m(x[2500:]), y[2500:]),
    )


@fault(
    "the function of a LambdaLR returns a learning rate and not a factor, so that the rate is multiplied by itself",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=400,
)
def lambda_returns_rate(is_faulty: bool) -> Program:
    x, y = shapes(1400, 261)
    x = (x - 0.15) / 0.25
    base = 2e-3
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.GroupNorm(3, 12),
        nn.SiLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1),
        nn.GroupNorm(3, 24),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(24 * 36, 4),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=base)

    def schedule(step):
        warm = min(1.0, (step + 1) / 30)
        return base * warm if is_faulty else warm

    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:1000], y[:1000], batch=16),
        optimizer,
        lambda m: accuracy(m(x[1000:]), y[1000:]),
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, schedule),
    )


@fault(
    "the second and third argument of BatchNorm1d are swapped: an epsilon of 0.1 and a momentum of 1e-5",
    rules=["batchnorm-mode-gap"],
    layers=["scale", "bn"],
    fails=False,
    steps=300,
)
def batchnorm_arguments_swapped(is_faulty: bool) -> Program:
    g = rng(281)
    x, y = blobs(2400, 4, 12, 281, spread=0.9)
    x = x * (1 + 2 * torch.rand(12, generator=g)) + 12 * torch.randn(12, generator=g)
    args = (0.1, 1e-5) if is_faulty else (1e-5, 0.1)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.BatchNorm1d(12, *args)
            self.fc1 = nn.Linear(12, 64, bias=False)
            self.bn = nn.BatchNorm1d(64, *args)
            self.fc2 = nn.Linear(64, 4)

        def forward(self, x):
            return self.fc2(F.relu(self.bn(self.fc1(self.scale(x)))))

    model = Net()
    return Program(
        model,
        nn.CrossEntropyLoss(),
        loader(x[:2000], y[:2000], batch=50),
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True),
        lambda m: accuracy(m(x[2000:]), y[2000:]),
    )
