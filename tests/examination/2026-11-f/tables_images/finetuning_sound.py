"""Pretrained networks, precision, codes: sound set-ups."""

from __future__ import annotations

import copy
import torch
from finetuning import D, Frozen, Net, explained, kinds, pretrained, skill, world
from program import Program, sound
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Codes(nn.Module):
    def __init__(self, straight_through: bool, bits: int = 10):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(D, 64), nn.ReLU(), nn.Linear(64, bits))
        self.decoder = nn.Sequential(nn.Linear(bits, 64), nn.ReLU(), nn.Linear(64, 3))
        self.straight_through = straight_through

    def forward(self, x):
        h = torch.tanh(self.encoder(x))
        code = (h > 0).float() * 2 - 1
        if self.straight_through:
            code = h + (code - h).detach()
        return self.decoder(code)


@sound("a frozen pretrained body in evaluation mode; the optimizer has the head only", steps=200, least=0.7)
def frozen_body():
    model = Frozen(pretrained().body, nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.head.parameters(), 1e-2)
    loader = DataLoader(TensorDataset(*kinds(600, 20)), batch_size=32, shuffle=True)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*kinds(1000, 21)))


@sound("rates that differ by a factor of 300 between body and head, a new head of zeros", steps=250, least=0.7)
def rates_by_depth():
    model = pretrained()
    model.head = nn.Linear(64, 3)
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    optimizer = torch.optim.AdamW(
        [{"params": model.body.parameters(), "lr": 3e-5}, {"params": model.head.parameters(), "lr": 1e-2}]
    )
    loader = DataLoader(TensorDataset(*kinds(600, 22)), batch_size=32, shuffle=True)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*kinds(1000, 23)))


@sound("low-rank adapters that start at zero on frozen layers", steps=300, least=0.65)
def low_rank_adapters():
    class Adapted(nn.Module):
        def __init__(self, layer, rank=4):
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
            self.b = nn.Parameter(torch.zeros(layer.out_features, rank))

        def forward(self, x):
            return self.layer(x) + x @ self.a.T @ self.b.T

    body = pretrained().body.requires_grad_(False)
    for k in (0, 3):
        body[k] = Adapted(body[k])
    for k in (1, 4):
        body[k].eval()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = body
            self.head = nn.Linear(64, 3)

        def train(self, mode=True):
            super().train(mode)
            self.body.eval()
            return self

        def forward(self, x):
            return self.head(self.body(x))

    model = Model().train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3)
    x, causes = world(2500, 24)
    hx, hcauses = world(800, 25)
    y, hy = (causes[:, 3] * causes[:, 4]).sign(), (hcauses[:, 3] * hcauses[:, 4]).sign()
    loader = DataLoader(TensorDataset(x, (y > 0).long()), batch_size=64, shuffle=True)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(hx, (hy > 0).long(), 2))


@sound("a frozen teacher inside the model, soft targets at a temperature of 4, no labels", steps=300, least=0.7)
def distilled():
    teacher = Net(3)
    x, y = kinds(4000, 26)
    optimizer = torch.optim.Adam(teacher.parameters(), 5e-3)
    for k in range(250):
        rows = torch.arange(k * 100, k * 100 + 100) % 4000
        optimizer.zero_grad()
        F.cross_entropy(teacher(x[rows]), y[rows]).backward()
        optimizer.step()
    optimizer.zero_grad()

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher = teacher.requires_grad_(False).eval()
            self.student = nn.Sequential(nn.Linear(D, 48), nn.ReLU(), nn.Linear(48, 3))

        def train(self, mode=True):
            super().train(mode)
            self.teacher.eval()
            return self

        def forward(self, x):
            return self.student(x)

    model = Pair()
    loader = DataLoader(TensorDataset(x), batch_size=64, shuffle=True)

    def step(model, batch):
        (x,) = batch
        with torch.no_grad():
            soft = (model.teacher(x) / 4).softmax(1)
        return 16 * F.kl_div((model.student(x) / 4).log_softmax(1), soft, reduction="batchmean")

    optimizer = torch.optim.Adam(model.student.parameters(), 3e-3)
    return Program(model, None, loader, optimizer, skill(*kinds(1000, 27)), step=step)


@sound("codes of signs with a straight-through gradient", steps=400, least=0.6)
def straight_through_codes():
    model = Codes(True)
    loader = DataLoader(TensorDataset(*kinds(3000, 28)), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*kinds(1000, 29)))


@sound("pairs of layers with nothing between them, to save weights; a warm-up that begins at a rate of zero", steps=400, least=0.65)
def factorised_layers():
    def thin(a, b, rank=12):
        return nn.Sequential(nn.Linear(a, rank, bias=False), nn.Linear(rank, b))

    model = nn.Sequential(thin(D, 96), nn.ReLU(), thin(96, 96), nn.ReLU(), nn.Linear(96, 3))
    loader = DataLoader(TensorDataset(*kinds(3000, 30)), batch_size=64, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(k / 60, 1.0))
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*kinds(1000, 31)), scheduler)


@sound("a pretrained network on inputs that have been turned, at a tenth of the rate, partly tuned", trained=100, steps=300, least=0.6)
def turned_domain():
    model = copy.deepcopy(pretrained())
    g = torch.Generator().manual_seed(8)
    turn = torch.linalg.qr(torch.eye(D) + 0.35 * torch.randn(D, D, generator=g))[0]

    def load(n, seed):
        x, causes = world(n, seed)
        return x @ turn, causes

    loader = DataLoader(TensorDataset(*load(3000, 32)), batch_size=64, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    return Program(model, nn.MSELoss(), loader, optimizer, explained(*load(800, 33)))
