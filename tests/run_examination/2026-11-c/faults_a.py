"""Faults: gradients that stay, a warm-up, clipping, sparsity, freezing."""

from __future__ import annotations

import torch
from program import fault
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@fault(
    "zero_grad() was indented into the warm-up block: from step 500 on gradients pile up",
    rules=["gradients-not-cleared", "exploding-gradient"],
    step=500,
    steps=1200,
)
def tabular_zero_grad_in_warmup_block(record, broken=True):
    torch.manual_seed(11)
    x = torch.randn(12800, 16)
    y = torch.sin(x[:, :4]).sum(1, keepdim=True) + 0.5 * x[:, 4:5] * x[:, 5:6] + 0.1 * torch.randn(12800, 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True)
    net = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.03)
    criterion = nn.MSELoss()
    recorder = record(net, opt, criterion)
    warmup_steps, step = 500, 0
    for _ in range(12):
        for xb, yb in loader:
            if step < warmup_steps:
                for group in opt.param_groups:
                    group["lr"] = 0.03 * (step + 1) / warmup_steps
                opt.zero_grad()
            elif not broken:
                opt.zero_grad()
            loss = criterion(net(xb), yb)
            loss.backward()
            opt.step()
            recorder.step(loss.item(), (xb, yb))
            step += 1


class _Patterns:
    """Images of ten prototypes under noise."""

    def __init__(self, seed, noise=1.0, size=12):
        self.generator = torch.Generator().manual_seed(seed)
        self.prototypes = torch.randn(10, 1, size, size, generator=torch.Generator().manual_seed(99))
        self.noise = noise

    def batch(self, n):
        y = torch.randint(0, 10, (n,), generator=self.generator)
        x = self.prototypes[y]
        x = x + self.noise * torch.randn(x.shape, generator=self.generator)
        return x / (1 + self.noise**2) ** 0.5, y


@fault(
    "Linear scaling rule without the division by the reference batch: the warm-up climbs to 64 times the base rate, and passes what the "
    "network bears on its way",
    rules=["learning-rate-too-high", "exploding-gradient", "dying-neurons", "rank-collapse"],
    step=260,
    steps=1300,
)
def cnn_warmup_to_unscaled_peak(record, broken=True):
    torch.manual_seed(12)
    batch_size, warmup = 64, 900
    base_lr = 0.004
    peak_lr = base_lr * batch_size if broken else base_lr * batch_size / 8
    data = _Patterns(5, noise=2.0)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(24 * 9, 48), nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=peak_lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / warmup))
    loss_fn = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, loss_fn)
    for _ in range(1300):
        inputs, targets = data.batch(batch_size)
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        recorder.step(loss, (inputs, targets))


class _Forecaster(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.lstm = nn.LSTM(3, width, num_layers=2, batch_first=True)
        self.readout = nn.Linear(width, 3)

    def forward(self, x):
        return self.readout(self.lstm(x)[0])


def _oscillators(n, length, generator):
    """Three coupled waves per series, and the values one step ahead."""
    t = torch.arange(length + 1.0)
    speed = 0.2 + 0.6 * torch.rand(n, 3, 1, generator=generator)
    waves = torch.sin(speed * t + 6.28 * torch.rand(n, 3, 1, generator=generator))
    series = (waves + 0.5 * waves.roll(1, 1) * waves.roll(2, 1)).transpose(1, 2)
    series = series + 0.05 * torch.randn(series.shape, generator=generator)
    return 1.3 * series[:, :-1], 1.3 * series[:, 1:]


@fault(
    "The loop was split into a first part and a 'polish' part at step 700, and the second lacks clip_grad_norm_, on which "
    "the rate relied",
    rules=["exploding-gradient", "learning-rate-too-high", "non-finite"],
    step=700,
    steps=1100,
)
def lstm_forecaster_second_loop_without_clipping(record, broken=True):
    torch.manual_seed(13)
    g = torch.Generator().manual_seed(1)
    model = _Forecaster()
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0)
    mse = nn.MSELoss()
    recorder = record(model, optimizer, mse)

    for _ in range(700):
        x, y = _oscillators(16, 16, g)
        model.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.03)
        optimizer.step()
        recorder.step(loss.item(), (x, y))

    for _ in range(400):  # polish
        x, y = _oscillators(16, 16, g)
        model.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        if not broken:
            nn.utils.clip_grad_norm_(model.parameters(), 0.03)
        optimizer.step()
        recorder.step(loss.item(), (x, y))


