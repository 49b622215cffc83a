"""Training loops with a fault: first half."""

from __future__ import annotations

import torch
from program import Record, fault
from rnh_data import accuracy, cancer, digits, evaluated, seeded, shuffled, signals, waves
from torch import Tensor, nn


class Tower(nn.Module):
    """Features and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(256, 48), nn.ReLU(),
        )
        self.head = nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def head_only(record: Record, broken: bool = True) -> dict[str, float]:
    """Second phase with label smoothing, in which a helper clears the head only."""
    torch.manual_seed(101)
    x, y, hx, hy = digits(1, images=True)
    model = Tower()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    loss = nn.CrossEntropyLoss(label_smoothing=0.05)
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 32, 1000, 1)):
        if step == 520:
            optimizer.param_groups[0]["lr"] = 0.0005
        if step >= 520 and broken:
            model.head.zero_grad()
        else:
            optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 40 == 39:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy), "held_out_accuracy": accuracy(model, hx, hy)}


@fault("From the second phase on only the gradients of the head are cleared: those of the body add up",
       rules=("gradients-not-cleared", "learning-rate-too-high", "diverging", "dying-neurons"), layers=("body",),
       step=520, steps=1000)
def rnh_phase_clears_head_only(record: Record) -> None:
    """A phase with its own clearing."""
    head_only(record)


def same_chunk(record: Record, broken: bool = True) -> dict[str, float]:
    """A stream of fresh examples whose worker, restarted after a checkpoint, gives one chunk for ever."""
    torch.manual_seed(102)
    hx, hy = waves(1000, seeded(9), 0.0)
    model = nn.Sequential(nn.Linear(2, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    loss = nn.MSELoss()
    recorder = record(model, optimizer, loss)
    rng = seeded(10)
    for step in range(1200):
        if broken and step >= 560 and (step - 560) % 5 == 0:
            rng = seeded(11)
        a, b = waves(24, rng, 0.4)
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 40 == 39:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy)}


@fault("After a checkpoint the worker is seeded anew every five batches: the same five come again and again",
       rules=("repeated-batches", "overfitting"), step=560, steps=1200)
def rnh_stream_reseeded(record: Record) -> None:
    """A regression on streamed data."""
    same_chunk(record)


def settled_norms(record: Record, broken: bool = True) -> dict[str, float]:
    """A network with BatchNorm whose statistics are kept as they are from some step on, while it learns on."""
    torch.manual_seed(103)
    x, y, hx, hy = digits(3, images=True)
    model = nn.Sequential()
    for i, (c, d, s) in enumerate([(1, 12, 1), (12, 16, 2), (16, 24, 2)]):
        model.add_module(f"conv{i}", nn.Conv2d(c, d, 3, stride=s, padding=1, bias=False))
        model.add_module(f"norm{i}", nn.BatchNorm2d(d))
        model.add_module(f"relu{i}", nn.ReLU())
    model.add_module("flat", nn.Flatten())
    model.add_module("out", nn.Linear(96, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, weight_decay=5e-3, nesterov=True)
    loss = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 48, 1000, 3)):
        if step == 350 and broken:
            for m in model.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.momentum = 0.0
        a = a + 0.1 * torch.randn_like(a)
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy), "held_out_accuracy": accuracy(model, hx, hy)}


@fault("The momentum of all BatchNorms is set to 0, to settle them, while the weights go on at a large rate",
       rules=("stale-statistics", "batchnorm-mode-gap"), layers=("norm0", "norm1", "norm2"), step=350, steps=1000)
def rnh_norms_settled_too_soon(record: Record) -> None:
    """Digits with BatchNorm."""
    settled_norms(record)


def unregularised(record: Record, broken: bool = True) -> dict[str, float]:
    """Tabular data with wrong labels here and there; a last phase without dropout and weight decay."""
    torch.manual_seed(104)
    x, y, hx, hy = cancer(4)
    wrong = torch.rand(len(y), generator=seeded(5)) < 0.15
    y = torch.where(wrong, 1 - y, y)
    model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Dropout(0.6), nn.Linear(128, 128), nn.ReLU(),
                          nn.Dropout(0.6), nn.Linear(128, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1.0)
    loss = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 40, 1300, 4)):
        if step == 500 and broken:
            optimizer.param_groups[0]["weight_decay"] = 0.0
            for m in model.modules():
                if isinstance(m, nn.Dropout):
                    m.p = 0.0
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 20 == 19:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy), "held_out_accuracy": accuracy(model, hx, hy)}


@fault("A last phase without dropout and weight decay learns the wrong labels by heart",
       rules=("overfitting",), step=500, steps=1300)
def rnh_regularisers_switched_off(record: Record) -> None:
    """Tabular classification."""
    unregularised(record)


def own_clip(record: Record, broken: bool = True) -> dict[str, float]:
    """Adaptive clipping that averages norms it has clipped itself, and so clips ever more."""
    torch.manual_seed(105)
    rng = seeded(50)
    x, y = waves(2000, rng, 0.05)
    hx, hy = waves(600, rng, 0.0)
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = nn.SmoothL1Loss()
    recorder = record(model, optimizer, loss)
    mean = 1.0
    for step, (a, b) in enumerate(shuffled(x, y, 64, 1400, 5)):
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        limit = 0.9 * mean if step >= 300 and broken else 2.0
        norm = nn.utils.clip_grad_norm_(model.parameters(), limit).item()
        mean = 0.9 * mean + 0.1 * min(norm, limit)
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy), "last_limit": limit}


@fault("Clipping at a share of the average of norms already clipped: the limit falls to nothing, and steps with it",
       rules=("learning-rate-too-low", "vanishing-gradient", "lost-updates", "gradient-underflow", "no-gradient"),
       step=300, steps=1400)
def rnh_clip_shrinks_itself(record: Record) -> None:
    """A regression with adaptive clipping."""
    own_clip(record)


def hot_resume(record: Record, broken: bool = True) -> dict[str, float]:
    """Resumed from a checkpoint with the default rate of another optimizer, until the scheduler puts it right."""
    torch.manual_seed(106)
    rng = seeded(60)
    x, y = waves(3000, rng, 0.05)
    hx, hy = waves(600, rng, 0.0)
    model = nn.Sequential()
    model.add_module("first", nn.Linear(2, 64))
    model.add_module("act1", nn.ReLU())
    model.add_module("second", nn.Linear(64, 64))
    model.add_module("act2", nn.ReLU())
    model.add_module("out", nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = nn.MSELoss()
    recorder = record(model, optimizer, loss)
    for step, (a, b) in enumerate(shuffled(x, y, 64, 1100, 6)):
        hot = broken and 600 <= step < 608
        optimizer.param_groups[0]["lr"] = 0.12 if hot else 1e-3 * (1 - step / 1400)
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        recorder.step(value, (a, b))
        if step % 50 == 49:
            recorder.validation(evaluated(model, loss, hx, hy))
    with torch.no_grad():
        first = model.act1(model.first(hx))
        second = model.act2(model.second(first))
    return {"held_out_loss": evaluated(model, loss, hx, hy), "dead_first": (first == 0).all(0).sum().item(),
            "dead_second": (second == 0).all(0).sum().item()}


@fault("For eight steps after a resume the rate is 0.12: most rectified units go off and never come back",
       rules=("dying-neurons", "learning-rate-too-high", "rank-collapse", "loss-spike"),
       layers=("second", "act2"), step=600, steps=1100)
def rnh_resume_kills_units(record: Record) -> None:
    """A regression resumed at the wrong rate."""
    hot_resume(record)


class Forecaster(nn.Module):
    """A GRU that says what comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, 24, batch_first=True)
        self.out = nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


