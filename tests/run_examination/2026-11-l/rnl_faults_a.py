"""Runs with a fault, first half."""

from __future__ import annotations

import torch
from program import fault
from torch import nn
from torch.nn import functional as F

from rnl_data import (
    rnl_digits,
    rnl_epochs,
    rnl_evaluate,
    rnl_seed,
    rnl_shapes,
    rnl_text,
    rnl_token_loss,
    rnl_vibration,
    rnl_windows,
)


# ---- 1. zero_grad goes missing --------------------------------------------------------------------------------------
class RnlVibrationGRU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 32, batch_first=True)
        self.head = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, x):
        h, _ = self.gru(x)
        return self.head(h.mean(1))


def rnl_two_stage_loop(record, broken: bool) -> float:
    """Stage one at the full rate; stage two, a loop of its own, at a lower rate."""
    rnl_seed(11)
    x, y = rnl_vibration(3000, seed=1)
    vx, vy = rnl_vibration(600, seed=2)
    model = RnlVibrationGRU()
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    rec = record(model, optimizer, loss)
    batches = rnl_epochs(x, y, 32, seed=3)
    step = 0

    for _ in range(520):  # stage one
        bx, by = next(batches)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        step += 1
        rec.step(value.item(), (bx, by))
        if step % 40 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))

    for group in optimizer.param_groups:
        group["lr"] = 2e-3

    for _ in range(680):  # stage two: written later
        bx, by = next(batches)
        if not broken:
            optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        step += 1
        rec.step(value.item(), (bx, by))
        if step % 40 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))
    return rnl_evaluate(model, loss, vx, vy)


@fault(
    "The loop of the second stage, written later, never clears gradients.",
    rules=("gradients-not-cleared",),
    step=521,
    steps=1200,
)
def rnl_two_stage(record):
    rnl_two_stage_loop(record, True)


# ---- 2. divergence at about step 300 --------------------------------------------------------------------------------
def rnl_linear_scaling_loop(record, broken: bool) -> float:
    """Digits with SGD; after a first phase the batch is made larger, and the rate with it ("linear scaling")."""
    rnl_seed(12)
    (x, y), (vx, vy) = rnl_digits()
    x, vx = (x - 0.3) / 0.38, (vx - 0.3) / 0.38
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)
    )
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rec = record(model, optimizer, loss)
    batch = 16
    batches = rnl_epochs(x, y, batch, seed=3)
    for step in range(1, 1001):
        if step == 300:
            batch = batch * 32
            batches = rnl_epochs(x, y, batch, seed=4)
            if broken:
                for group in optimizer.param_groups:
                    group["lr"] *= 32
        bx, by = next(batches)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        rec.step(value.item(), (bx, by))
        if step % 25 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))
    return rnl_evaluate(model, loss, vx, vy)


@fault(
    "At step 300 the batch grows from 16 to 512 and the rate of SGD with it, past what is stable: the loss diverges.",
    rules=("learning-rate-too-high", "diverging"),
    step=300,
    steps=1000,
)
def rnl_linear_scaling(record):
    rnl_linear_scaling_loop(record, True)


# ---- 3. a warm-up that overshoots -----------------------------------------------------------------------------------
class RnlLanguageLSTM(nn.Module):
    def __init__(self, alphabet: int):
        super().__init__()
        self.embed = nn.Embedding(alphabet, 32)
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, alphabet)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0])


def rnl_uncapped_warmup_loop(record, broken: bool) -> float:
    """A character model with a linear warm-up over the first 100 steps."""
    rnl_seed(13)
    stream, alphabet = rnl_text(120_000, seed=1)
    held, _ = rnl_text(12_000, seed=2)
    model = RnlLanguageLSTM(alphabet)
    loss = rnl_token_loss
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    warm = 100
    if broken:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: (s + 1) / warm)
    else:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / warm))
    rec = record(model, optimizer, loss)
    g = torch.Generator().manual_seed(5)
    vx, vy = rnl_windows(held, 200, 32, torch.Generator().manual_seed(6))
    for step in range(1, 1201):
        bx, by = rnl_windows(stream, 16, 32, g)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))
    return rnl_evaluate(model, loss, vx, vy)


@fault(
    "The warm-up of the rate has no cap: it goes on rising after its 100 steps until the model is undone.",
    rules=("learning-rate-too-high", "diverging"),
    step=480,
    steps=1200,
)
def rnl_uncapped_warmup(record):
    rnl_uncapped_warmup_loop(record, True)


# ---- 4. units that die ----------------------------------------------------------------------------------------------
class RnlSparseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 3, padding=1)
        self.hidden1 = nn.Linear(12 * 16, 96)
        self.hidden2 = nn.Linear(96, 64)
        self.head = nn.Linear(64, 10)
        self.kept = []

    def forward(self, x):
        h = F.avg_pool2d(F.gelu(self.conv((x - 0.3) / 0.38)), 2).flatten(1)
        a = F.relu(self.hidden1(h))
        b = F.relu(self.hidden2(a))
        self.kept = [a, b]
        return self.head(b)


