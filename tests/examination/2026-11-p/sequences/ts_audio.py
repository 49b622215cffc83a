"""Faults in programs that listen."""

import torch
import torch.nn.functional as F
from program import Program, fault
from torch import nn
from ts_data import loader, share_right, tones


@fault(
    "BatchNorm1d(32, 0.1, 1e-5): eps and momentum in each other's place, so that running statistics stay as made",
    rules=["batchnorm-mode-gap"],
    layers=["0", "2"],
    fails=False,
    steps=200,
)
def batchnorm_arguments_swapped(is_faulty):
    eps_momentum = (0.1, 1e-5) if is_faulty else (1e-5, 0.1)
    net = nn.Sequential(
        nn.BatchNorm1d(20, *eps_momentum),
        nn.Conv1d(20, 32, 3), nn.BatchNorm1d(32, *eps_momentum), nn.ReLU(),
        nn.Conv1d(32, 32, 3), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4),
    )
    (x, y), (xh, yh) = [(10 * torch.log10(e), c) for e, c in (spectra(1200), spectra(300))]
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: share_right(m(xh), yh))


def spectra(n, classes=4):
    """Energies (n, 20 bands, 16 frames) of sounds whose class is which bands they use."""
    y = torch.randint(classes, (n,))
    band = torch.arange(20.0)[None]
    centre = (4 + 4 * y)[:, None] + 1.5 * torch.randn(n, 1)
    shape = torch.exp(-((band - centre) ** 2) / 6)[..., None]
    energy = 1e-5 + shape * (0.02 + torch.rand(n, 1, 16)) * torch.rand(n, 1, 1)
    return energy * torch.exp(0.5 * torch.randn(n, 20, 16)), y


@fault(
    "power spectra of 16-bit samples, computed under autocast to float16, overflow",
    rules=["half-overflow", "non-finite"],
    layers=["front"],
    fails=True,
    steps=200,
)
def power_overflows_in_half(is_faulty):
    class Front(nn.Module):
        def __init__(self, n=64):
            super().__init__()
            t = torch.arange(n) / n * 2 * torch.pi
            k = torch.arange(n // 2)[:, None]
            self.register_buffer("basis", torch.stack([torch.cos(k * t), torch.sin(k * t)]))

        def forward(self, x):
            re, im = x @ self.basis[0].T, x @ self.basis[1].T
            return torch.log1p(re**2 + im**2)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.front = Front()
            self.norm = nn.LayerNorm(32)
            self.mlp = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.float16 if is_faulty else torch.bfloat16):
                frames = x[:, 0].unflatten(1, (-1, 64))
                return self.mlp(self.norm(self.front(frames)).mean(1)).float()

    (x, y), (xh, yh) = tones(1000, length=128), tones(300, length=128)
    x, xh = (x * 200).round(), (xh * 200).round()
    net = Net()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: share_right(m(xh), yh))


@fault(
    "clips are listed folder by folder, one class each, and not shuffled",
    rules=["sorted-batches"],
    fails=True,
    steps=300,
)
def clips_folder_by_folder(is_faulty):
    x, y = tones(3200, length=128)
    xh, yh = tones(300, length=128)
    order = y.argsort()
    x, y = x[order], y[order]

    class ClipNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv1d(1, 16, 16, 4)
            self.conv2 = nn.Conv1d(16, 32, 5)
            self.fc = nn.Linear(32, 4)

        def forward(self, x):
            return self.fc(self.conv2(self.conv1(x).relu()).relu().mean(2))

    net = ClipNet()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y, shuffle=not is_faulty),
                   torch.optim.Adam(net.parameters(), lr=3e-3), lambda m: share_right(m(xh), yh))


@fault(
    "one BatchNorm used after each of three convolutions, whose statistics differ",
    rules=["shared-weight", "batchnorm-mode-gap"],
    layers=["bn"],
    fails=False,
    steps=250,
)
def one_batchnorm_in_three_places(is_faulty):
    class WaveNet(nn.Module):
        def __init__(self, c=24):
            super().__init__()
            self.conv1 = nn.Conv1d(1, c, 9, 2)
            self.conv2 = nn.Conv1d(c, c, 9, 2)
            self.conv3 = nn.Conv1d(c, c, 5, 2)
            if is_faulty:
                self.bn = nn.BatchNorm1d(c)
            else:
                self.bn1, self.bn2, self.bn3 = (nn.BatchNorm1d(c) for _ in range(3))
            self.fc = nn.Linear(c, 4)

        def forward(self, x):
            bns = [self.bn] * 3 if is_faulty else [self.bn1, self.bn2, self.bn3]
            for conv, bn in zip([self.conv1, self.conv2, self.conv3], bns):
                x = F.relu(bn(conv(x)))
            return self.fc(x.mean(-1))

    (x, y), (xh, yh) = tones(1000, length=128), tones(300, length=128)
    net = WaveNet()
    return Program(net, nn.CrossEntropyLoss(), loader(x, y), torch.optim.Adam(net.parameters(), 3e-3),
                   lambda m: share_right(m(xh), yh))


@fault(
    "the error of a denoiser is summed over batch and samples, at the learning rate of a mean",
    rules=["summed-loss", "learning-rate-too-high", "non-finite"],
    fails=True,
    steps=250,
)
def denoiser_sums_its_error(is_faulty):
    def noisy(n):
        x, _ = tones(n, length=64, noise=0.0)
        return x + 0.5 * torch.randn_like(x), x

    (x, y), (xh, yh) = noisy(1000), noisy(200)
    net = nn.Sequential(nn.Conv1d(1, 16, 11, padding=5), nn.Tanh(), nn.Conv1d(16, 16, 11, padding=5), nn.Tanh(),
                        nn.Conv1d(16, 1, 11, padding=5))
    loss = nn.MSELoss(reduction="sum" if is_faulty else "mean")

    def score(m):
        return 1 - ((m(xh) - yh) ** 2).mean().item() / yh.var().item()

    return Program(net, loss, loader(x, y), torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9),
                   lambda m: max(0.0, score(m)))
