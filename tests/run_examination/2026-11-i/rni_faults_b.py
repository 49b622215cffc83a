"""Training loops with a fault, second half."""

from __future__ import annotations


import torch
from program import Record, fault
from rni_data import rni_batches, rni_clusters, rni_gen, rni_images, rni_masks, rni_teacher, rni_text, rni_textures, rni_waves
from rni_faults_a import RniDecoder, rni_evaluate, rni_token_loss
from torch import Tensor, nn

# --- 9 ----------------------------------------------------------------------------------------------------------------


class RniLSTM(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, width, batch_first=True)
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])


def rni_decay_ramp_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(6)
    x, y = rni_waves(4000, 20, 0.05, 1)
    vx, vy = rni_waves(1000, 20, 0.05, 2)
    model = RniLSTM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    loss = nn.MSELoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 40, 3)
    for step in range(1100):
        if broken and step >= 500:  # a ramp of the decay with an exponent instead of a factor
            optimizer.param_groups[0]["weight_decay"] = min(8.0, 1e-3 * 1.06 ** (step - 500))
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rec.step(value, (x[i], y[i]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, loss, vx, vy))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "weight decay grows by 6 % a step from step 500 on, to 8: it takes away what has been learned",
    rules=("weight-decay-dominates",),
    step=550,
    steps=1100,
)
def rni_decay_ramp(record: Record) -> None:
    rni_decay_ramp_loop(record, True)


# --- 10 ---------------------------------------------------------------------------------------------------------------


class RniAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 12))
        self.decoder = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 144))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            return self.decoder(self.encoder(x)).float()


def rni_loss_scale_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(9)
    x, vx = rni_images(3000, 8, 12, 0.2, 1)[0].flatten(1), rni_images(600, 8, 12, 0.2, 2)[0].flatten(1)
    model = RniAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = nn.MSELoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 64, 2)
    scale = 1024.0
    for step in range(1000):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), x[i])
        (value * scale).backward()
        for p in model.parameters():
            p.grad /= scale
        finite = all(torch.isfinite(p.grad).all() for p in model.parameters())
        if finite:
            optimizer.step()
        if not finite or (broken and step >= 200):  # the patched scaler takes every step for an overflow
            scale = max(scale / 2, 2.0**-20)
        rec.step(value, (x[i], x[i]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, loss, vx, vx))
    return rni_evaluate(model, loss, vx, vx)


@fault(
    "the loss scale is halved at every step from step 200 on: float16 gradients underflow to 0 some 15 steps later",
    rules=("gradient-underflow", "no-gradient"),
    step=212,
    steps=1000,
)
def rni_loss_scale(record: Record) -> None:
    rni_loss_scale_loop(record, True)


# --- 11 ---------------------------------------------------------------------------------------------------------------


class RniConvNet(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
        )
        self.classifier = nn.Linear(16 * 36, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def rni_annotators_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(40)
    x, y = rni_images(4000, 8, 12, 0.9, 1)
    vx, vy = rni_images(800, 8, 12, 0.9, 2)
    model = RniConvNet(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 32, 6)
    g = rni_gen(44)
    for step in range(900):
        i = next(batches)
        yb = y[i]
        if step >= 500 and broken:  # a second shard with labels of another annotation run: half of them are random
            noisy = torch.rand(len(yb), generator=g) < 0.5
            yb = torch.where(noisy, torch.randint(0, 8, yb.shape, generator=g), yb)
        optimizer.zero_grad()
        value = loss(model(x[i]), yb)
        value.backward()
        optimizer.step()
        rec.step(value, (x[i], yb))
        if step % 75 == 74:
            rec.validation(rni_evaluate(model, loss, vx, vy))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "half of the labels are random from step 500 on",
    rules=("data-changed", "labels-unrelated"),
    step=500,
    steps=900,
)
def rni_annotators(record: Record) -> None:
    rni_annotators_loop(record, True)


# --- 12 ---------------------------------------------------------------------------------------------------------------


def rni_stuck_worker_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(50)
    text, held = rni_text(4000, 14, 16, 1), rni_text(400, 14, 16, 2)
    model = RniDecoder(16, 14, width=24, depth=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rec = record(model, optimizer, rni_token_loss)
    batches = rni_batches(len(text), 32, 5)
    queue: list[Tensor] = []
    for step in range(1000):
        if step < 450 or not broken:
            queue = [*queue, next(batches)][-2:]
        i = queue[step % len(queue)]  # two workers; after step 450 each hands out its last batch again and again
        x, y = text[i, :-1], text[i, 1:]
        optimizer.zero_grad()
        value = rni_token_loss(model(x), y)
        value.backward()
        optimizer.step()
        rec.step(value, (x, y))
        if step % 50 == 49:
            rec.validation(rni_evaluate(model, rni_token_loss, held[:, :-1], held[:, 1:]))
    return rni_evaluate(model, rni_token_loss, held[:, :-1], held[:, 1:])


@fault(
    "from step 450 on the two workers of the loader hand out the same two batches for ever",
    rules=("repeated-batches", "overfitting"),
    step=450,
    steps=1000,
)
def rni_stuck_worker(record: Record) -> None:
    rni_stuck_worker_loop(record, True)


# --- 13 ---------------------------------------------------------------------------------------------------------------


class RniUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.ReLU())
        self.bottleneck = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Upsample(None, 2))
        self.decoder = nn.Conv2d(16, 1, 1)
        self.cut = False

    def forward(self, x: Tensor) -> Tensor:
        h = self.encoder(x)
        if self.cut:
            h = h.detach()
        return self.decoder(self.bottleneck(h))


