"""Faults of the loop itself: gradients, schedules, decay. `mistake=False` is the same loop written rightly."""

from __future__ import annotations

import data
import torch
import torch.nn.functional as F
from program import Record, fault
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@fault(
    "After five plain epochs the loop turns mixup on; the mixup branch has its own backward and step and no zero_grad,"
    " so from there every gradient is added to all the earlier ones",
    rules=("gradients-not-cleared", "exploding-gradient"),
    step=500,
    steps=1500,
)
def mixup_branch_without_zero_grad(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(11)
    x, y = data.tabular(6400, 1)
    held_x, held_y = data.tabular(2000, 2)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    for epoch in range(15):
        for inputs, labels in loader:
            if epoch < 5:
                optimizer.zero_grad()
                loss = criterion(model(inputs), labels)
                loss.backward()
                optimizer.step()
                recorder.step(loss.item(), (inputs, labels))
            else:
                if not mistake:
                    optimizer.zero_grad()
                lam = float(torch.distributions.Beta(0.2, 0.2).sample())
                order = torch.randperm(len(inputs))
                mixed = lam * inputs + (1 - lam) * inputs[order]
                soft = lam * F.one_hot(labels, 5).float() + (1 - lam) * F.one_hot(labels[order], 5).float()
                loss = criterion(model(mixed), soft)
                loss.backward()
                optimizer.step()
                recorder.step(loss.item(), (mixed, soft))
    with torch.no_grad():
        data.SCORES["mixup_branch_without_zero_grad"] = (model(held_x).argmax(1) != held_y).float().mean().item()


class AutoEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 24))
        self.decoder = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 144))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(x))


class Probe(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(24, 48)
        self.out = nn.Linear(48, 10)

    def forward(self, code: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(code)))


@fault(
    "Autoencoder and a classifier on its codes, an optimizer each; only the autoencoder's gradients are cleared, the"
    " classifier's pile up from the second step on",
    rules=("gradients-not-cleared", "exploding-gradient"),
    layers=("hidden", "out"),
    step=1,
    steps=1500,
)
def second_optimizer_never_cleared(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(12)
    images, labels = data.digits(4000, 3)
    held, held_labels = data.digits(1000, 4)
    images, held = images.flatten(1), held.flatten(1)
    ae, probe = AutoEncoder(), Probe()
    opt_ae = torch.optim.Adam(ae.parameters(), lr=2e-3)
    opt_probe = torch.optim.Adam(probe.parameters(), lr=2e-3)
    ae_recorder = record(ae, opt_ae, nn.MSELoss())
    probe_recorder = record(probe, opt_probe, nn.CrossEntropyLoss())
    for _ in range(1500):
        pick = torch.randint(4000, (64,))
        x, y = images[pick], labels[pick]

        opt_ae.zero_grad()
        reconstruction = F.mse_loss(ae(x), x)
        reconstruction.backward()
        opt_ae.step()
        ae_recorder.step(reconstruction.item(), (x, x))

        code = ae.encoder(x).detach()
        if not mistake:
            opt_probe.zero_grad()
        classification = F.cross_entropy(probe(code), y)
        classification.backward()
        opt_probe.step()
        probe_recorder.step(classification.item(), (code, y))
    with torch.no_grad():
        score = F.cross_entropy(probe(ae.encoder(held)), held_labels).item()
    data.SCORES["second_optimizer_never_cleared"] = score


@fault(
    "An lr range test left in the callbacks runs over epoch 8: for 30 steps the rate climbs from 0.5 to 6 instead of 0.05, then it is"
    " put back; the ReLU units that it killed stay dead and the loss stays up",
    rules=("dying-neurons", "learning-rate-too-high", "loss-spike", "exploding-gradient", "diverging"),
    layers=("body",),
    step=800,
    steps=1600,
)
def range_test_kills_units(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(13)
    x, y = data.friedman(6400, 5)
    held_x, held_y = data.friedman(1000, 6)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()
            )
            self.head = nn.Linear(64, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x))

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.SmoothL1Loss()
    recorder = record(model, optimizer, criterion)
    for epoch in range(16):
        order = torch.randperm(6400)
        for k in range(100):
            if mistake and epoch == 8:
                optimizer.param_groups[0]["lr"] = 0.5 * 12 ** (k / 29) if k < 30 else 0.05
            batch = order[64 * k : 64 * k + 64]
            loss = criterion(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step(loss.item(), (x[batch], y[batch]))
        with torch.no_grad():
            recorder.validation(criterion(model(held_x), held_y).item())
    with torch.no_grad():
        data.SCORES["range_test_kills_units"] = criterion(model(held_x), held_y).item()


@fault(
    "At step 900 the loop enters its 'regularised phase' and sets AdamW's weight decay to 20 (a percentage, 0.2 was"
    " meant): with the rate of 2e-3 all weights shrink by 4% a step and what was learnt is lost",
    rules=("weight-decay-dominates", "diverging", "loss-not-decreasing"),
    layers=(),
    step=900,
    steps=1800,
)
def decay_in_percent(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(14)
    x, y = data.tabular(60000, 7, features=24, classes=6)
    held_x, held_y = data.tabular(2000, 8, features=24, classes=6)
    model = nn.Sequential(
        nn.Linear(24, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 6)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(1800):
        if step == 900:
            for group in optimizer.param_groups:
                group["weight_decay"] = 20 if mistake else 0.2
        pick = torch.randint(60000, (96,))
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x[pick]), y[pick])
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x[pick], y[pick]))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(F.cross_entropy(model(held_x), held_y).item())
    with torch.no_grad():
        data.SCORES["decay_in_percent"] = F.cross_entropy(model(held_x), held_y).item()


class Factors(nn.Module):
    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.item = nn.Embedding(items, width)
        self.mix = nn.Sequential(nn.Linear(2 * width, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        u, v = self.user(pairs[:, 0]), self.item(pairs[:, 1])
        return (u * v).sum(1) + self.mix(torch.cat([u, v], 1))[:, 0]


@fault(
    "The linear decay to zero was set up for the 4 epochs of an older configuration, the run has 16: from step 400 on"
    " the rate is 0 and nothing moves, though the loss is far from where it could be",
    rules=("learning-rate-too-low", "no-gradient", "lost-updates", "loss-not-decreasing"),
    step=400,
    steps=1600,
)
def schedule_ended_early(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(15)
    pairs, y = data.ratings(12800, 9)
    held, held_y = data.ratings(2000, 10)
    model = Factors(200, 150, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    epochs_planned = 4 if mistake else 16
    total = epochs_planned * (len(pairs) // 128)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: max(0.0, 1 - s / total))
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)
    for _ in range(16):
        order = torch.randperm(len(pairs))
        for batch in order.split(128):
            optimizer.zero_grad()
            loss = criterion(model(pairs[batch]), y[batch])
            loss.backward()
            optimizer.step()
            scheduler.step()
            recorder.step(loss.item(), (pairs[batch], y[batch]))
        with torch.no_grad():
            recorder.validation(criterion(model(held), held_y).item())
    with torch.no_grad():
        data.SCORES["schedule_ended_early"] = criterion(model(held), held_y).item()
