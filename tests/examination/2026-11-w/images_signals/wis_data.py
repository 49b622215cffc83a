"""Synthetic images and signals, drawn from torch's global generator, and scores on them."""

import math

import torch
from torch.utils.data import DataLoader, TensorDataset


def wis_grid(size):
    line = torch.linspace(-1, 1, size)
    return torch.meshgrid(line, line, indexing="ij")


def wis_gratings(n, size=12, classes=4, noise=0.3):
    """Oriented waves of random phase; the class is the orientation."""
    y = torch.randint(classes, (n,))
    angle = (math.pi * y / classes)[:, None, None]
    gy, gx = wis_grid(size)
    phase = 2 * math.pi * torch.rand(n, 1, 1)
    wave = torch.sin(8.0 * (gx * angle.cos() + gy * angle.sin()) + phase)
    return (wave + noise * torch.randn_like(wave))[:, None], y


def wis_figures(n, size=12, noise=0.1):
    """Disc, frame, plus or cross at a random place, in [0, 1] but for the noise."""
    y = torch.randint(4, (n,))
    gy, gx = wis_grid(size)
    shift = 0.7 * torch.rand(n, 2) - 0.35
    dy, dx = (gy - shift[:, :1, None]).abs(), (gx - shift[:, 1:, None]).abs()
    far = torch.maximum(dy, dx)
    disc = dy**2 + dx**2 < 0.27
    frame = (far < 0.55) & (far > 0.3)
    plus = (torch.minimum(dy, dx) < 0.12) & (far < 0.62)
    cross = ((dy - dx).abs() < 0.16) & (far < 0.55)
    every = torch.stack([disc, frame, plus, cross], 1).float()
    x = every[torch.arange(n), y]
    return (x + noise * torch.randn_like(x))[:, None], y


def wis_blobs(n, size=12, width=0.2, noise=0.1):
    """One bright spot, and where it is (x, y in [0, 1])."""
    gy, gx = wis_grid(size)
    at = 0.1 + 0.8 * torch.rand(n, 2)
    dx, dy = gx - (2 * at[:, :1, None] - 1), gy - (2 * at[:, 1:, None] - 1)
    x = torch.exp(-(dx**2 + dy**2) / (2 * width**2))
    return (x + noise * torch.randn_like(x))[:, None], at


def wis_cells(n, size=12, noise=0.25):
    """Two discs on an uneven ground, and their mask (n, size, size)."""
    gy, gx = wis_grid(size)
    mask = torch.zeros(n, size, size, dtype=torch.bool)
    for _ in range(2):
        c, r = 1.6 * torch.rand(n, 2, 1, 1) - 0.8, 0.2 + 0.25 * torch.rand(n, 1, 1)
        mask |= (gx - c[:, 0]) ** 2 + (gy - c[:, 1]) ** 2 < r**2
    slope = torch.randn(n, 2, 1, 1) * 0.3
    x = mask.float() * 1.2 + slope[:, 0] * gx + slope[:, 1] * gy
    return (x + noise * torch.randn_like(x))[:, None], mask


def wis_smooth(n, size=8, rank=6, noise=0.05):
    """Images of a few smooth waves, of about unit variance."""
    at = (torch.arange(size) + 0.5) * math.pi / size
    waves = [torch.cos(i * at)[:, None] * torch.cos(j * at)[None] for i, j in
             ((0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (2, 1), (1, 2), (2, 2), (3, 0), (0, 3))][:rank]
    basis = torch.stack([w / w.pow(2).mean().sqrt() for w in waves]).flatten(1)
    x = torch.randn(n, rank) @ basis / rank**0.5
    return (x + noise * torch.randn_like(x)).view(n, 1, size, size)


def wis_tones(n, length=64, classes=4, noise=0.4):
    """A tone of random phase and loudness; the class is its pitch."""
    y = torch.randint(classes, (n,))
    t = torch.arange(length) / length
    cycles = torch.tensor([3.0, 5.0, 8.0, 12.0, 16.0, 20.0])[y][:, None]
    x = (0.7 + 0.6 * torch.rand(n, 1)) * torch.sin(2 * math.pi * (cycles * t + torch.rand(n, 1)))
    return (x + noise * torch.randn_like(x))[:, None], y


def wis_beats(n, length=96, noise=0.1):
    """A train of pulses, and how many there are (3 to 9)."""
    rate = 3 + 6 * torch.rand(n, 1)
    t = torch.arange(length) / length
    x = torch.exp(6 * (torch.cos(2 * math.pi * (rate * t + torch.rand(n, 1))) - 1))
    return (x + noise * torch.randn_like(x))[:, None], rate[:, 0]


def wis_loader(*tensors, size=32, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=True)


def wis_accuracy(x, y):
    return lambda model: (model(x).argmax(1) == y).float().mean().item()


def wis_fit(prediction, y):
    """Explained variance, at least 0."""
    rest = (prediction.reshape(y.shape) - y).pow(2).sum()
    return max(0.0, 1 - (rest / (y - y.mean(0)).pow(2).sum()).item())


def wis_iou(found, mask):
    return ((found & mask).sum() / (found | mask).sum().clamp(min=1)).item()
