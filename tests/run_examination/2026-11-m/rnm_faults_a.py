"""Faults in particular layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from program import fault
from rnm_data import (
    rnm_digits,
    rnm_score,
    rnm_seed,
    rnm_shapes,
    rnm_signals,
    rnm_tabular,
    rnm_waves,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


# ---------------------------------------------------------------- sparse autoencoder
class RnmSparseAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 40), nn.ReLU())
        self.decoder = nn.Sequential(nn.Linear(40, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x):
        code = self.encoder(x)
        return self.decoder(code), code


def rnm_sparse_ramp_loop(record, broken):
    rnm_seed(3)
    (x, _), (held, _) = rnm_digits(3)
    x, held = x.flatten(1), held.flatten(1)
    model = RnmSparseAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    sparsity = {"weight": 1e-4}

    def criterion(outputs, target):
        image, code = outputs
        return F.mse_loss(image, target) + sparsity["weight"] * code.abs().sum(1).mean()

    rec = record(model, optimizer, criterion)
    loader = DataLoader(TensorDataset(x), batch_size=56, shuffle=True, drop_last=True)  # 25 batches
    for epoch in range(48):
        if epoch >= 16:  # after the warm-up, ask for sparser codes each epoch
            sparsity["weight"] *= 6
            if not broken:
                sparsity["weight"] = min(sparsity["weight"], 5e-4)
        model.train()
        for (batch,) in loader:
            optimizer.zero_grad()
            loss = criterion(model(batch), batch)
            loss.backward()
            optimizer.step()
            rec.step(loss.item(), (batch, batch))
        model.eval()
        with torch.no_grad():
            rec.validation(F.mse_loss(model(held)[0], held).item())
    model.eval()
    with torch.no_grad():
        return F.mse_loss(model(held)[0], held).item()


@fault(
    "The weight of a sparsity penalty grows each epoch without a bound, until every unit of the code is off for good.",
    rules=("dying-neurons", "term-dominates", "rank-collapse", "no-gradient"),
    layers=("encoder",),
    step=426,
    steps=1200,
)
def rnm_sparse_ramp(record):
    rnm_sparse_ramp_loop(record, True)


# ---------------------------------------------------------------- a probe that leaves the encoder frozen
class RnmSignalNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, 16, 9, padding=4), nn.GELU(), nn.Conv1d(16, 24, 5, stride=2, padding=2), nn.GELU()
        )
        self.head = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 5))

    def forward(self, x):
        return self.head(self.encoder(x).amax(2))


def rnm_probe_leaves_loop(record, broken):
    rnm_seed(11)
    x, y = rnm_signals(4000, 64, 1)
    held_x, held_y = rnm_signals(600, 64, 2)
    model = RnmSignalNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.015, momentum=0.9)
    rec = record(model, optimizer, criterion)

    def probe():
        """Ridge regression on the features, as a measure of how good they are."""
        for p in model.encoder.parameters():
            p.requires_grad_(False)
        train, test = model.encoder(x[:800]).amax(2), model.encoder(held_x).amax(2)
        solution = torch.linalg.solve(train.T @ train + 1e-2 * torch.eye(24), train.T @ F.one_hot(y[:800], 5).float())
        if not broken:
            for p in model.encoder.parameters():
                p.requires_grad_(True)
        return ((test @ solution).argmax(1) == held_y).float().mean().item()

    step = 0
    for epoch in range(16):
        order = torch.randperm(len(x))
        for batch in order[: 62 * 64].split(64):
            step += 1
            optimizer.zero_grad()
            loss = criterion(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            rec.step(loss.item(), (x[batch], y[batch]))
        rec.validation(rnm_score(model, criterion, held_x, held_y))
        if epoch >= 3:  # features of the first epochs say little
            probe()
    return rnm_score(model, criterion, held_x, held_y)


@fault(
    "A probe of the features, run after each epoch from the fourth on, leaves the encoder without gradients.",
    rules=("no-gradient",),
    layers=("encoder",),
    step=249,
    steps=992,
)
def rnm_probe_leaves(record):
    rnm_probe_leaves_loop(record, True)


# ---------------------------------------------------------------- one source in raw units
class RnmTwoSources(nn.Module):
    def __init__(self):
        super().__init__()
        self.vitals = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
        self.labs = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(torch.cat([self.vitals(x[:, :8]), self.labs(x[:, 8:])], 1))


def rnm_raw_units_loop(record, broken):
    rnm_seed(5)
    x, y = rnm_tabular(7000, 16, 21, noise=0.1, sharp=1.0)
    held_x, held_y = x[6000:], y[6000:]
    model = RnmTwoSources()
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rec = record(model, optimizer, criterion)
    mean, deviation = 95.0 + 40 * torch.rand(8), 20.0 + 15 * torch.rand(8)
    for step in range(1, 1301):
        rows = torch.randint(6000, (64,))
        batch, target = x[rows].clone(), y[rows]
        if step > 520 and broken:  # files of the second hospital: their laboratory values are not standardised
            batch[:, 8:] = batch[:, 8:] * deviation + mean
        optimizer.zero_grad()
        loss = criterion(model(batch), target)
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (batch, target))
        if step % 65 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))
    return rnm_score(model, criterion, held_x, held_y)


@fault(
    "From a second source of files on, half of the features come in raw units and saturate the tanhs of their branch.",
    rules=("saturated-activation", "unscaled-input", "data-changed"),
    layers=("labs",),
    step=521,
    steps=1300,
)
def rnm_raw_units(record):
    rnm_raw_units_loop(record, True)


# ---------------------------------------------------------------- schedule of BatchNorm's momentum
class RnmSmallConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(16, 24, 3, padding=1), nn.BatchNorm2d(24)
        self.conv3, self.bn3 = nn.Conv2d(24, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        return self.fc(x.mean((2, 3)))


def rnm_bn_schedule_loop(record, broken):
    rnm_seed(8)
    (x, y), (held_x, held_y) = rnm_digits(8)
    model = RnmSmallConvNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-2)
    rec = record(model, optimizer, criterion)

    def set_momentum(value):
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = value

    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True, drop_last=True)  # 28 batches
    step = 0
    for epoch in range(36):
        model.train()
        for batch, target in loader:
            step += 1
            if step > 280:  # average over more batches as training goes on
                value = 0.1 * 0.8 ** (step - 280)
                set_momentum(value if broken else max(value, 0.05))
            batch = batch + 0.3 * torch.randn_like(batch)
            optimizer.zero_grad()
            loss = criterion(model(batch), target)
            loss.backward()
            optimizer.step()
            rec.step(loss.item(), (batch, target))
        rec.validation(rnm_score(model, criterion, held_x, held_y))
    return rnm_score(model, criterion, held_x, held_y)


@fault(
    "The momentum of BatchNorm decays without a floor, so that the running statistics stay where they were.",
    rules=("stale-statistics", "batchnorm-mode-gap"),
    layers=("bn1", "bn2", "bn3"),
    step=300,
    steps=1008,
)
def rnm_bn_schedule(record):
    rnm_bn_schedule_loop(record, True)


# ---------------------------------------------------------------- empty sets
class RnmMaskedMean(nn.Module):
    def __init__(self, guard):
        super().__init__()
        self.guard = guard

    def forward(self, x, mask):
        count = mask.sum(1)
        return (x * mask).sum(1) / (count.clamp(min=1) if self.guard else count)


class RnmSetNet(nn.Module):
    def __init__(self, guard):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(2, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.pool = RnmMaskedMean(guard)
        self.rho = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.rho(self.pool(self.phi(x[..., :2]), x[..., 2:]))


def rnm_empty_sets_loop(record, broken):
    rnm_seed(2)
    x, y = rnm_shapes(6000, 24, 1)
    held_x, held_y = rnm_shapes(800, 24, 2)
    hidden = torch.rand(3000) < 0.01  # in the second file, sensors without any return
    x[3000:][hidden] = 0.0
    model = RnmSetNet(guard=not broken)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, criterion)
    step = 0
    while step < 1400:
        step += 1
        last = 3000 if step <= 700 else 6000  # the second file is there from the middle on
        rows = torch.randint(last, (64,))
        optimizer.zero_grad()
        loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (x[rows], y[rows]))
        if step % 70 == 0:
            rec.validation(rnm_score(model, criterion, held_x, held_y))
    return rnm_score(model, criterion, held_x, held_y)


@fault(
    "A second file holds sets without any point, for which the mean over the points is 0/0.",
    rules=("non-finite",),
    layers=("pool",),
    step=706,
    steps=1400,
)
def rnm_empty_sets(record):
    rnm_empty_sets_loop(record, True)


# ---------------------------------------------------------------- a longer window of backpropagation
class RnmCell(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.enter = nn.Linear(1, width)
        self.recur = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.recur.weight, std=3.0 / width**0.5)
        nn.init.uniform_(self.enter.weight, -0.3, 0.3)
        nn.init.uniform_(self.enter.bias, -0.3, 0.3)

    def forward(self, x, state):
        return torch.tanh(self.enter(x) + self.recur(state))


class RnmTruncated(nn.Module):
    """A recurrent network whose gradients go back `window` places at most."""

    def __init__(self, width=48):
        super().__init__()
        self.window = 5
        self.cell = RnmCell(width)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        state = x.new_zeros(len(x), self.out.in_features)
        states = []
        for place in range(x.shape[1]):
            if place % self.window == 0:
                state = state.detach()
            state = self.cell(x[:, place], state)
            states.append(state)
        return self.out(torch.stack(states, 1))


def rnm_long_window_loop(record, broken):
    rnm_seed(4)
    x, y = rnm_waves(3000, 40, 4)
    held_x, held_y = rnm_waves(300, 40, 5)
    model = RnmTruncated()
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rec = record(model, optimizer, criterion)
    stages = [{"window": 5, "steps": 400, "clip": 0.5}, {"window": 40, "steps": 500}]
    if not broken:
        stages[1]["clip"] = 0.5
    for stage in stages:
        model.window = stage["window"]
        for step in range(stage["steps"]):
            rows = torch.randint(len(x), (32,))
            optimizer.zero_grad()
            loss = criterion(model(x[rows]), y[rows])
            loss.backward()
            if "clip" in stage:
                nn.utils.clip_grad_norm_(model.parameters(), stage["clip"])
            optimizer.step()
            rec.step(loss.item(), (x[rows], y[rows]))
            if (step + 1) % 50 == 0:
                rec.validation(rnm_score(model, criterion, held_x, held_y))
    return rnm_score(model, criterion, held_x, held_y)


@fault(
    "The stage that goes back along the whole sequence has no clipping; gradients explode in the recurrent cell.",
    rules=("exploding-gradient", "saturated-activation", "weight-domination"),
    layers=("cell",),
    step=401,
    steps=900,
)
def rnm_long_window(record):
    rnm_long_window_loop(record, True)


# ---------------------------------------------------------------- pairs whose negatives stop counting
class RnmPairEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, 96), nn.LayerNorm(96), nn.GELU(), nn.Linear(96, 48), nn.GELU(), nn.Linear(48, 12)
        )

    def forward(self, pairs):
        return self.encoder(pairs)


def rnm_pairs_collapse_loop(record, broken):
    rnm_seed(17)
    (x, y), (held_x, held_y) = rnm_digits(17)
    x, held_x = x.flatten(1), held_x.flatten(1)
    model = RnmPairEncoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    state = {"mine": False}

    def criterion(z, same):
        distance = (z[:, 0] - z[:, 1]).pow(2).sum(1).add(1e-6).sqrt()
        pull = same * distance.pow(2)
        push = (1 - same) * F.relu(2.0 - distance).pow(2)
        if state["mine"]:  # only negatives that are still too near
            push = push * (distance > 2.0 if broken else distance < 2.0)
        return (pull + push).mean()

    def evaluate():
        """Contrastive loss of fixed pairs of held-out digits, all of which count."""
        with torch.no_grad():
            z = model(torch.stack([held_x[held_left], held_x[held_right]], 1))
        distance = (z[:, 0] - z[:, 1]).pow(2).sum(1).add(1e-6).sqrt()
        same = (held_y[held_left] == held_y[held_right]).float()
        weight = same / same.sum() + (1 - same) / (1 - same).sum()
        return (weight * (same * distance.pow(2) + (1 - same) * F.relu(2.0 - distance).pow(2))).sum().item() / 2

    def error():
        """Of the nearest class centre on held-out digits."""
        model.eval()
        with torch.no_grad():
            train, test = model.encoder(x), model.encoder(held_x)
        model.train()
        centres = torch.stack([train[y == k].mean(0) for k in range(10)])
        return (torch.cdist(test, centres).argmin(1) != held_y).float().mean().item()

    rec = record(model, optimizer, criterion)
    held_left, held_right = torch.randint(len(held_x), (2, 2000))
    classes = [torch.nonzero(y == k).flatten() for k in range(10)]
    for step in range(1, 1101):
        state["mine"] = step > 450
        left = torch.randint(len(x), (64,))
        right = torch.randint(len(x), (64,))
        for i in range(0, 64, 2):
            pool = classes[int(y[left[i]])]
            right[i] = pool[torch.randint(len(pool), ())]
        pairs = torch.stack([x[left], x[right]], 1) + 0.2 * torch.randn(64, 2, 64)
        same = (y[left] == y[right]).float()
        optimizer.zero_grad()
        loss = criterion(model(pairs), same)
        loss.backward()
        optimizer.step()
        rec.step(loss.item(), (pairs, same))
        if step % 50 == 0:
            rec.validation(evaluate())
    return error()


@fault(
    "Mining of hard negatives, switched on late, keeps the wrong ones: only pulling is left, and all points meet.",
    rules=("rank-collapse", "term-dominates"),
    layers=("encoder",),
    step=451,
    steps=1100,
)
def rnm_pairs_collapse(record):
    rnm_pairs_collapse_loop(record, True)
