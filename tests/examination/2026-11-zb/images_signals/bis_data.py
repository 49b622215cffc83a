"""Small made-up images and signals, loaders and scores."""

from __future__ import annotations

import functools

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def loader(*tensors, batch=32, shuffle=True):
    """A loader of the tensors' rows."""
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=shuffle)


def accuracy(x, y):
    """Share of examples (or places) whose largest output is the class."""
    return lambda model: (model(x).argmax(1) == y).float().mean().item()


def r2(x, y, read=lambda out: out):
    """Share of the variance that is explained, at least 0."""

    def score(model):
        out = read(model(x)).float().reshape(y.shape)
        spread = (y - y.mean(0)).pow(2).mean()
        return max(0.0, 1 - ((out - y).pow(2).mean() / spread).item())

    return score


def overlap(x, mask, cut=0.0):
    """Intersection over union of outputs above the cut."""

    def score(model):
        found = model(x).reshape(mask.shape) > cut
        real = mask > 0.5
        return ((found & real).sum() / (found | real).sum().clamp(min=1)).item()

    return score


@functools.cache
def digits():
    """Handwritten digits from 0 to 1: training images and classes, then held-out ones."""
    data = load_digits()
    order = np.random.RandomState(3).permutation(len(data.target))
    x = torch.tensor(data.images[order], dtype=torch.float32)[:, None] / 16
    y = torch.tensor(data.target[order])
    return x[:1400].clone(), y[:1400].clone(), x[1400:].clone(), y[1400:].clone()


def grid(size):
    """Rows and columns of pixels."""
    return torch.meshgrid(torch.arange(size).float(), torch.arange(size).float(), indexing="ij")


@functools.cache
def shapes(n=1000, size=12, noise=0.15, seed=5):
    """Disks, squares, crosses and rings at random places: images, classes, masks, centres in pixels."""
    g = torch.Generator().manual_seed(seed)
    row, col = grid(size)
    centre = 3 + (size - 7) * torch.rand(n, 2, generator=g)
    kind = torch.randint(0, 4, (n,), generator=g)
    dy, dx = row - centre[:, 0, None, None], col - centre[:, 1, None, None]
    far = (dy**2 + dx**2).sqrt()
    forms = torch.stack(
        [
            far < 2.6,
            (dy.abs() < 2.2) & (dx.abs() < 2.2),
            ((dy.abs() < 0.8) & (dx.abs() < 3.2)) | ((dx.abs() < 0.8) & (dy.abs() < 3.2)),
            (far < 3.2) & (far > 1.7),
        ]
    ).float()
    mask = forms[kind, torch.arange(n)]
    bright = 0.6 + 0.4 * torch.rand(n, 1, 1, generator=g)
    image = mask * bright + noise * torch.randn(n, size, size, generator=g)
    return image[:, None], kind, mask[:, None], centre


