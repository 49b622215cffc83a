"""Forecasts of series, and other signals over time."""

import torch
import torch.nn.functional as F
from program import Program, fault, sound
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def r2(x, y):
    return lambda m: 1 - (m(x).float() - y).pow(2).mean().item() / y.var().item()


def load(x, y, batch=32):
    return DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)


def waves(n, seed, window=16, scale=1.0, level=0.0, noise=0.05, period=None):
    """Windows of a noisy oscillation and the value two steps after."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(window + 2.0)
    phase = 6.283 * torch.rand(n, 1, generator=g)
    speed = 0.9 + 0.5 * torch.rand(n, 1, generator=g)
    s = torch.sin(speed * t + phase) + noise * torch.randn(n, window + 2, generator=g)
    s = level + scale * s
    return s[:, :window, None], s[:, -1:]


class Forecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.linear(self.lstm(x)[0][:, -1])


class ConvNet(nn.Module):
    def __init__(self, momentum):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 16, 5, padding=2)
        self.bn1 = nn.BatchNorm1d(16, momentum=momentum)
        self.conv2 = nn.Conv1d(16, 16, 5, padding=2)
        self.bn2 = nn.BatchNorm1d(16, momentum=momentum)
        self.fc = nn.Linear(16 * 16, 4)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.flatten(1))


def gestures(n, seed):
    """Four shapes of a signal, in units of a sensor whose zero is off."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    t = torch.linspace(0, 6.283, 16)
    shapes = torch.stack([torch.sin(t), torch.cos(t), torch.sin(2 * t), torch.sign(torch.sin(3 * t))])
    x = shapes[y] * (0.7 + 0.6 * torch.rand(n, 1, generator=g)) + 0.5 * torch.randn(n, 16, generator=g)
    return (100 + 5 * x)[:, None], y


@fault(
    "the momentum of BatchNorm is 0.0001, so its running statistics stay what they were at the start",
    rules=["batchnorm-mode-gap", "optimizer-setting"], layers=["bn1", "bn2"], fails=True, steps=200,
)
def statistics_stay_behind(is_faulty):
    model = ConvNet(momentum=1e-4 if is_faulty else 0.1)
    hx, hy = gestures(400, 2)
    return Program(
        model, nn.CrossEntropyLoss(), load(*gestures(1000, 1)), torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: (m(hx).argmax(1) == hy).float().mean().item(),
    )


@fault(
    "the whole network is cast to bfloat16, and the steps of a small rate vanish in its eight bits",
    rules=["lost-updates", "rounding-error"], fails=False, steps=500,
)
def weights_in_bfloat16(is_faulty):
    dtype = torch.bfloat16 if is_faulty else torch.float32
    x, y = waves(1000, 1)
    hx, hy = waves(200, 2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    model = model.to(dtype)
    return Program(
        model, nn.MSELoss(), load(x.to(dtype), y.to(dtype)), torch.optim.Adam(model.parameters(), 1.5e-4),
        r2(hx.to(dtype), hy),
    )


@fault(
    "spectra in decibels (-90 to -20) enter a ReLU network whose first layer has become non-negative by hand",
    rules=["dying-neurons", "unscaled-input", "bad-initialisation"], layers=["filters"], fails=True, steps=300,
)
def decibels_below_zero(is_faulty):
    def data(n, seed):
        g = torch.Generator().manual_seed(seed)
        y = torch.randint(0, 5, (n,), generator=g)
        bank = 12 * torch.randn(5, 20, generator=torch.Generator().manual_seed(0))
        db = -55 + bank[y] + 8 * torch.randn(n, 20, generator=g)
        return (db if is_faulty else (db + 55) / 12), y

    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.filters = nn.Linear(20, 40)
            self.filters.weight.data.abs_()
            self.relu = nn.ReLU()
            self.out = nn.Linear(40, 5)

        def forward(self, x):
            return self.out(self.relu(self.filters(x)))

    model = Keyword()
    hx, hy = data(300, 2)
    return Program(
        model, nn.CrossEntropyLoss(), load(*data(800, 1)), torch.optim.Adam(model.parameters(), 2e-3),
        lambda m: (m(hx).argmax(1) == hy).float().mean().item(),
    )


@sound("an ordinary LSTM forecaster", steps=300, least=0.8)
def lstm_forecaster():
    model = Forecaster()
    return Program(
        model, nn.MSELoss(), load(*waves(1000, 1)), torch.optim.Adam(model.parameters(), 5e-3), r2(*waves(200, 2))
    )


@sound("raw prices of any level: the network takes out each window's mean and spread itself", steps=300, least=0.8)
def reversible_normalisation():
    class RevIN(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 1))

        def forward(self, x):
            x = x[..., 0]
            mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-5
            return self.body((x - mean) / std) * std + mean

    def prices(n, seed):
        g = torch.Generator().manual_seed(seed + 100)
        level = 100 * torch.rand(n, 1, generator=g) + 3000
        x, y = waves(n, seed, scale=5.0)
        return x + level[:, None], y + level, level

    x, y, _ = prices(1000, 1)
    hx, hy, level = prices(200, 2)
    model = RevIN()

    def score(m):
        return 1 - (m(hx) - hy).pow(2).mean().item() / (hy - level).var().item()

    return Program(model, nn.SmoothL1Loss(), load(x, y), torch.optim.Adam(model.parameters(), 3e-3), score)


@sound("counts with a Poisson loss that is far below zero and falls", steps=300, least=0.7)
def counts():
    def data(n, seed):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 12, 3, generator=g)
        rate = torch.exp(3.5 + 0.5 * x[:, -1, 0] + 0.4 * x[:, -3, 1] - 0.3 * x[:, -2, 2])
        return x, torch.poisson(rate, generator=g)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(3, 16, 3)
            self.fc = nn.Linear(160, 1)

        def forward(self, x):
            return self.fc(F.relu(self.conv(x.transpose(1, 2))).flatten(1)).squeeze(-1)

    model = Net()
    hx, hy = data(300, 2)

    def score(m):
        return 1 - (m(hx) - hy.clamp(min=0.5).log()).pow(2).mean().item() / hy.clamp(min=0.5).log().var().item()

    return Program(
        model, nn.PoissonNLLLoss(log_input=True), load(*data(1000, 1)), torch.optim.Adam(model.parameters(), 3e-3), score
    )


@sound("bfloat16 under autocast, with weights and optimizer in float32", steps=300, least=0.8)
def autocast_bfloat16():
    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(
                nn.Flatten(), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)
            )

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.net(x).float()

    model = Auto()
    return Program(
        model, nn.MSELoss(), load(*waves(1000, 1)), torch.optim.Adam(model.parameters(), 2e-3), r2(*waves(200, 2))
    )


@sound("BatchNorm over sensor values with a large offset, trained", trained=150, steps=250, least=0.8)
def gestures_trained():
    model = ConvNet(momentum=0.1)
    hx, hy = gestures(400, 2)
    return Program(
        model, nn.CrossEntropyLoss(), load(*gestures(1000, 1)), torch.optim.Adam(model.parameters(), 2e-3),
        lambda m: (m(hx).argmax(1) == hy).float().mean().item(),
    )
