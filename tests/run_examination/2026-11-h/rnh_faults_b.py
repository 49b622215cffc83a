"""Training loops with a fault: second half."""

from __future__ import annotations

import math

import torch
from program import Record, fault
from rnh_data import accuracy, digits, evaluated, phrases, ratings, seeded, shuffled
from torch import Tensor, nn
from torch.nn import functional as F


class Transfer(nn.Module):
    """An encoder learned before, and a new head."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def thawed(record: Record, broken: bool = True) -> dict[str, float]:
    """Few labels on top of a frozen encoder; a callback meant for the export thaws everything."""
    torch.manual_seed(108)
    x, y, hx, hy = digits(8)
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.Tanh())
    old = nn.Sequential(encoder, nn.Linear(32, 10))
    teacher = torch.optim.Adam(old.parameters(), lr=2e-3)
    for a, b in shuffled(x, y, 64, 250, 8):
        teacher.zero_grad()
        F.cross_entropy(old(a), b).backward()
        teacher.step()
    x, y = x[:120], y[:120].clone()
    wrong = torch.rand(len(y), generator=seeded(80)) < 0.1
    y[wrong] = (y[wrong] + 3) % 10
    model = Transfer(encoder)
    encoder.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-3)
    loss = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 24, 1000, 9)):
        if step == 450 and broken:
            for p in model.parameters():
                p.requires_grad_(True)
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 40 == 39:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy), "held_out_accuracy": accuracy(model, hx, hy)}


@fault("A callback thaws the frozen encoder, which the rate of the head then makes forget what it had learned",
       rules=("layer-thawed", "overfitting"), layers=("encoder",), step=450, steps=1000)
def rnh_export_callback_thaws(record: Record) -> None:
    """Few labels on a frozen encoder."""
    thawed(record)


class Ratings(nn.Module):
    """Embeddings of users and items, and a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(200, 12)
        self.items = nn.Embedding(120, 12)
        self.mix = nn.Sequential(nn.Linear(36, 48), nn.ReLU(), nn.Linear(48, 1))
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, pairs: Tensor) -> Tensor:
        u, v = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        return self.mix(torch.cat([u, v, u * v], 1)).squeeze(1)


def dropped_group(record: Record, broken: bool = True) -> dict[str, float]:
    """A recommender whose embeddings leave the optimizer when the warm-up is over."""
    torch.manual_seed(109)
    rng = seeded(90)
    hx, hy = ratings(3000, rng)
    model = Ratings()
    optimizer = torch.optim.Adam([
        {"params": [*model.users.parameters(), *model.items.parameters()], "lr": 1e-2},
        {"params": model.mix.parameters(), "lr": 2e-3},
    ])
    loss = nn.MSELoss()
    recorder = record(model, optimizer, loss)
    for step in range(1300):
        if step == 270 and broken:
            del optimizer.param_groups[0]
        a, b = ratings(128, rng)
        model.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy)}


@fault("At the end of the warm-up the group of the embeddings is taken out of the optimizer",
       rules=("no-gradient",), layers=("users", "items"), step=270, steps=1300)
def rnh_embeddings_leave_optimizer(record: Record) -> None:
    """A recommender."""
    dropped_group(record)


def decay_schedule(record: Record, broken: bool = True) -> dict[str, float]:
    """A schedule of weight decay in percent, read as a fraction: it ends a hundred times too strong."""
    torch.manual_seed(110)
    x, y, hx, hy = digits(10)
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU(),
                          nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    loss = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 32, 1400, 10)):
        share = max(0.0, (step - 400) / 1000)
        target = 40.0 if broken else 0.4
        optimizer.param_groups[0]["weight_decay"] = 0.01 + (target - 0.01) * (1 - math.cos(math.pi * share)) / 2
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy), "held_out_accuracy": accuracy(model, hx, hy)}


@fault("Weight decay follows a cosine upwards to 40 instead of 0.4 and wins over the gradients late",
       rules=("weight-decay-dominates", "rank-collapse"), step=500, steps=1400)
def rnh_decay_schedule_in_percent(record: Record) -> None:
    """Digits with a schedule of weight decay."""
    decay_schedule(record)


class Coder(nn.Module):
    """An autoencoder that takes inputs in the precision of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 16))
        self.decoder = nn.Sequential(nn.Linear(16, 96), nn.GELU(), nn.Linear(96, 64))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x.to(self.encoder[0].weight.dtype))).float()


def half_weights(record: Record, broken: bool = True) -> dict[str, float]:
    """An autoencoder whose weights, not only its products, become bfloat16 in the second phase."""
    torch.manual_seed(111)
    x, _, hx, _ = digits(11)
    model = Coder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss = nn.MSELoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, x, 64, 1500, 11)):
        if step == 400 and broken:
            model.to(torch.bfloat16)
            for state in optimizer.state.values():
                state["momentum_buffer"] = state["momentum_buffer"].to(torch.bfloat16)
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hx))
    return {"held_out_loss": evaluated(model, loss, hx, hx)}


@fault("The weights themselves become bfloat16: most steps are smaller than their precision and are lost",
       rules=("lost-updates", "rounding-error", "learning-rate-too-low"), layers=(), step=400, steps=1500)
def rnh_weights_become_bfloat16(record: Record) -> None:
    """An autoencoder of digits."""
    half_weights(record)


class Writer(nn.Module):
    """A small transformer that writes on."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 32)
        self.places = nn.Parameter(torch.randn(16, 32) * 0.1)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(32)
        self.out = nn.Linear(32, 20)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        h = self.block(self.words(x) + self.places[:n], src_mask=mask, is_causal=True)
        return self.out(self.norm(h))


