"""Classification of small pictures."""

from __future__ import annotations

import math
import torch
from program import Program, fault
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

KINDS = 4


def shapes(n: int, seed: int, size: int = 12, noise: float = 0.25):
    """Bars (two ways), a frame or a diagonal somewhere in a picture, grey values from about 0 to 1."""
    g = torch.Generator().manual_seed(4000 + seed)
    y = torch.randint(0, KINDS, (n,), generator=g)
    x = torch.zeros(n, 1, size, size)
    where = torch.randint(0, size - 5, (n, 2), generator=g).tolist()
    for k, (kind, (r, c)) in enumerate(zip(y.tolist(), where)):
        patch = x[k, 0, r : r + 5, c : c + 5]
        if kind == 0:
            patch[2] = 1
        elif kind == 1:
            patch[:, 2] = 1
        elif kind == 2:
            patch[[0, -1]] = 1
            patch[:, [0, -1]] = 1
        else:
            patch.fill_diagonal_(1)
    return (x + noise * torch.randn(x.shape, generator=g)).clamp(0, 1), y


def skill(x, y):
    def score(model):
        return max(0.0, ((model(x).argmax(1) == y).float().mean().item() - 1 / KINDS) / (1 - 1 / KINDS))

    return score


def normal(x):
    return (x - 0.15) / 0.25


def small_cnn(width=12, norm=nn.BatchNorm2d):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        norm(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        norm(2 * width),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, KINDS),
    )


@fault(
    "grey values are divided by 256 and stored as bytes again, which leaves zeros",
    rules=["constant-feature", "rank-collapse", "labels-unrelated", "no-gradient", "loss-not-decreasing"],
    fails=True,
    steps=200,
)
def bytes_after_division(is_faulty):
    def load(n, seed):
        x, y = shapes(n, seed)
        raw = (x * 255).round().to(torch.uint8)
        scaled = raw / 256
        if is_faulty:
            scaled = scaled.to(torch.uint8)
        return scaled.float(), y

    model = small_cnn()
    loader = DataLoader(TensorDataset(*load(1200, 0)), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(*load(500, 1)))


@fault(
    "pictures read folder by folder and not shuffled",
    rules=["sorted-batches"],
    fails=True,
    steps=300,
)
def folder_by_folder(is_faulty):
    x, y = shapes(1280, 2)
    order = y.argsort(stable=True)
    x, y = normal(x[order]), y[order]
    model = small_cnn()
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=not is_faulty)
    optimizer = torch.optim.SGD(model.parameters(), 0.03, momentum=0.9)
    hx, hy = shapes(500, 3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(normal(hx), hy))


@fault(
    "the bias for a prior of one percent is given to every convolution, not to the head of the detector only",
    rules=["dying-neurons", "bad-initialisation", "rank-collapse", "no-gradient", "vanishing-gradient", "loss-not-decreasing"],
    layers=["backbone"],
    fails=True,
    steps=250,
)
def prior_in_every_bias(is_faulty):
    class Detector(nn.Module):
        """Says in which cells of a grid a frame is."""

        def __init__(self, prior=0.01):
            super().__init__()
            self.backbone = nn.Sequential(
                nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU()
            )
            self.head = nn.Conv2d(24, 1, 1)
            for m in self.modules():
                if isinstance(m, nn.Conv2d):
                    nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                    nn.init.zeros_(m.bias)
                    if is_faulty or m is self.head:
                        nn.init.constant_(m.bias, -math.log((1 - prior) / prior))

        def forward(self, x):
            return self.head(self.backbone(x))[:, 0]

    def load(n, seed):
        g = torch.Generator().manual_seed(4100 + seed)
        x = torch.randn(n, 1, 16, 16, generator=g) * 0.2
        t = torch.zeros(n, 8, 8)
        for k in range(n):
            r, c = torch.randint(0, 6, (2,), generator=g).tolist()
            x[k, 0, 2 * r : 2 * r + 4, 2 * c : 2 * c + 4] += 1.0
            t[k, r + 1, c + 1] = 1
            r, c = torch.randint(0, 12, (2,), generator=g).tolist()
            x[k, 0, r, c : c + 4] += 1.0
        return x, t

    hx, ht = load(300, 1)

    def score(m):
        out = m(hx).flatten(1)
        return (out.argmax(1) == ht.flatten(1).argmax(1)).float().mean().item()

    def focal(out, t):
        ce = F.binary_cross_entropy_with_logits(out, t, reduction="none")
        p = torch.where(t > 0, out.sigmoid(), 1 - out.sigmoid())
        return ((1 - p) ** 2 * ce).sum() / t.sum()

    model = Detector()
    loader = DataLoader(TensorDataset(*load(800, 0)), batch_size=16, shuffle=True)
    return Program(model, focal, loader, torch.optim.Adam(model.parameters(), 3e-3), score)


@fault(
    "a GroupNorm with one channel a group behind the global pooling: each number is normalised by itself",
    rules=["rank-collapse", "loss-not-decreasing", "no-gradient", "vanishing-gradient"],
    layers=["norm", "features", "pool"],
    fails=True,
    steps=200,
)
def norm_of_single_numbers(is_faulty):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()
            )
            self.pool = nn.AdaptiveMaxPool2d(1)
            self.norm = nn.GroupNorm(32 if is_faulty else 1, 32)
            self.fc = nn.Linear(32, KINDS)

        def forward(self, x):
            return self.fc(self.norm(self.pool(self.features(x))).flatten(1))

    x, y = shapes(1200, 8)
    hx, hy = shapes(500, 9)
    model = Net()
    loader = DataLoader(TensorDataset(normal(x), y), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(normal(hx), hy))


@fault(
    "the warm-up is 1000 epochs long instead of 1000 examples",
    rules=["learning-rate-too-low"],
    fails=True,
    steps=200,
)
def warm_up_without_end(is_faulty):
    x, y = shapes(1200, 10)
    hx, hy = shapes(500, 11)
    model = small_cnn(norm=lambda c: nn.GroupNorm(4, c))
    loader = DataLoader(TensorDataset(normal(x), y), batch_size=32, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    length = 1000 * len(loader) if is_faulty else 1000 // 32
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(1.0, (k + 1) / length))
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(normal(hx), hy), scheduler)


@fault(
    "SGD was replaced by Adam, and its rate of 0.1 kept",
    rules=["learning-rate-too-high"],
    fails=True,
    steps=250,
)
def rate_of_sgd_in_adam(is_faulty):
    x, y = shapes(1200, 12)
    hx, hy = shapes(500, 13)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, KINDS)
    )
    loader = DataLoader(TensorDataset(normal(x), y), batch_size=32, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), 0.1) if is_faulty else torch.optim.SGD(model.parameters(), 0.1)
    return Program(model, nn.CrossEntropyLoss(), loader, optimizer, skill(normal(hx), hy))
