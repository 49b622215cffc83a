"""Signals, spectrograms and point clouds."""

from __future__ import annotations

import math
import torch
from program import Program, fault
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def skill(predict, y, classes):
    def score(model):
        return max(0.0, ((predict(model).argmax(1) == y).float().mean().item() - 1 / classes) / (1 - 1 / classes))

    return score


def chirps(n: int, seed: int, length: int = 64):
    """Tones that rise or fall, at any level."""
    g = torch.Generator().manual_seed(6000 + seed)
    t = torch.linspace(0, 1, length)
    low, high = 2 + 3 * torch.rand(n, 1, generator=g), 8 + 4 * torch.rand(n, 1, generator=g)
    y = torch.randint(0, 2, (n,), generator=g)
    start = torch.where(y[:, None] == 0, low, high)
    end = torch.where(y[:, None] == 0, high, low)
    phase = 2 * math.pi * (start * t + (end - start) * t**2 / 2 + torch.rand(n, 1, generator=g))
    level = 0.5 + torch.rand(n, 1, generator=g)
    return (level * torch.sin(phase) + 0.1 * torch.randn(n, length, generator=g))[:, None], y


def clouds(n: int, seed: int, points: int = 24):
    """Points on a sphere, in a box or on a plane, some of them missing: filled up by zeros, with a mask."""
    g = torch.Generator().manual_seed(6200 + seed)
    y = torch.randint(0, 3, (n,), generator=g)
    p = torch.randn(n, points, 3, generator=g)
    ball = F.normalize(p, dim=2)
    box = torch.rand(n, points, 3, generator=g) * 1.6 - 0.8
    plane = p * 0.7
    plane[..., 2] = plane[..., 0] * 0.5
    x = torch.where((y == 0)[:, None, None], ball, torch.where((y == 1)[:, None, None], box, plane))
    x = x + 0.03 * torch.randn(x.shape, generator=g)
    count = torch.randint(points // 3, points + 1, (n, 1), generator=g)
    real = torch.arange(points) < count
    return x, real, y


class PointNet(nn.Module):
    def __init__(self, hides_real):
        super().__init__()
        self.point = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 48))
        self.head = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3))
        self.hides_real = hides_real

    def forward(self, points, mask):
        h = self.point(points)
        hidden = mask if self.hides_real else ~mask
        return self.head(h.masked_fill(hidden[..., None], -1e4).amax(1))


def cloud_batches(n, seed):
    x, real, y = clouds(n, seed)
    x = x * real[..., None]
    return [
        ({"points": x[k : k + 32], "mask": real[k : k + 32]}, y[k : k + 32]) for k in range(0, n, 32)
    ]


def needles(n: int, seed: int, patches: int = 20):
    """A bag of patches, of which one, marked by its first features, holds what is asked for."""
    g = torch.Generator().manual_seed(6500 + seed)
    x = torch.randn(n, patches, 8, generator=g)
    x[..., :2] *= 0.3
    which = torch.randint(0, patches, (n,), generator=g)
    rows = torch.arange(n)
    x[rows, which, :2] += 1.5
    return x, x[rows, which, 2] + 0.7 * x[rows, which, 3].abs() - 0.55


class Bag(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.patch = nn.Sequential(nn.Linear(8, 32), nn.ReLU())
        self.attention = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1), nn.Softmax(dim=dim))
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head((self.attention(x) * self.patch(x)).sum(1))[:, 0]


def explained(x, y):
    return lambda m: max(0.0, 1 - F.mse_loss(m(x), y).item() / y.var().item())