def flat(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over all places."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def endless_warmup(record: Record, broken: bool = True) -> dict[str, float]:
    """A language model whose second warm-up multiplies its rate without an end."""
    torch.manual_seed(112)
    rng = seeded(12)
    held = phrases(300, rng)
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    recorder = record(model, optimizer, flat)
    rate = 3e-3
    for step in range(900):
        if step >= 400:
            rate = rate * 1.012 if broken or step < 420 else rate * 0.997
        optimizer.param_groups[0]["lr"] = rate
        text = phrases(32, rng)
        a, b = text[:, :-1], text[:, 1:]
        optimizer.zero_grad()
        value = flat(model(a), b)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 30 == 29:
            recorder.validation(evaluated(model, flat, held[:, :-1], held[:, 1:]))
    return {"held_out_loss": evaluated(model, flat, held[:, :-1], held[:, 1:])}


@fault("The rate of a language model is multiplied by 1.012 at every step without an end, until the loss rises",
       rules=("learning-rate-too-high", "diverging", "rank-collapse"), step=500, steps=900)
def rnh_second_warmup_never_ends(record: Record) -> None:
    """A made-up language."""
    endless_warmup(record)


def raw_inputs(record: Record, broken: bool = True) -> dict[str, float]:
    """A loader, re-created for the second half, that has lost the step which divides by the deviation."""
    torch.manual_seed(113)
    x, y, hx, hy = digits(13, images=True)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1),
                          nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(384, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 32, 1100, 13)):
        if step >= 580 and broken:
            a = a * 6.0 + 4.9
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 40 == 39:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy), "held_out_accuracy": accuracy(model, hx, hy)}


@fault("A re-created loader gives pixels from 0 to 16 instead of standardised ones; evaluation is as before",
       rules=("data-changed", "unscaled-input"), step=580, steps=1100)
def rnh_loader_forgets_to_standardise(record: Record) -> None:
    """Digits with a loader made twice."""
    raw_inputs(record)


class Twins(nn.Module):
    """Two views of an example through one encoder and one predictor."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 32))
        self.predictor = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 32))

    def forward(self, views: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        z, w = self.encoder(views[:, 0]), self.encoder(views[:, 1])
        return z, w, self.predictor(z), self.predictor(w)


class Likeness(nn.Module):
    """One view's prediction of the other; targets are not used."""

    stop = True

    def forward(self, outputs: tuple[Tensor, Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
        z, w, p, q = outputs
        if self.stop:
            z, w = z.detach(), w.detach()
        return -(F.cosine_similarity(p, w).mean() + F.cosine_similarity(q, z).mean()) / 2


def spread(model: Twins, x: Tensor) -> float:
    """Mean deviation of unit-length features, times the root of their number: near 1 is well spread."""
    model.eval()
    with torch.no_grad():
        value = F.normalize(model.encoder(x)).std(0).mean().item() * math.sqrt(32)
    model.train()
    return value


def probe(model: Twins, x: Tensor, y: Tensor, hx: Tensor, hy: Tensor) -> float:
    """Accuracy of the nearest neighbour in feature space."""
    model.eval()
    with torch.no_grad():
        a, b = F.normalize(model.encoder(x)), F.normalize(model.encoder(hx))
    model.train()
    return (y[(b @ a.T).argmax(1)] == hy).float().mean().item()


def twins(record: Record, broken: bool = True) -> dict[str, float]:
    """Self-supervised pairs; a change of the loss in mid-run loses its stop of gradients."""
    torch.manual_seed(114)
    x, y, hx, hy = digits(14)
    model = Twins()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loss = Likeness()
    recorder = record(model, optimizer, loss)
    rng = seeded(14)
    for step, (a, b) in enumerate(shuffled(x, y, 64, 1000, 14)):
        if step == 400 and broken:
            loss.stop = False
        noise = torch.randn(64, 2, 64, generator=rng) * 0.6
        keep = (torch.rand(64, 2, 64, generator=rng) > 0.3).float()
        views = (a[:, None] + noise) * keep
        optimizer.zero_grad()
        value = loss(model(views), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (views, b))
    return {"spread": spread(model, hx), "neighbour_accuracy": probe(model, x, y, hx, hy)}


@fault("The stop of gradients is lost from a self-supervised loss: all examples go to one point while the loss falls",
       rules=("rank-collapse",), layers=("encoder", "predictor"), step=400, steps=1000)
def rnh_twins_collapse(record: Record) -> None:
    """Self-supervised digits."""
    twins(record)


CASES = {
    "rnh_export_callback_thaws": thawed,
    "rnh_embeddings_leave_optimizer": dropped_group,
    "rnh_decay_schedule_in_percent": decay_schedule,
    "rnh_weights_become_bfloat16": half_weights,
    "rnh_second_warmup_never_ends": endless_warmup,
    "rnh_loader_forgets_to_standardise": raw_inputs,
    "rnh_twins_collapse": twins,
}