def rnl_sparse_code_loop(record, broken: bool) -> float:
    """Digits; after 500 steps a penalty on activity is brought in over 300 steps, for sparse codes."""
    rnl_seed(14)
    (x, y), (vx, vy) = rnl_digits()
    model = RnlSparseNet()
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    rec = record(model, optimizer, loss)
    batches = rnl_epochs(x, y, 32, seed=3)
    for step in range(1, 1401):
        bx, by = next(batches)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        ramp = min(1.0, max(0.0, (step - 500) / 300))
        if broken:  # summed over the units of a layer
            penalty = sum(h.abs().sum(1).mean() for h in model.kept)
        else:
            penalty = sum(h.abs().mean() for h in model.kept)
        (value + ramp * 0.2 * penalty).backward()
        optimizer.step()
        rec.step(value.item(), (bx, by))
        if step % 50 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))
    return rnl_evaluate(model, loss, vx, vy)


@fault(
    "A penalty on activity, summed over units, is ramped up from step 500 and switches ReLUs off for good.",
    rules=("dying-neurons", "term-dominates"),
    layers=("hidden1", "hidden2"),
    step=530,
    steps=1400,
)
def rnl_sparse_code(record):
    rnl_sparse_code_loop(record, True)


# ---- 5. an unintended thaw ------------------------------------------------------------------------------------------
class RnlEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.out = nn.Linear(24 * 4, 48)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return torch.tanh(self.out(x.flatten(1)))


class RnlTransfer(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(48, 4)

    def forward(self, x):
        return self.head(self.encoder(x))


def rnl_pretrain(encoder: nn.Module) -> None:
    """Shapes with much noise and plenty of data; not part of the recorded run."""
    x, y, _ = rnl_shapes(4000, size=8, noise=0.2, seed=21)
    whole = nn.Sequential(encoder, nn.Linear(48, 4))
    optimizer = torch.optim.Adam(whole.parameters(), lr=2e-3)
    batches = rnl_epochs(x, y, 64, seed=22)
    for _ in range(700):
        bx, by = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(whole(bx), by).backward()
        optimizer.step()


def rnl_saliency(model: nn.Module, x: torch.Tensor, broken: bool) -> torch.Tensor:
    """Slope of the largest output with regard to the picture, for a report."""
    wanted = [p.requires_grad for p in model.parameters()]
    for p in model.parameters():
        p.requires_grad_(False)
    x = x.clone().requires_grad_(True)
    model(x).max(1).values.sum().backward()
    for p, w in zip(model.parameters(), wanted):
        p.requires_grad_(True if broken else w)
    return x.grad.abs().mean(0)


def rnl_sizes(n: int, seed: int):
    """Noisy pictures, and which quarter of the sizes the shape belongs to."""
    x, _, mask = rnl_shapes(n, size=8, noise=0.35, seed=seed)
    area = mask.sum((1, 2, 3))
    return x, torch.bucketize(area, torch.tensor([9.5, 14.5, 21.5]))


def rnl_saliency_thaw_loop(record, broken: bool) -> float:
    """A new head on a frozen, pretrained encoder, with few labelled pictures."""
    rnl_seed(15)
    encoder = RnlEncoder()
    rnl_pretrain(encoder)
    x, y = rnl_sizes(240, seed=31)
    vx, vy = rnl_sizes(800, seed=32)
    model = RnlTransfer(encoder)
    for p in model.encoder.parameters():
        p.requires_grad_(False)
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rec = record(model, optimizer, loss)
    batches = rnl_epochs(x, y, 24, seed=33)
    for step in range(1, 1001):
        bx, by = next(batches)
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        rec.step(value.item(), (bx, by))
        if step % 25 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))
        if step == 420:
            rnl_saliency(model, vx[:16], broken)
    return rnl_evaluate(model, loss, vx, vy)


@fault(
    "A helper that draws saliency maps leaves every parameter trainable: the frozen encoder learns at the head's rate.",
    rules=("layer-thawed",),
    layers=("encoder",),
    step=421,
    steps=1000,
)
def rnl_saliency_thaw(record):
    rnl_saliency_thaw_loop(record, True)


# ---- 6. BatchNorm's statistics go stale -----------------------------------------------------------------------------
def rnl_set_bn_momentum(model: nn.Module, momentum: float) -> None:
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            m.momentum = momentum


class RnlBNNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(12, 24, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).amax((2, 3)))


def rnl_bn_schedule_loop(record, broken: bool) -> float:
    """BatchNorm's momentum is halved every so often (as for point clouds), down to a floor."""
    rnl_seed(16)
    x, y, _ = rnl_shapes(12000, size=16, noise=0.45, seed=41)
    vx, vy, _ = rnl_shapes(600, size=16, noise=0.45, seed=42)
    model = RnlBNNet()
    loss = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
    rec = record(model, optimizer, loss)
    batches = rnl_epochs(x, y, 32, seed=43)
    for step in range(1, 1401):
        momentum = 0.1 * 0.5 ** (step // 50)
        rnl_set_bn_momentum(model, momentum if broken else max(momentum, 0.05))
        bx, by = next(batches)
        model.train()
        optimizer.zero_grad()
        value = loss(model(bx), by)
        value.backward()
        optimizer.step()
        rec.step(value.item(), (bx, by))
        if step % 35 == 0:
            rec.validation(rnl_evaluate(model, loss, vx, vy))
    return rnl_evaluate(model, loss, vx, vy)


@fault(
    "BatchNorm's momentum is halved again and again without a floor: its running statistics stop following.",
    rules=("stale-statistics", "batchnorm-mode-gap"),
    layers=("stem.1", "body.1", "body.4"),
    step=350,
    steps=1400,
)
def rnl_bn_schedule(record):
    rnl_bn_schedule_loop(record, True)
