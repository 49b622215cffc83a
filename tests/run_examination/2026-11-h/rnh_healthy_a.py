"""Training loops with nothing wrong: first half."""

from __future__ import annotations

import math

import torch
from program import Record, healthy
from rnh_data import accuracy, diabetes, digits, evaluated, phrases, seeded, shuffled, split, waves
from torch import Tensor, nn
from torch.nn import functional as F


def restarts(record: Record) -> dict[str, float]:
    """Warm restarts."""
    torch.manual_seed(201)
    x, y, hx, hy = digits(21)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 200, 2)
    loss = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 32, 1400, 21)):
        a = a + 0.4 * torch.randn_like(a)
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        schedule.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_accuracy": accuracy(model, hx, hy)}


@healthy("Cosine restarts: the rate jumps back up twice, and the loss with it", steps=1400)
def rnh_warm_restarts(record: Record) -> None:
    """Digits with noise."""
    restarts(record)


def surrogate(outputs: Tensor, targets: Tensor) -> Tensor:
    """Policy gradient; targets hold the action taken and its advantage."""
    chosen = F.log_softmax(outputs, 1).gather(1, targets[:, :1].long()).squeeze(1)
    entropy = torch.distributions.Categorical(logits=outputs).entropy()
    return -(chosen * targets[:, 1]).mean() - 0.01 * entropy.mean()


def policy(record: Record) -> dict[str, float]:
    """A contextual bandit."""
    torch.manual_seed(202)
    x, y, hx, hy = digits(22)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = record(model, optimizer, surrogate)
    baseline = 0.1
    for a, b in shuffled(x, y, 64, 2000, 22):
        logits = model(a)
        action = torch.distributions.Categorical(logits=logits.detach()).sample()
        reward = (action == b).float()
        targets = torch.stack([action.float(), reward - baseline], 1)
        baseline = 0.95 * baseline + 0.05 * reward.mean().item()
        optimizer.zero_grad()
        value = surrogate(logits, targets)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, targets))
    return {"held_out_accuracy": accuracy(model, hx, hy)}


@healthy("Policy gradients: a loss that is noise around zero and says nothing of progress", steps=2000)
def rnh_policy_gradient(record: Record) -> None:
    """Rewards for naming digits."""
    policy(record)


