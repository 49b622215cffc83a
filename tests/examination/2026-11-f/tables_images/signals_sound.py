"""Signals, spectrograms and point clouds: sound set-ups."""

from __future__ import annotations

import torch
from signals_points import Bag, PointNet, chirps, cloud_batches, clouds, explained, needles, skill
from program import Program, sound
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def spectrograms(n: int, seed: int, bands: int = 16, frames: int = 20):
    """Energies in bands: one of four pairs of bands sounds; clips end in digital silence."""
    g = torch.Generator().manual_seed(6100 + seed)
    y = torch.randint(0, 4, (n,), generator=g)
    x = torch.rand(n, bands, frames, generator=g) * 0.05
    rows = torch.arange(n)
    for k in (0, 2):
        band = (y * 3 + k) + torch.randint(0, 2, (n,), generator=g)
        x[rows, band] += torch.rand(n, frames, generator=g) * torch.exp(torch.randn(n, 1, generator=g))
    length = torch.randint(8, frames - 1, (n,), generator=g)
    x = x * (torch.arange(frames) < length[:, None])[:, None]
    return x[:, None], y


class LogMel(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor

    def forward(self, x):
        return torch.log(x + self.floor) / 3 + 1


def spectrogram_net(floor):
    return nn.Sequential(
        LogMel(floor), nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d((1, 2)), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d((8, 1)), nn.Flatten(), nn.Linear(192, 4)
    )


@sound("an ordinary network for spectrograms, half trained", trained=100, steps=250, least=0.8)
def plain_spectrograms():
    x, y = spectrograms(1000, 10)
    hx, hy = spectrograms(400, 11)
    model = spectrogram_net(1e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(lambda m: m(hx), hy, 4))


@sound("padded point clouds hidden by -1e4 before a maximum", steps=300, least=0.7)
def masked_clouds():
    hx, hreal, hy = clouds(400, 11)
    model = PointNet(False)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(
        model, nn.CrossEntropyLoss(), cloud_batches(1600, 10), optimizer, skill(lambda m: m(hx * hreal[..., None], hreal), hy, 3)
    )


@sound("a set of points without any order, by a mean over points: order is not what is asked for", steps=350, least=0.7)
def set_without_order():
    x, _, y = clouds(1600, 12)
    hx, _, hy = clouds(400, 13)

    class DeepSet(nn.Module):
        def __init__(self):
            super().__init__()
            self.phi = nn.Sequential(nn.Linear(3, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
            self.rho = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3))

        def forward(self, x):
            return self.rho(self.phi(x).mean(1))

    model = DeepSet()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(lambda m: m(hx), hy, 3))


@sound("a sharp attention that learns to look at one patch, trained", trained=400, steps=500, least=0.7)
def learned_needle():
    x, y = needles(2500, 10)
    model = Bag(1)
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
    return Program(model, nn.MSELoss(), loader, torch.optim.Adam(model.parameters(), 1e-2), explained(*needles(500, 11)))


@sound("a causal convolution predicts the next sample at every place; its target is its input, moved by one", steps=300, least=0.7)
def causal_forecast():
    def load(n, seed):
        g = torch.Generator().manual_seed(6700 + seed)
        t = torch.arange(49)
        a, b = torch.rand(2, n, 1, generator=g) * 0.5 + 0.2
        x = torch.sin(a * t + 6 * torch.rand(n, 1, generator=g)) + torch.sin(b * t + 6 * torch.rand(n, 1, generator=g))
        x = x + 0.03 * torch.randn(x.shape, generator=g)
        return x[:, None, :-1], x[:, None, 1:]

    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv1d(1, 24, 3), nn.Conv1d(24, 24, 3, dilation=2), nn.Conv1d(24, 1, 3, dilation=4)])

        def forward(self, x):
            for k, conv in enumerate(self.convs):
                x = conv(F.pad(x, (2 * 2**k, 0)))
                if k < 2:
                    x = F.relu(x)
            return x

    x, y = load(1000, 0)
    hx, hy = load(300, 1)
    model = Causal()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.MSELoss(), loader, optimizer, explained(hx, hy))


@sound("one-dimensional residual network in bfloat16 autocast", steps=300, least=0.7)
def bfloat_signals():
    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.norm = nn.GroupNorm(4, c)
            self.conv = nn.Conv1d(c, c, 9, padding=4)

        def forward(self, x):
            return x + self.conv(F.silu(self.norm(x)))

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv1d(1, 16, 9, stride=2, padding=4)
            self.blocks = nn.Sequential(Block(16), Block(16))
            self.head = nn.Linear(16, 2)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.head(self.blocks(self.stem(x)).mean(2)).float()

    x, y = chirps(1500, 12)
    hx, hy = chirps(400, 13)
    model = Net()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(lambda m: m(hx), hy, 2))
