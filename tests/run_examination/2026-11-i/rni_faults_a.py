"""Training loops with a fault, first half. Each loop takes `broken`, so that its repaired twin can be run."""

from __future__ import annotations

import torch
from program import Record, fault
from rni_data import (
    rni_adding, rni_batches, rni_clusters, rni_gen, rni_images, rni_ratings, rni_teacher, rni_text, rni_waves,
)
from torch import Tensor, nn
from torch.nn import functional as F


def rni_evaluate(model: nn.Module, loss, x: Tensor, y: Tensor) -> float:  # noqa: ANN001
    was = model.training
    model.eval()
    with torch.no_grad():
        value = loss(model(x), y).item()
    model.train(was)
    return value


# --- 1 ----------------------------------------------------------------------------------------------------------------


class RniFactors(nn.Module):
    def __init__(self, users: int, items: int, k: int = 8) -> None:
        super().__init__()
        self.user = nn.Embedding(users, k)
        self.item = nn.Embedding(items, k)
        self.tower = nn.Sequential(nn.Linear(3 * k, 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.normal_(self.user.weight, std=0.3)
        nn.init.normal_(self.item.weight, std=0.3)

    def forward(self, pairs: Tensor) -> Tensor:
        u, v = self.user(pairs[:, 0]), self.item(pairs[:, 1])
        return self.tower(torch.cat([u, v, u * v], 1)).squeeze(1)


def rni_recommender_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(3)
    pairs, r = rni_ratings(12000, 120, 90, 1)
    vp, vr = rni_ratings(2000, 120, 90, 2)
    model = RniFactors(120, 90)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss = nn.MSELoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(pairs), 128, 4)
    accumulate = 1
    for step in range(1200):
        if step == 520 and broken:
            accumulate = 10**6  # "accumulate from here": the counter never comes round
        if step % accumulate == 0:
            optimizer.zero_grad()
        i = next(batches)
        value = loss(model(pairs[i]), r[i])
        value.backward()
        optimizer.step()
        rec.step(value, (pairs[i], r[i]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, loss, vp, vr))
    return rni_evaluate(model, loss, vp, vr)


@fault(
    "zero_grad is skipped from step 520 on, because an accumulation counter never comes round",
    rules=("gradients-not-cleared",),
    step=520,
    steps=1200,
)
def rni_recommender(record: Record) -> None:
    rni_recommender_loop(record, True)


# --- 2 ----------------------------------------------------------------------------------------------------------------


class RniDecoder(nn.Module):
    def __init__(self, vocab: int, length: int, width: int = 32, depth: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.place = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        h = self.token(ids) + self.place[:t]
        for block in self.blocks:
            h = block(h, src_mask=self.mask[:t, :t])
        return self.head(self.norm(h))


def rni_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def rni_resumed_lm_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(12)
    text, held = rni_text(4000, 16, 20, 1), rni_text(400, 16, 20, 2)
    model = RniDecoder(20, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    rec = record(model, optimizer, rni_token_loss)
    batches = rni_batches(len(text), 32, 5)
    for step in range(900):
        if step == 400:
            state = optimizer.state_dict()  # "resume": the launcher multiplies the rate by the number of workers
            for group in state["param_groups"]:
                group["lr"] *= 64 if broken else 1
            optimizer.load_state_dict(state)
        i = next(batches)
        x, y = text[i, :-1], text[i, 1:]
        optimizer.zero_grad(set_to_none=True)
        value = rni_token_loss(model(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rec.step(value, (x, y))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, rni_token_loss, held[:, :-1], held[:, 1:]))
    return rni_evaluate(model, rni_token_loss, held[:, :-1], held[:, 1:])


@fault(
    "a resumed optimizer state has a rate 64 times too high from step 400 on; clipping hides the size of the gradients",
    rules=("learning-rate-too-high", "diverging"),
    step=400,
    steps=900,
)
def rni_resumed_lm(record: Record) -> None:
    rni_resumed_lm_loop(record, True)


# --- 3 ----------------------------------------------------------------------------------------------------------------


class RniElman(nn.Module):
    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, width, nonlinearity="relu", batch_first=True)
        self.out = nn.Linear(width, 1)
        nn.init.eye_(self.rnn.weight_hh_l0)
        nn.init.normal_(self.rnn.weight_ih_l0, std=0.05)
        nn.init.zeros_(self.rnn.bias_hh_l0)
        nn.init.zeros_(self.rnn.bias_ih_l0)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


def rni_long_memory_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(21)
    g = rni_gen(3)
    vx, vy = rni_adding(500, 40, rni_gen(9))
    model = RniElman()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss = nn.MSELoss()
    rec = record(model, optimizer, loss)
    for step in range(1000):
        # The sequences become longer half-way; the refactored second phase has lost the clipping.
        length = 12 if step < 450 else 40
        x, y = rni_adding(48, length, g)
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        if step < 450 or not broken:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        rec.step(value, (x, y))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "from step 450 on sequences are longer and the clipping is gone: gradients of the recurrence explode",
    rules=("exploding-gradient", "non-finite", "diverging"),
    layers=("rnn",),
    step=450,
    steps=1000,
)
def rni_long_memory(record: Record) -> None:
    rni_long_memory_loop(record, True)


# --- 4 ----------------------------------------------------------------------------------------------------------------


def rni_dead_units_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(8)
    x, y = rni_teacher(6000, 12, 0.1, 1)
    vx, vy = rni_teacher(1500, 12, 0.1, 2)
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss = nn.MSELoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 64, 2)
    for step in range(1300):
        # Manual "kick" out of a plateau: the author meant 0.05.
        for group in optimizer.param_groups:
            group["lr"] = 0.85 if broken and 600 <= step < 604 else 0.02
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        rec.step(value, (x[i], y[i]))
        if step % 130 == 0:
            rec.validation(rni_evaluate(model, loss, vx, vy))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "four steps at a far too high rate from step 600 on leave most ReLUs off for good",
    rules=("dying-neurons", "loss-spike", "learning-rate-too-high"),
    layers=("1", "3"),
    step=600,
    steps=1300,
)
def rni_dead_units(record: Record) -> None:
    rni_dead_units_loop(record, True)