@fault(
    "each clip is standardised by itself, although its level is what is asked for",
    rules=["labels-unrelated"],
    fails=True,
    steps=250,
)
def level_taken_away(is_faulty):
    def load(n, seed):
        g = torch.Generator().manual_seed(6300 + seed)
        level = 0.3 + 2 * torch.rand(n, 1, 1, generator=g)
        t = torch.arange(64)
        tone = torch.sin(t * (0.3 + torch.rand(n, 1, 1, generator=g)) + 6 * torch.rand(n, 1, 1, generator=g))
        x = level * (tone + 0.3 * torch.randn(n, 1, 64, generator=g))
        if is_faulty:
            x = (x - x.mean(2, keepdim=True)) / x.std(2, keepdim=True)
        else:
            x = x / 1.1
        return x, ((level[:, 0, 0] - 1.3) / 0.58)

    x, y = load(1500, 0)
    hx, hy = load(400, 1)
    model = nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 16, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 1), nn.Flatten(0)
    )
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    return Program(
        model,
        nn.MSELoss(),
        loader,
        torch.optim.Adam(model.parameters(), 3e-3),
        lambda m: max(0.0, 1 - F.mse_loss(m(hx), hy).item() / hy.var().item()),
    )


@fault(
    "convolutions with a kernel of 1 and an average: rising and falling tones look the same",
    rules=["order-lost"],
    fails=True,
    steps=350,
)
def kernels_of_one(is_faulty):
    x, y = chirps(1500, 0)
    hx, hy = chirps(400, 1)

    class Tones(nn.Module):
        def __init__(self, kernel_size=1):
            super().__init__()
            k = kernel_size
            self.body = nn.Sequential(
                nn.Conv1d(1, 24, k, padding=k // 2), nn.ReLU(), nn.Conv1d(24, 24, k, padding=k // 2), nn.ReLU(), nn.Conv1d(24, 24, k, padding=k // 2), nn.ReLU()
            )
            self.head = nn.Linear(24, 2)

        def forward(self, x):
            return self.head(self.body(x).mean(2))

    model = Tones() if is_faulty else Tones(kernel_size=9)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(lambda m: m(hx), hy, 2))


@fault(
    "a mask that is True where a point is real is taken for one that is True where to hide",
    rules=["wrong-mask", "rank-collapse"],
    fails=True,
    steps=350,
)
def mask_the_other_way(is_faulty):
    hx, hreal, hy = clouds(400, 1)
    hx = hx * hreal[..., None]
    model = PointNet(is_faulty)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(
        model, nn.CrossEntropyLoss(), cloud_batches(1600, 0), optimizer, skill(lambda m: m(hx, hreal), hy, 3)
    )


@fault(
    "recordings padded by repetition and their labels by class 0, and the padding counts",
    rules=["padding-in-loss"],
    fails=True,
    steps=300,
)
def padding_is_class_zero(is_faulty):
    length = 48

    def load(n, seed):
        """The sign of the slope of a smooth signal at each frame, three classes: flat, up, down."""
        g = torch.Generator().manual_seed(6400 + seed)
        t = torch.arange(length)
        a, b = torch.rand(2, n, 1, generator=g) * 0.35 + 0.15
        pa, pb = 6.3 * torch.rand(2, n, 1, generator=g)
        x = torch.sin(a * t + pa) + torch.sin(b * t + pb)
        slope = a * torch.cos(a * t + pa) + b * torch.cos(b * t + pb)
        y = torch.where(slope > 0.1, 1, torch.where(slope < -0.1, 2, 0))
        x = x + 0.02 * torch.randn(n, length, generator=g)
        real = torch.randint(10, 26, (n, 1), generator=g)
        return x, y, real, t

    x, y, real, t = load(1000, 0)
    wrapped = t % real
    x = x.gather(1, wrapped)
    y = torch.where(t < real, y, 0 if is_faulty else -100)
    hx, hy, _, _ = load(300, 1)
    model = nn.Sequential(
        nn.Conv1d(1, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 24, 5, padding=2), nn.ReLU(), nn.Conv1d(24, 3, 1)
    )
    loader = DataLoader(TensorDataset(x[:, None], y), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(lambda m: m(hx[:, None]), hy, 3))