def missing_code(record: Record, broken: bool = True) -> dict[str, float]:
    """A forecaster that meets one batch in which missing values are written as 999."""
    torch.manual_seed(107)
    rng = seeded(70)
    hx, hy = signals(500, rng)
    model = Forecaster()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 400, 0.5)
    loss = nn.MSELoss()
    recorder = record(model, optimizer, loss)
    for step in range(1000):
        a, b = signals(32, rng)
        if step == 640 and broken:
            b = b.clone()
            b[:6] = 999.0
        optimizer.zero_grad()
        value = loss(model(a), b)
        value.backward()
        optimizer.step()
        schedule.step()
        recorder.step(value, (a, b))
        if step % 40 == 39:
            recorder.validation(evaluated(model, loss, hx, hy))
    return {"held_out_loss": evaluated(model, loss, hx, hy)}


@fault("One batch whose targets hold the code of missing values, 999, throws the network out of its minimum",
       rules=("loss-spike", "exploding-gradient", "saturated-activation", "unscaled-target"), step=640, steps=1000)
def rnh_missing_values_in_one_batch(record: Record) -> None:
    """A forecast of oscillations."""
    missing_code(record)


CASES = {
    "rnh_phase_clears_head_only": head_only,
    "rnh_stream_reseeded": same_chunk,
    "rnh_norms_settled_too_soon": settled_norms,
    "rnh_regularisers_switched_off": unregularised,
    "rnh_clip_shrinks_itself": own_clip,
    "rnh_resume_kills_units": hot_resume,
    "rnh_missing_values_in_one_batch": missing_code,
}