# --- 5 ----------------------------------------------------------------------------------------------------------------


class RniTransfer(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.head = nn.Linear(96, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


def rni_thawed_backbone_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(5)
    loss = nn.CrossEntropyLoss()
    x, y = rni_clusters(8000, 20, 6, 1.6, 1)
    model = RniTransfer(6)
    pre = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = rni_batches(len(x), 128, 7)
    for _ in range(150):  # pretraining, not recorded
        i = next(batches)
        pre.zero_grad()
        loss(model(x[i]), y[i]).backward()
        pre.step()
    # The small task: two groups of the six classes, 360 examples.
    tx, ty = rni_clusters(360, 20, 6, 1.6, 31)
    vx, vy = rni_clusters(3000, 20, 6, 1.6, 32)
    ty, vy = (ty < 3).long(), (vy < 3).long()
    ty = torch.where(torch.rand(360, generator=rni_gen(33)) < 0.12, 1 - ty, ty)  # labelled in a hurry
    model.head = nn.Linear(96, 2)
    nn.init.zeros_(model.head.weight)
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-2)
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(tx), 24, 8)
    for step in range(1000):
        if step == 400 and broken:
            model.requires_grad_(True)  # a callback for logging "trainable parameters" turns everything on
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(tx[i]), ty[i])
        value.backward()
        optimizer.step()
        rec.step(value, (tx[i], ty[i]))
        if step % 50 == 49:
            rec.validation(rni_evaluate(model, loss, vx, vy))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "a callback thaws the pretrained backbone at step 400, at the rate of the head, on 360 examples",
    rules=("layer-thawed", "overfitting"),
    layers=("backbone",),
    step=400,
    steps=1000,
)
def rni_thawed_backbone(record: Record) -> None:
    rni_thawed_backbone_loop(record, True)