@fault(
    "the weights of the patches go through a softmax over their last dimension, which has size one",
    rules=["wrong-softmax-dimension", "no-gradient"],
    layers=["attention"],
    fails=False,
    steps=500,
)
def attention_over_one(is_faulty):
    x, y = needles(2500, 0)
    model = Bag(-1 if is_faulty else 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
    return Program(model, nn.MSELoss(), loader, torch.optim.Adam(model.parameters(), 1e-2), explained(*needles(500, 1)))


@fault(
    "scores of attention are multiplied by the size of a head instead of divided by its root",
    rules=["attention-saturation", "bad-initialisation", "vanishing-gradient"],
    layers=["query", "key"],
    fails=True,
    steps=500,
)
def scores_multiplied(is_faulty):
    class Attend(nn.Module):
        """The patches looked at by a learned query."""

        def __init__(self, d=32):
            super().__init__()
            self.embed = nn.Linear(8, d)
            self.query = nn.Parameter(torch.randn(d))
            self.key, self.value = nn.Linear(d, d), nn.Linear(d, d)
            self.head = nn.Sequential(nn.GELU(), nn.Linear(d, 1))
            self.scale = float(d) if is_faulty else d**-0.5

        def forward(self, x):
            h = F.gelu(self.embed(x))
            weights = (self.key(h) @ self.query * self.scale).softmax(1)
            return self.head((weights[..., None] * self.value(h)).sum(1))[:, 0]

    def load(n, seed):
        g = torch.Generator().manual_seed(6600 + seed)
        x = torch.randn(n, 12, 8, generator=g)
        return x, 3 * (x[..., 0] * 0.5 + x[..., 1].abs() - 0.8).mean(1)

    model = Attend()
    loader = DataLoader(TensorDataset(*load(2500, 0)), batch_size=50, shuffle=True)
    return Program(model, nn.MSELoss(), loader, torch.optim.Adam(model.parameters(), 2e-3), explained(*load(500, 1)))


@fault(
    "readings of all sensors go through one network as rows, and are folded back sensor first",
    rules=["mixed-examples"],
    fails=True,
    steps=300,
)
def folded_sensor_first(is_faulty):
    class Sensors(nn.Module):
        def __init__(self):
            super().__init__()
            self.each = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU())
            self.join = nn.Linear(24, 3)

        def forward(self, x):
            batch, sensors, _ = x.shape
            h = self.each(x.reshape(batch * sensors, -1))
            h = h.view(sensors, batch, -1).mean(0) if is_faulty else h.view(batch, sensors, -1).mean(1)
            return self.join(h)

    def load(n, seed):
        g = torch.Generator().manual_seed(6800 + seed)
        y = torch.randint(0, 3, (n,), generator=g)
        t = torch.arange(16)
        wave = torch.sin((0.4 + 0.4 * y[:, None, None]) * t + 6 * torch.rand(n, 5, 1, generator=g))
        return wave + 0.4 * torch.randn(n, 5, 16, generator=g), y

    hx, hy = load(400, 1)
    model = Sensors()
    loader = DataLoader(TensorDataset(*load(1500, 0)), batch_size=30, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(lambda m: m(hx), hy, 3))


@fault(
    "energies of 16-bit samples are summed in float16, where they overflow",
    rules=["half-overflow", "non-finite", "unscaled-input", "rounding-error"],
    layers=["energy"],
    fails=True,
    steps=250,
)
def energy_in_half(is_faulty):
    class Energy(nn.Module):
        """Log-energies of 8 filters in 4 windows."""

        def __init__(self):
            super().__init__()
            self.filters = nn.Conv1d(1, 8, 16, stride=4, bias=False)

        def forward(self, x):
            e = self.filters(x).square().unflatten(2, (4, -1)).sum(3)
            return (1 + e).log().flatten(1).float() / 4 - 3

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.energy = Energy()
            self.norm = nn.BatchNorm1d(32)
            self.head = nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 2))

        def forward(self, x):
            with torch.autocast("cpu", torch.float16 if is_faulty else torch.bfloat16):
                return self.head(self.norm(self.energy(x)))

    def load(n, seed):
        x, y = chirps(n, seed, 76)
        return (x * 8000).round(), y

    x, y = load(1200, 4)
    hx, hy = load(400, 5)
    model = Net()
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)

    def loss(out, t):
        return F.cross_entropy(out.float(), t)

    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, loss, loader, optimizer, skill(lambda m: m(hx), hy, 2))