def rni_curriculum_cut_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(61)
    easy, hard = rni_masks(800, 16, 0.3, 1), rni_textures(1500, 16, 0.3, 2)
    vx, vy = rni_textures(300, 16, 0.3, 3)
    model = RniUNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = nn.BCEWithLogitsLoss()
    rec = record(model, optimizer, loss)
    eb, hb = rni_batches(800, 16, 4), rni_batches(1500, 16, 5)
    for step in range(700):
        if step == 150 and broken:
            model.cut = True  # second stage of the curriculum: left from an ablation
        x, y = easy if step < 150 else hard
        i = next(eb if step < 150 else hb)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        rec.step(value, (x[i], y[i]))
        if step % 70 == 69:
            rec.validation(rni_evaluate(model, loss, vx, vy))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "the second stage of the curriculum, from step 150 on, detaches the encoder, which stops learning",
    rules=("no-gradient",),
    layers=("encoder",),
    step=150,
    steps=700,
)
def rni_curriculum_cut(record: Record) -> None:
    rni_curriculum_cut_loop(record, True)


# --- 14 ---------------------------------------------------------------------------------------------------------------


def rni_reshuffle_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(70)
    x, y = rni_clusters(3200, 16, 4, 1.0, 1)
    vx, vy = rni_clusters(1500, 16, 4, 1.0, 2)
    model = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 32), nn.SiLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    g = rni_gen(2)
    step = 0
    for epoch in range(8):
        order = torch.randperm(len(x), generator=g)
        if epoch >= 3 and broken:
            order = order[y[order].argsort(stable=True)]  # a stratified split was meant
        for b in range(160):
            i = order[b * 20 : b * 20 + 20]
            optimizer.zero_grad()
            value = loss(model(x[i]), y[i])
            value.backward()
            optimizer.step()
            rec.step(value, (x[i], y[i]))
            step += 1
        rec.validation(rni_evaluate(model, loss, vx, vy))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "from the fourth epoch (step 480) on the data are in the order of their classes",
    rules=("sorted-batches",),
    step=480,
    steps=1280,
)
def rni_reshuffle(record: Record) -> None:
    rni_reshuffle_loop(record, True)


# --- 15 ---------------------------------------------------------------------------------------------------------------


def rni_flat_tanh_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(81)
    x, y = rni_teacher(6000, 10, 0.05, 1)
    vx, vy = rni_teacher(1500, 10, 0.05, 2)
    model = nn.Sequential(nn.Linear(10, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss = nn.MSELoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 50, 9)
    for step in range(1200):
        i = next(batches)
        xb = x[i]
        optimizer.zero_grad()
        value = loss(model(xb), y[i])
        value.backward()
        if step == 380 and broken:  # a finder of rates is run in between, and its last step is not undone
            for group in optimizer.param_groups:
                group["lr"] = 6.0
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = 2e-3
        rec.step(value, (xb, y[i]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, loss, vx, vy))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "one step at a rate of 6 at step 380 drives the tanhs flat, and they stay there",
    rules=("saturated-activation", "loss-spike"),
    layers=("1", "3"),
    step=380,
    steps=1200,
)
def rni_flat_tanh(record: Record) -> None:
    rni_flat_tanh_loop(record, True)


# --- 16 ---------------------------------------------------------------------------------------------------------------


def rni_half_weights_loop(record: Record, broken: bool) -> float:
    torch.manual_seed(90)
    x, y = rni_clusters(6000, 16, 6, 1.3, 1)
    vx, vy = rni_clusters(1500, 16, 6, 1.3, 2)
    model = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=4e-3, momentum=0.9)
    loss = nn.CrossEntropyLoss()
    rec = record(model, optimizer, loss)
    batches = rni_batches(len(x), 100, 9)
    for step in range(1600):
        i = next(batches)
        optimizer.zero_grad()
        value = loss(model(x[i]), y[i])
        value.backward()
        optimizer.step()
        if step >= 350 and broken:  # "save memory": weights are kept in bfloat16 between steps
            with torch.no_grad():
                for p in model.parameters():
                    p.copy_(p.bfloat16().float())
        rec.step(value, (x[i], y[i]))
        if step % 100 == 99:
            rec.validation(rni_evaluate(model, loss, vx, vy))
    return rni_evaluate(model, loss, vx, vy)


@fault(
    "from step 350 on weights are rounded to bfloat16 after every step: most updates are lost",
    rules=("lost-updates", "learning-rate-too-low"),
    step=350,
    steps=1600,
)
def rni_half_weights(record: Record) -> None:
    rni_half_weights_loop(record, True)