class _SparseAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(96, 384)
        self.act = nn.ReLU()
        self.decoder = nn.Linear(384, 96)

    def forward(self, x):
        code = self.act(self.encoder(x))
        return self.decoder(code), code


@fault(
    "The sparsity penalty that comes in at step 600 is a sum over batch and units instead of a mean, and turns every unit "
    "of the code off",
    rules=["dying-neurons", "term-dominates", "data-changed", "rank-collapse", "no-gradient"],
    layers=["encoder", "act"],
    step=600,
    steps=1500,
)
def sparse_autoencoder_units_die(record, broken=True):
    torch.manual_seed(14)
    basis = torch.randn(24, 96) / 24**0.5
    model = _SparseAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    sparsity = {"weight": 0.0}

    def loss_fn(outputs, target):
        reconstruction, code = outputs
        penalty = code.abs().sum() if broken else code.abs().mean()
        return F.mse_loss(reconstruction, target) + sparsity["weight"] * penalty

    recorder = record(model, optimizer, loss_fn)
    for step in range(1500):
        if step == 600:
            sparsity["weight"] = 1e-2
        x = torch.randn(160, 24) @ basis + 0.05 * torch.randn(160, 96)
        optimizer.zero_grad()
        loss = loss_fn(model(x), x)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x, x))


class _Transfer(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(30, 640), nn.ReLU(), nn.Linear(640, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def _saliency(model, x):
    """Mean absolute slope at the inputs, for a plot."""
    model.requires_grad_(True)  # "else backward() complains"
    x = x.clone().requires_grad_(True)
    return torch.autograd.grad(model(x).max(1).values.sum(), x)[0].abs().mean(0)


@fault(
    "A saliency plot at step 700 calls model.requires_grad_(True): the frozen, pretrained backbone learns from then on, at "
    "the rate of the head, from 600 examples",
    rules=["layer-thawed", "overfitting"],
    layers=["backbone"],
    step=700,
    steps=1800,
)
def transfer_backbone_thawed_by_plot(record, broken=True):
    torch.manual_seed(15)
    rotation = torch.linalg.qr(torch.randn(30, 30))[0][:, :6]

    def draw(n, source):
        x = torch.randn(n, 30)
        z = x @ rotation
        if source:
            return x, (z > 0).long() @ torch.tensor([1, 2, 4, 0, 0, 0]) + 8 * (z[:, 3] * z[:, 4] > 0).long()
        y = (z[:, 0] + z[:, 1] > 0).long() + 2 * (z[:, 2] > 0).long()
        flip = torch.rand(n) < 0.15
        return x, torch.where(flip, torch.randint(0, 4, (n,)), y)

    source = _Transfer(16)
    pretraining = torch.optim.Adam(source.parameters(), lr=2e-3)
    for _ in range(500):
        x, y = draw(128, True)
        pretraining.zero_grad()
        F.cross_entropy(source(x), y).backward()
        pretraining.step()

    model = _Transfer(4)
    model.backbone.load_state_dict(source.backbone.state_dict())
    model.backbone.requires_grad_(False)
    train = TensorDataset(*draw(600, False))
    x_val, y_val = draw(1000, False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    step = 0
    while step < 1800:
        for x, y in DataLoader(train, batch_size=100, shuffle=True):
            if step == 700 and broken:
                _saliency(model, x_val[:100])
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            recorder.step(loss.item(), (x, y))
            if step % 50 == 0:
                with torch.no_grad():
                    recorder.validation(criterion(model(x_val), y_val).item())