class Writer(nn.Module):
    """A small transformer that writes on."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 32)
        self.places = nn.Parameter(torch.randn(16, 32) * 0.1)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(32)
        self.out = nn.Linear(32, 20)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        return self.out(self.norm(self.block(self.words(x) + self.places[:n], src_mask=mask, is_causal=True)))


def flat(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over all places."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def warmed(record: Record) -> dict[str, float]:
    """A long warm-up from nothing, then the inverse square root."""
    torch.manual_seed(203)
    rng = seeded(23)
    held = phrases(300, rng)
    model = Writer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min((i + 1) / 300, math.sqrt(300 / (i + 1))))
    recorder = record(model, optimizer, flat)
    for step in range(1200):
        text = phrases(32, rng)
        a, b = text[:, :-1], text[:, 1:]
        optimizer.zero_grad()
        value = flat(model(a), b)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        recorder.step(value, (a, b))
        if step % 60 == 59:
            recorder.validation(evaluated(model, flat, held[:, :-1], held[:, 1:]))
    return {"held_out_loss": evaluated(model, flat, held[:, :-1], held[:, 1:]), "loss_of_guessing": math.log(20)}


@healthy("A long warm-up, a high peak rate, constant clipping, and a loss whose floor is the noise of the language",
         steps=1200)
def rnh_transformer_warmup(record: Record) -> None:
    """A made-up language."""
    warmed(record)


def unfrozen(record: Record) -> dict[str, float]:
    """Layers unfrozen one by one at falling rates, as fine-tuning is taught."""
    torch.manual_seed(204)
    x, y, hx, hy = digits(24, images=True)
    old = y < 5
    stem = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    mid = nn.Sequential(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    first = nn.Sequential(stem, mid, nn.Linear(96, 5))
    teacher = torch.optim.Adam(first.parameters(), lr=2e-3)
    for a, b in shuffled(x[old], y[old], 32, 200, 24):
        teacher.zero_grad()
        F.cross_entropy(first(a), b).backward()
        teacher.step()
    model = nn.Sequential()
    model.add_module("stem", stem.requires_grad_(False))
    model.add_module("mid", mid.requires_grad_(False))
    model.add_module("head", nn.Linear(96, 10))
    optimizer = torch.optim.AdamW([{"params": model.head.parameters(), "lr": 3e-3},
                                   {"params": mid.parameters(), "lr": 1e-3},
                                   {"params": stem.parameters(), "lr": 3e-4}], weight_decay=0.05)
    loss = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 32, 1200, 25)):
        if step == 400:
            mid.requires_grad_(True)
        if step == 750:
            stem.requires_grad_(True)
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_accuracy": accuracy(model, hx, hy)}


@healthy("Gradual unfreezing on purpose: two blocks begin to learn in mid-run, at smaller rates", steps=1200)
def rnh_gradual_unfreezing(record: Record) -> None:
    """From five digits to ten."""
    unfrozen(record)


def parity(record: Record) -> dict[str, float]:
    """Parity of three of ten bits: nothing seems to happen at first."""
    torch.manual_seed(205)
    rng = seeded(26)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15)
    loss = nn.BCEWithLogitsLoss()
    recorder = record(model, optimizer, loss)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        a = torch.randint(0, 2, (n, 10), generator=rng).float() * 2 - 1
        return a, (a[:, :3].prod(1, keepdim=True) + 1) / 2

    hx, hy = draw(1000)
    for step in range(1500):
        a, b = draw(64)
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    with torch.no_grad():
        return {"held_out_accuracy": ((model(hx) > 0) == (hy > 0.5)).float().mean().item()}


@healthy("An early plateau at the loss of guessing, then a fall", steps=1500)
def rnh_parity_plateau(record: Record) -> None:
    """Parity of three bits."""
    parity(record)


def tiny_batches(record: Record) -> dict[str, float]:
    """Four patients at a time."""
    torch.manual_seed(206)
    x, y, hx, hy = diabetes(27)
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [800, 1200], 0.3)
    loss = nn.MSELoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 4, 1500, 27)):
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        schedule.step()
        recorder.step(value, (a, b))
        if step % 80 == 79:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy), "loss_of_mean": hy.var().item()}


@healthy("Batches of four and noisy targets: a loss that jumps tenfold from step to step", steps=1500)
def rnh_tiny_batches(record: Record) -> None:
    """Diabetes."""
    tiny_batches(record)


def strong_dropout(record: Record) -> dict[str, float]:
    """Much dropout on a wide network."""
    torch.manual_seed(207)
    x, y, hx, hy = digits(28)
    model = nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.6), nn.Linear(256, 128),
                          nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=7e-4, weight_decay=1e-4)
    loss = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 32, 1000, 28)):
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 25 == 24:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_accuracy": accuracy(model, hx, hy)}


@healthy("Dropout of 0.6: the training loss stays above that of held-out data and is noisy", steps=1000)
def rnh_strong_dropout(record: Record) -> None:
    """Digits."""
    strong_dropout(record)


def mixed_up(record: Record) -> dict[str, float]:
    """Mixup: targets are probabilities, and the loss stays high."""
    torch.manual_seed(208)
    x, y, hx, hy = digits(29, images=True)
    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
                          nn.Conv2d(12, 24, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
                          nn.Flatten(), nn.Linear(384, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1200)
    loss = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss)
    beta = torch.distributions.Beta(0.6, 0.6)
    for step, (a, b) in enumerate(shuffled(x, y, 48, 1200, 29)):
        share, order = beta.sample().item(), torch.randperm(48)
        hot = F.one_hot(b, 10).float()
        a, b = share * a + (1 - share) * a[order], share * hot + (1 - share) * hot[order]
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        schedule.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_accuracy": accuracy(model, hx, hy)}


@healthy("Mixup: the loss of training stays high and swings with the share that is mixed", steps=1200)
def rnh_mixup(record: Record) -> None:
    """Digits."""
    mixed_up(record)


def rare_class(record: Record) -> dict[str, float]:
    """One example in twenty is of the class that counts, weighted in the loss."""
    torch.manual_seed(209)
    rng = seeded(30)
    x = torch.randn(4000, 12, generator=rng)
    score = x[:, 0] * x[:, 1] + x[:, 2] ** 2 - 0.5 * x[:, 3]
    y = (score > score.quantile(0.95)).long()
    x, y, hx, hy = split(x, y, 1000, 30)
    model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.3)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 8.0]))
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 40, 1000, 30)):
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    with torch.no_grad():
        guess = model(hx).argmax(1)
    return {"recall": (guess[hy == 1] == 1).float().mean().item(),
            "specificity": (guess[hy == 0] == 0).float().mean().item()}


@healthy("A class of one in twenty with a weight: some batches have none of it, others swing the loss", steps=1000)
def rnh_rare_class(record: Record) -> None:
    """A weighted loss."""
    rare_class(record)


def full_batch(record: Record) -> dict[str, float]:
    """Full-batch descent at a rate near the edge of stability."""
    torch.manual_seed(210)
    rng = seeded(31)
    x, y = waves(300, rng, 0.05)
    hx, hy = waves(600, rng, 0.0)
    model = nn.Sequential(nn.Linear(2, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    loss = nn.MSELoss()
    recorder = record(model, optimizer, loss)
    for step in range(2000):
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        optimizer.step()
        recorder.step(value, (x, y))
        if step % 100 == 99:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy), "loss_of_mean": hy.var().item()}


@healthy("The whole data set in every batch, on purpose, at a large rate that makes the loss ripple", steps=2000)
def rnh_full_batch_large_rate(record: Record) -> None:
    """A small regression."""
    full_batch(record)


CASES = {
    "rnh_warm_restarts": restarts,
    "rnh_policy_gradient": policy,
    "rnh_transformer_warmup": warmed,
    "rnh_gradual_unfreezing": unfrozen,
    "rnh_parity_plateau": parity,
    "rnh_tiny_batches": tiny_batches,
    "rnh_strong_dropout": strong_dropout,
    "rnh_mixup": mixed_up,
    "rnh_rare_class": rare_class,
    "rnh_full_batch_large_rate": full_batch,
}
