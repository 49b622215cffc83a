"""Pretrained networks, parameter groups, precision, codes."""

from __future__ import annotations

import torch
from program import Program, fault
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

D = 16


def world(n: int, seed: int):
    """Inputs and the eight hidden causes of everything that is asked for."""
    g = torch.Generator().manual_seed(7000)
    a, b = torch.randn(D, 24, generator=g) / D**0.5, torch.randn(24, 8, generator=g) / 24**0.5
    g = torch.Generator().manual_seed(7001 + seed)
    x = torch.randn(n, D, generator=g)
    return x, 2 * torch.tanh(1.2 * x @ a) @ b


def kinds(n: int, seed: int):
    x, causes = world(n, seed)
    return x, causes[:, :3].argmax(1)


def skill(x, y, classes=3):
    def score(model):
        return max(0.0, ((model(x).argmax(1) == y).float().mean().item() - 1 / classes) / (1 - 1 / classes))

    return score


def explained(x, y):
    return lambda m: max(0.0, 1 - F.mse_loss(m(x), y).item() / y.var().item())


class Net(nn.Module):
    def __init__(self, outputs: int, width: int = 64):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(D, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()
        )
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.body(x))


def pretrained() -> Net:
    """Knows the eight causes."""
    model = Net(8)
    x, causes = world(4000, 900)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    g = torch.Generator().manual_seed(7)
    for _ in range(250):
        rows = torch.randint(0, 4000, (128,), generator=g)
        optimizer.zero_grad()
        F.mse_loss(model(x[rows]), causes[rows]).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


class Frozen(nn.Module):
    """A body that stays as it is, in evaluation mode, and a head."""

    def __init__(self, body: nn.Module, head: nn.Module):
        super().__init__()
        self.body = body.requires_grad_(False).eval()
        self.head = head

    def train(self, mode: bool = True):
        super().train(mode)
        self.body.eval()
        return self

    def forward(self, x):
        return self.head(self.body(x))


@fault(
    "the head is replaced after the optimizer was made",
    rules=["no-gradient"],
    layers=["head"],
    fails=True,
    steps=250,
)
def head_replaced_later(is_faulty):
    net = pretrained()
    model = Frozen(net.body, net.head)
    if not is_faulty:
        model.head = nn.Linear(64, 3)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    if is_faulty:
        model.head = nn.Linear(64, 3)
    loader = DataLoader(TensorDataset(*kinds(600, 0)), batch_size=32, shuffle=True)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*kinds(1000, 1)))


@fault(
    "a frozen pretrained body, and inputs as they come from the sensor instead of standardised",
    rules=["unscaled-input", "batchnorm-mode-gap", "saturated-output"],
    fails=False,
    steps=250,
)
def unlike_pretraining(is_faulty):
    def load(n, seed):
        x, y = kinds(n, seed)
        raw = 140 + 45 * x
        return (raw, y) if is_faulty else ((raw - 140) / 45, y)

    model = Frozen(pretrained().body, nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.head.parameters(), 1e-2)
    loader = DataLoader(TensorDataset(*load(600, 2)), batch_size=32, shuffle=True)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*load(1000, 3)))


@fault(
    "weights in bfloat16 and steps too small for them; they should be in float32 under autocast",
    rules=["lost-updates"],
    fails=False,
    steps=500,
)
def weights_in_bfloat(is_faulty):
    class Equal(nn.Module):
        """A layer with weights of about 1, scaled where it is applied."""

        def __init__(self, a, b):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(b, a))
            self.bias = nn.Parameter(torch.zeros(b))
            self.scale = (2 / a) ** 0.5

        def forward(self, x):
            return F.linear(x, self.weight * self.scale, self.bias)

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(Equal(D, 192), nn.ReLU(), Equal(192, 192), nn.ReLU(), Equal(192, 1))
            if is_faulty:
                self.net.to(torch.bfloat16)

        def forward(self, x):
            if is_faulty:
                return self.net(x.bfloat16()).float()[:, 0]
            with torch.autocast("cpu", torch.bfloat16):
                return self.net(x).float()[:, 0]

    def load(n, seed):
        x, causes = world(n, seed)
        return x, causes[:, 0]

    model = Cast()
    loader = DataLoader(TensorDataset(*load(3000, 6)), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return Program(model, nn.MSELoss(), loader, optimizer, explained(*load(600, 7)))


@fault(
    "float16 without a scaler, and a term with a weight of 1e-6",
    rules=["gradient-underflow", "no-gradient"],
    fails=True,
    steps=300,
)
def small_weight_in_half(is_faulty):
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))

        def forward(self, x):
            with torch.autocast("cpu", torch.float16 if is_faulty else torch.bfloat16):
                return self.net(x)

    model = Cast()
    loader = DataLoader(TensorDataset(*world(3000, 8)), batch_size=128, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, lambda o, t: 1e-6 * F.mse_loss(o.float(), t), loader, optimizer, explained(*world(600, 9)))


@fault(
    "weights in front of BatchNorms drawn with a standard deviation of 30 instead of 0.3: a step hardly turns them",
    rules=["weight-domination", "bad-initialisation", "learning-rate-too-low"],
    layers=["layers"],
    fails=False,
    steps=400,
)
def weights_of_thirty(is_faulty):
    class Deep(nn.Module):
        def __init__(self, width=16):
            super().__init__()
            sizes = [D] + [width] * 4
            self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in zip(sizes, sizes[1:]))
            self.norms = nn.ModuleList(nn.BatchNorm1d(b) for b in sizes[1:])
            self.head = nn.Linear(width, 3)
            for layer in self.layers:
                nn.init.normal_(layer.weight, 0, 30.0 if is_faulty else 0.3)

        def forward(self, x):
            for layer, norm in zip(self.layers, self.norms):
                x = F.relu(norm(layer(x)))
            return self.head(x)

    model = Deep()
    loader = DataLoader(TensorDataset(*kinds(3000, 12)), batch_size=64, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*kinds(1000, 13)))