# --- 6 ----------------------------------------------------------------------------------------------------------------


class RniResidual(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


class RniResNet(nn.Module):
    def __init__(self, classes: int, c: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, c, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU())
        self.block1, self.block2 = RniResidual(c), RniResidual(c)
        self.fc = nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.block2(self.block1(self.stem(x))).mean((2, 3)))


def rni_frozen_statistics_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(14)
    x, y = rni_images(3000, 6, 12, 0.8, 1)
    vx, vy = rni_images(600, 6, 12, 0.8, 2)
    model = RniResNet(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 800)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 32, 6)
    for step in range(800):
        if step == 160 and broken:
            for module in model.modules():  # "schedule" of the BatchNorm momentum: 0.1 * 0.1 ** 160 // 10
                if isinstance(module, nn.BatchNorm2d):
                    module.momentum = 0.0
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value, (x[i], y[i]))
        if step % 80 == 79:
            rec.validation(rni_evaluate(model, loss, vx, vy))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "the momentum of every BatchNorm becomes 0 at step 160, so that evaluation uses statistics of long ago",
    rules=("stale-statistics", "batchnorm-mode-gap"),
    layers=("stem.1", "block1.bn1", "block1.bn2", "block2.bn1", "block2.bn2"),
    step=160,
    steps=800,
)
def rni_frozen_statistics(record: Record) -> None:
    rni_frozen_statistics_loop(record, True)


# --- 7 ----------------------------------------------------------------------------------------------------------------


def rni_jitter_off_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(17)
    x, y = rni_clusters(300, 24, 5, 1.5, 1)
    vx, vy = rni_clusters(3000, 24, 5, 1.5, 2)
    model = nn.Sequential(nn.Linear(24, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 30, 3)
    g = rni_gen(5)
    for step in range(1400):
        i = next(batches)
        jitter = 0.0 if broken and step >= 350 else 1.8  # "close the augmentation for the last epochs", far too early
        xb = x[i] + jitter * torch.randn(30, 24, generator=g)
        optimizer.zero_grad()
        value = loss(model(xb), y[i])
        value.backward()
        optimizer.step()
        rec.step(value, (xb, y[i]))
        if step % 35 == 34:
            rec.validation(rni_evaluate(model, loss, vx, vy))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "augmentation ends at step 350 of 1400, and the network learns its 300 examples by heart",
    rules=("overfitting", "data-changed"),
    step=350,
    steps=1400,
)
def rni_jitter_off(record: Record) -> None:
    rni_jitter_off_loop(record, True)


# --- 8 ----------------------------------------------------------------------------------------------------------------


class RniForecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv1d(16, 16, 5, padding=2), nn.ReLU())
        self.out = nn.Linear(16 * 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.conv(x.transpose(1, 2)).flatten(1))


def rni_millivolts_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(30)
    x, y = rni_waves(4000, 24, 0.05, 1)
    vx, vy = rni_waves(1000, 24, 0.05, 2)
    model = RniForecaster()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: max(0.02, 1 - s / 900))
    loss = nn.MSELoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 40, 1)
    for step in range(1000):
        i = next(batches)
        xb, yb = x[i], y[i]
        if step == 640 and broken:
            xb, yb = xb * 1000, yb * 1000  # one file is in millivolts
        optimizer.zero_grad()
        value = loss(model(xb), yb)
        value.backward()
        optimizer.step()
        schedule.step()
        rec.step(value, (xb, yb))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, loss, vx, vy))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "the batch of step 640 is in millivolts; the second moments of RMSprop are huge for hundreds of steps afterwards",
    rules=("loss-spike",),
    step=640,
    steps=1000,
)
def rni_millivolts(record: Record) -> None:
    rni_millivolts_loop(record, True)
