"""Healthy runs, second half."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from program import healthy
from rnm_data import (
    rnm_adding,
    rnm_digits,
    rnm_score,
    rnm_seed,
    rnm_shapes,
    rnm_signals,
    rnm_tabular,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


# ---------------------------------------------------------------- 10 augmentation from the middle on
class RnmResidual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class RnmResNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(RnmResidual(width), nn.MaxPool2d(2), RnmResidual(width))
        self.fc = nn.Linear(width * 16, 10)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).flatten(1))


@healthy("Stronger augmentation from the middle on makes the training loss higher; smoothed labels.", steps=1008)
def rnm_augmented(record):
    rnm_seed(110)
    (x, y), (held_x, held_y) = rnm_digits(110)
    model = RnmResNet()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.05, total_steps=1008, pct_start=0.2, cycle_momentum=False
    )
    rec = record(model, optimizer, criterion)
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True, drop_last=True)  # 28 batches
    for epoch in range(36):
        model.train()
        for batch, target in loader:
            batch = batch + 0.2 * torch.randn_like(batch)
            if epoch >= 12:  # change contrast and brightness, more noise
                batch = batch * (0.8 + 0.4 * torch.rand(50, 1, 1, 1)) + 0.2 * torch.randn(50, 1, 1, 1)
                batch = batch + 0.4 * torch.randn_like(batch)
            optimizer.zero_grad()
            loss = criterion(model(batch), target)
            loss.backward()
            optimizer.step()
            schedule.step()
            rec.step(loss.item(), (batch, target))
        rec.validation(rnm_score(model, criterion, held_x, held_y))


# ---------------------------------------------------------------- 11 planned thawing, frozen BatchNorm
class RnmFineTuned(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        return self.head(self.backbone(x).mean((2, 3)))

    def train(self, mode=True):
        super().train(mode)
        for module in self.backbone:
            if isinstance(module, nn.BatchNorm2d):
                module.eval()  # keep the statistics of the checkpoint
        return self


@healthy("A pretrained backbone is thawed as planned at a low rate; its BatchNorm keeps the old statistics.", steps=1200)
def rnm_fine_tuning(record):
    rnm_seed(111)
    (x, y), (held_x, held_y) = rnm_digits(111)
    model = RnmFineTuned()
    classifier = nn.Linear(32, 10)
    pretrain = torch.optim.Adam([*model.backbone.parameters(), *classifier.parameters()], lr=2e-3)
    model.backbone.train()
    for _ in range(250):  # the checkpoint
        rows = torch.randint(len(x), (64,))
        pretrain.zero_grad()
        batch = x[rows] + 0.3 * torch.randn(64, 1, 8, 8)
        F.cross_entropy(classifier(model.backbone(batch).mean((2, 3))), y[rows]).backward()
        pretrain.step()
    y, held_y = y % 2, held_y % 2
    model.backbone.requires_grad_(False)
    model.train()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(
        [{"params": model.head.parameters(), "lr": 3e-3}, {"params": model.backbone.parameters(), "lr": 1e-4}]
    )
    rec = record(model, optimizer, criterion)
    for step in range(1, 1201):
        if step == 501:
            model.backbone.requires_grad_(True)
        rows = torch.randint(len(x), (32,))
        batch = x[rows] + 0.3 * torch.randn(32, 1, 8, 8)
        optimizer.zero_grad()
        loss = criterion(model(batch), y[rows])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (batch, y[rows]))
        if step % 60 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))


# ---------------------------------------------------------------- 12 accumulation
@healthy("Gradients of four small batches are added for each step, and cleared after it.", steps=1000)
def rnm_accumulated(record):
    rnm_seed(112)
    x, y = rnm_tabular(9000, 14, 112, noise=0.2)
    held_x, held_y = x[8000:], y[8000:]
    model = nn.Sequential(
        nn.Linear(14, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 1)
    )
    criterion = nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02)
    rec = record(model, optimizer, criterion)
    step = 0
    while step < 1000:
        for rows in torch.randperm(8000).split(32):
            step += 1
            value = 0.0
            for part in rows.split(8):
                loss = criterion(model(x[part]), y[part]) / 4
                loss.backward()
                value += loss.item()
            optimizer.step()
            rec.step(value, (x[rows], y[rows]))
            optimizer.zero_grad()
            if step % 50 == 0:
                rec.validation(rnm_score(model, criterion, held_x, held_y))


# ---------------------------------------------------------------- 13 early convergence at the noise
@healthy("The loss is at the noise of the targets after a quarter of the run and stays there.", steps=1300)
def rnm_noise_floor(record):
    rnm_seed(113)
    source = torch.Generator().manual_seed(113)
    truth = torch.randn(8, 1, generator=source) / math.sqrt(8)
    x = torch.randn(12000, 8, generator=source)
    y = F.leaky_relu(x @ truth, 0.3) + 0.5 * torch.randn(12000, 1, generator=source)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))
    criterion = nn.HuberLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 1300, power=1.0)
    rec = record(model, optimizer, criterion)
    loader = DataLoader(TensorDataset(x[:10400], y[:10400]), batch_size=32, shuffle=True)  # 325 batches
    for _ in range(4):
        for number, (batch, target) in enumerate(loader):
            optimizer.zero_grad()
            loss = criterion(model(batch), target)
            loss.backward()
            optimizer.step()
            schedule.step()
            rec.step(loss.item(), (batch, target))
            if number % 65 == 64:
                rec.validation(rnm_score(model, criterion, x[10400:], y[10400:]))


# ---------------------------------------------------------------- 14 half precision
class RnmMixer(nn.Module):
    def __init__(self, width=32, places=16):
        super().__init__()
        self.embed = nn.Conv1d(1, width, 4, stride=4)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(places, 32), nn.GELU(), nn.Linear(32, places))
        self.channels = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.fc = nn.Linear(width, 5)

    def forward(self, x):
        h = self.embed(x).transpose(1, 2)
        h = h + self.tokens(self.norm1(h).transpose(1, 2)).transpose(1, 2)
        h = h + self.channels(self.norm2(h))
        return self.fc(h.mean(1))


@healthy("Activations in bfloat16 by autocast, weights in float32; signals made anew for every step.", steps=1200)
def rnm_autocast(record):
    rnm_seed(114)
    held_x, held_y = rnm_signals(600, 64, 99999, noise=0.4)
    model = RnmMixer()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1200, eta_min=1e-5)
    rec = record(model, optimizer, criterion)
    for step in range(1, 1201):
        x, y = rnm_signals(48, 64, step, noise=0.4)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        loss = criterion(out.float(), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        rec.step(loss.item(), (x, y))
        if step % 80 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))


# ---------------------------------------------------------------- 15 policy gradient on logged actions
@healthy("A noisy objective of rewards, weighted by how likely the logged action was.", steps=1500)
def rnm_policy(record):
    rnm_seed(115)
    truth = torch.randn(10, 5)

    def play(count):
        """States, and for each the action taken at random with its reward."""
        states = torch.randn(count, 10)
        actions = torch.randint(5, (count,))
        rewards = ((states @ truth).argmax(1) == actions).float() + 0.3 * torch.randn(count) - 0.2
        return states, torch.stack([actions.float(), rewards], 1)

    def criterion(logits, played):
        policy = F.softmax(logits, 1)
        taken = policy.gather(1, played[:, :1].long()).squeeze(1)
        entropy = -(policy * (policy + 1e-8).log()).sum(1)
        return -(5 * taken * played[:, 1] + 0.01 * entropy).mean()

    held = play(4000)
    model = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, criterion)
    for step in range(1, 1501):
        states, played = play(64)
        optimizer.zero_grad()
        loss = criterion(model(states), played)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rec.step(loss.item(), (states, played))
        if step % 75 == 0:
            rec.validation(rnm_score(model, criterion, *held))


# ---------------------------------------------------------------- 16 curriculum
class RnmGruAdder(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x):
        return self.out(self.gru(x)[0][:, -1])


@healthy("Sequences grow longer in three stages, and the loss rises with each.", steps=1500)
def rnm_curriculum(record):
    rnm_seed(116)
    source = torch.Generator().manual_seed(116)
    held_x, held_y = rnm_adding(500, 24, torch.Generator().manual_seed(117))
    model = RnmGruAdder()
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    rec = record(model, optimizer, criterion)
    for length, steps in ((8, 600), (14, 400), (24, 500)):
        for step in range(1, steps + 1):
            size = int(torch.randint(length // 2, length + 1, (), generator=source))
            x, y = rnm_adding(32, size, source)
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            rec.step(loss.item(), (x, y))
            if step % 100 == 0:
                rec.validation(rnm_score(model, criterion, held_x, held_y))


# ---------------------------------------------------------------- 17 graphs
class RnmGraphNet(nn.Module):
    """Two rounds of messages between nodes; takes [batch, nodes, features + nodes] with the adjacency at the end."""

    def __init__(self, features=4, width=32):
        super().__init__()
        self.features = features
        self.enter = nn.Linear(features, width)
        self.message1, self.own1 = nn.Linear(width, width), nn.Linear(width, width)
        self.message2, self.own2 = nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h, edges = x[..., : self.features], x[..., self.features :]
        edges = edges / edges.sum(2, keepdim=True).clamp(min=1)
        h = F.relu(self.enter(h))
        h = F.relu(self.own1(h) + self.message1(edges @ h))
        h = F.relu(self.own2(h) + self.message2(edges @ h))
        return self.out(h.mean(1))


@healthy("Graphs with lonely nodes; weight decay follows a schedule of ordinary size.", steps=1200)
def rnm_graphs(record):
    rnm_seed(117)

    def make(count, nodes=12):
        features = torch.randn(count, nodes, 4)
        upper = (torch.rand(count, nodes, nodes) < 0.2).float().triu(1)
        edges = upper + upper.transpose(1, 2)
        agree = (features[..., :1] @ features[..., :1].transpose(1, 2)).tanh()
        target = (edges * agree).sum((1, 2))[:, None] / 12 + 0.5 * features[..., 1].abs().mean(1, keepdim=True)
        target = target + features[..., 2].mean(1, keepdim=True)
        return torch.cat([features, edges], 2), target + 0.05 * torch.randn(count, 1)

    x, y = make(9000)
    held_x, held_y = make(800)
    model = RnmGraphNet()
    criterion = nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    rec = record(model, optimizer, criterion)
    for step in range(1, 1201):
        share = 0.5 * (1 - math.cos(math.pi * step / 1200))
        optimizer.param_groups[0]["weight_decay"] = 0.01 + 0.19 * share
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - 0.9 * share)
        rows = torch.randint(len(x), (48,))
        optimizer.zero_grad()
        loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[rows], y[rows]))
        if step % 80 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))


# ---------------------------------------------------------------- 18 attention over sets, EMA
class RnmAttentionPool(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width))
        self.query = nn.Parameter(0.1 * torch.randn(1, 1, width))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.rho = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 4))

    def forward(self, x):
        h = self.phi(x[..., :2])
        query = self.query.expand(len(x), -1, -1)
        pooled = self.attention(query, h, h, key_padding_mask=x[..., 2] == 0, need_weights=False)[0]
        return self.rho(pooled.squeeze(1))


@healthy("Padded sets under a mask; evaluated with a moving average of the weights.", steps=1400)
def rnm_average_weights(record):
    rnm_seed(118)
    x, y = rnm_shapes(12000, 20, 118)
    held_x, held_y = rnm_shapes(800, 20, 119)
    model = RnmAttentionPool()
    average = copy.deepcopy(model).requires_grad_(False)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1.5e-3)
    rec = record(model, optimizer, criterion)
    for step in range(1, 1401):
        rows = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            rate = min(0.98, step / (step + 10))
            for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 1 - rate)
        rec.step(loss.item(), (x[rows], y[rows]))
        if step % 100 == 0:
            rec.validation(rnm_score(average, criterion, held_x, held_y))