@functools.cache
def tones(n=1000, length=64, classes=4, noise=0.4, seed=7):
    """Tones of some frequencies with random phases: signals (n, 1, length) and classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.arange(length).float()
    rate = 0.04 + 0.06 * y[:, None].float() + 0.015 * torch.rand(n, 1, generator=g)
    x = torch.sin(2 * torch.pi * (rate * t + torch.rand(n, 1, generator=g)))
    x = x + noise * torch.randn(n, length, generator=g)
    return x[:, None], y


@functools.cache
def motions(n=900, length=24, seed=9):
    """Three axes of an accelerometer for four gestures: (n, length, 3) and classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    t = torch.linspace(0, 1, length)
    start = 0.2 + 0.3 * torch.rand(n, 1, generator=g)
    bump = torch.exp(-(((t - start) / 0.08) ** 2)) - torch.exp(-(((t - start - 0.25) / 0.08) ** 2))
    sign = torch.where(y % 2 == 0, 1.0, -1.0)[:, None]
    axis = (y // 2)[:, None]
    x = torch.stack([bump * sign * (axis == 0), bump * sign * (axis == 1), 0.3 * bump.abs()], 2)
    return x + 0.15 * torch.randn(n, length, 3, generator=g), y


@functools.cache
def beats(n=900, length=80, seed=11):
    """Heart beats: signals (n, 1, length) and the number of samples between beats."""
    g = torch.Generator().manual_seed(seed)
    gap = 12 + 20 * torch.rand(n, 1, generator=g)
    t = torch.arange(length).float()
    phase = torch.remainder(t - gap * torch.rand(n, 1, generator=g), gap)
    phase = torch.minimum(phase, gap - phase)
    x = torch.exp(-((phase / 1.5) ** 2)) + 0.05 * torch.randn(n, length, generator=g)
    return x[:, None], gap[:, 0]


@functools.cache
def bands(n=1500, seed=13):
    """Six reflectances from 0 to 1 of pixels on the ground, and one of four covers."""
    g = torch.Generator().manual_seed(seed)
    spectra = torch.tensor(
        [
            [0.08, 0.10, 0.08, 0.45, 0.25, 0.12],
            [0.10, 0.09, 0.06, 0.04, 0.02, 0.02],
            [0.15, 0.20, 0.26, 0.32, 0.40, 0.36],
            [0.20, 0.22, 0.24, 0.26, 0.28, 0.27],
        ]
    )
    y = torch.randint(0, 4, (n,), generator=g)
    light = 0.6 + 0.8 * torch.rand(n, 1, generator=g)
    return spectra[y] * light + 0.015 * torch.randn(n, 6, generator=g), y


@functools.cache
def clouds(n=900, points=32, seed=15):
    """Points on a sphere, a cube, a plate or a rod, turned at random about one axis: (n, points, 3) and classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (n,), generator=g)
    raw = torch.randn(n, points, 3, generator=g)
    ball = F.normalize(raw, dim=2)
    cube = raw / raw.abs().amax(2, keepdim=True)
    plate = torch.rand(n, points, 3, generator=g) * torch.tensor([2.0, 2.0, 0.1]) - torch.tensor([1.0, 1.0, 0.05])
    rod = torch.rand(n, points, 3, generator=g) * torch.tensor([0.3, 0.3, 2.0]) - torch.tensor([0.15, 0.15, 1.0])
    x = torch.stack([ball, cube, plate, rod])[y, torch.arange(n)]
    turn = 2 * torch.pi * torch.rand(n, 1, generator=g)
    x = torch.stack(
        [
            turn.cos() * x[..., 0] - turn.sin() * x[..., 1],
            turn.sin() * x[..., 0] + turn.cos() * x[..., 1],
            x[..., 2],
        ],
        2,
    )
    return x + 0.03 * torch.randn(n, points, 3, generator=g), y


@functools.cache
def textures(n=800, size=12, seed=17):
    """Smooth waves over a plane: clean images around 0 with a deviation near 0.7."""
    g = torch.Generator().manual_seed(seed)
    row, col = grid(size)
    angle = 2 * torch.pi * torch.rand(n, 1, 1, generator=g)
    rate = 0.4 + 0.5 * torch.rand(n, 1, 1, generator=g)
    phase = 2 * torch.pi * torch.rand(n, 1, 1, generator=g)
    return torch.sin(rate * (row * angle.cos() + col * angle.sin()) + phase)[:, None]


@functools.cache
def moves(n=1000, size=12, seed=19):
    """Two frames of a texture that moves, and by how many pixels (rows and columns, from -1.5 to 1.5)."""
    g = torch.Generator().manual_seed(seed)
    row, col = grid(size)
    shift = 3 * torch.rand(n, 2, generator=g) - 1.5
    centre = 4 + 4 * torch.rand(n, 2, 1, 1, generator=g)

    def frame(c):
        return torch.exp(-((row - c[:, 0]) ** 2 + (col - c[:, 1]) ** 2) / 6)

    x = torch.stack([frame(centre), frame(centre + shift[:, :, None, None])], 1)
    return x + 0.03 * torch.randn(n, 2, size, size, generator=g), shift


@functools.cache
def series(n=600, length=40, seed=21):
    """Sums of a slow and a fast oscillation: (n, length)."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length).float()
    slow = torch.sin(0.35 * t + 6.3 * torch.rand(n, 1, generator=g))
    fast = torch.sin((0.9 + 0.3 * torch.rand(n, 1, generator=g)) * t + 6.3 * torch.rand(n, 1, generator=g))
    return slow + fast + 0.05 * torch.randn(n, length, generator=g)
