"""Small data whose answers can be learned, and scores of networks on them."""

from functools import lru_cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def loader(*tensors, size=32, shuffle=True, drop_last=False):
    """Batches of (x, y, ...)."""
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=drop_last)


class Dicts:
    """Batches of ({name: tensor}, y) in a new order in each epoch."""

    def __init__(self, inputs, y, size=32):
        self.inputs, self.y, self.size = inputs, y, size

    def __len__(self):
        return len(self.y) // self.size

    def __iter__(self):
        order = torch.randperm(len(self.y))
        for i in range(len(self)):
            take = order[i * self.size : (i + 1) * self.size]
            yield {k: v[take] for k, v in self.inputs.items()}, self.y[take]


def accuracy(x, y, dim=1):
    """Share of right answers."""
    return lambda model: (model(x).argmax(dim) == y).float().mean().item()


def r2(x, y, of=lambda out: out):
    """Share of the variance that is explained, at least 0."""

    def score(model):
        out = of(model(x)).float()
        if out.shape != y.shape:
            out = out.reshape(y.shape)
        value = 1 - ((out - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum()
        return max(0.0, value.item())

    return score


def overlap(out, mask):
    """Intersection over union of a predicted foreground with the true one."""
    out, mask = out.bool(), mask.bool()
    return ((out & mask).sum() / (out | mask).sum().clamp(min=1)).item()


@lru_cache
def digits():
    """Images in [0, 1] of (n, 1, 8, 8) and labels, for training and for tests."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x = torch.tensor(data.images[order], dtype=torch.float32)[:, None] / 16
    y = torch.tensor(data.target[order])
    return x[:1400], y[:1400], x[1400:], y[1400:]


@lru_cache
def shapes(n=1200, seed=0, size=16):
    """Images of a square, a disc, a cross or a frame: image, kind, mask, centre in [0, 1]², radius in pixels."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(4, (n,), generator=g)
    centre = 4 + (size - 9) * torch.rand(n, 2, generator=g)
    radius = 2.5 + 1.5 * torch.rand(n, generator=g)
    row, col = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    dy = (row - centre[:, 0, None, None]).abs()
    dx = (col - centre[:, 1, None, None]).abs()
    r = radius[:, None, None]
    square = (dx < r) & (dy < r)
    forms = torch.stack(
        [
            square,
            dx**2 + dy**2 < r**2,
            square & ((dx < 1) | (dy < 1)),
            square & ((dx > r - 1.2) | (dy > r - 1.2)),
        ],
        1,
    )
    mask = forms[torch.arange(n), kind]
    bright = 0.6 + 0.4 * torch.rand(n, 1, 1, generator=g)
    image = (mask * bright + 0.08 * torch.randn(n, size, size, generator=g)).clamp(0, 1)
    return image[:, None], kind, mask.long(), centre / size, radius


@lru_cache
def tones(n=1200, seed=0, length=64, noise=0.5):
    """Tones of four frequencies in any phase: (n, 1, length) and which."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    t = torch.arange(length) / length
    cycles = torch.tensor([3.0, 6.0, 10.0, 15.0])[y][:, None]
    wave = torch.sin(2 * torch.pi * (cycles * t + torch.rand(n, 1, generator=g)))
    x = wave * (0.7 + 0.6 * torch.rand(n, 1, generator=g)) + noise * torch.randn(n, length, generator=g)
    return x[:, None], y


@lru_cache
def chords(n=1200, seed=0, length=64):
    """Sums of any of five tones: (n, 1, length) and which, as (n, 5) of zeros and ones."""
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, 5, generator=g) < 0.45).float()
    t = torch.arange(length) / length
    cycles = torch.tensor([3.0, 6.0, 10.0, 15.0, 22.0])[:, None]
    wave = torch.sin(2 * torch.pi * (cycles * t + torch.rand(n, 5, 1, generator=g)))
    x = (wave * y[:, :, None]).sum(1) + 0.2 * torch.randn(n, length, generator=g)
    return x[:, None], y


@lru_cache
def beats(n=1200, seed=0, length=80):
    """Heart beats: normal, wide, without a P wave, with a lowered ST segment."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    t = torch.arange(length).float()

    def bump(at, width, height):
        return height[:, None] * torch.exp(-(((t - at[:, None]) / width[:, None]) ** 2))

    at = 36 + 6 * torch.rand(n, generator=g)
    one = torch.ones(n)
    x = bump(at, torch.where(y == 1, 5.0, 2.0), 0.9 + 0.3 * torch.rand(n, generator=g))
    x = x + bump(at - 16, 3 * one, torch.where(y == 2, 0.0, 0.3))
    x = x + bump(at + 11, 5 * one, torch.where(y == 3, -0.3, 0.0)) + bump(at + 25, 5 * one, 0.35 * one)
    return (x + 0.05 * torch.randn(n, length, generator=g))[:, None], y


@lru_cache
def motion(n=1200, seed=0, length=32):
    """Six-channel recordings of four activities: (n, length, 6) and which."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (n,), generator=g)
    t = torch.arange(length)[None, :, None] / length
    cycles = torch.tensor([0.0, 2.0, 4.0, 4.0])[y][:, None, None]
    gain = torch.tensor([[0, 0, 0, 0, 0, 0], [1, 0.5, 0, 0, 0, 0.5], [1, 0.5, 0, 0, 0, 0.5], [0, 0, 1, 1, 0, 0]])
    wave = torch.sin(2 * torch.pi * (cycles * t + torch.rand(n, 1, 6, generator=g)))
    return wave * gain.float()[y][:, None] + 0.4 * torch.randn(n, length, 6, generator=g), y


@lru_cache
def depths(n=600, seed=0, size=12):
    """Foggy images of a box before a slanted ground, and their depth in metres (1 to 8)."""
    g = torch.Generator().manual_seed(seed)
    row, col = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    ground = 8 - 4 * row / size - 1.5 * torch.rand(n, 1, 1, generator=g)
    at = 2 + (size - 5) * torch.rand(n, 2, 1, 1, generator=g)
    box = ((row - at[:, 0]).abs() < 3) & ((col - at[:, 1]).abs() < 3)
    depth = torch.where(box, 1 + 2.5 * torch.rand(n, 1, 1, generator=g), ground)
    image = torch.exp(-depth / 4) + 0.02 * torch.randn(n, size, size, generator=g)
    return image[:, None], depth[:, None]


@lru_cache
def waves(n=800, seed=0, length=33):
    """Damped sums of two oscillations with a little noise: (n, length), of standard deviation about 1."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length)
    speed = 0.35 + 0.5 * torch.rand(n, 2, 1, generator=g)
    x = torch.sin(speed * t + 2 * torch.pi * torch.rand(n, 2, 1, generator=g)).sum(1)
    return x + 0.05 * torch.randn(n, length, generator=g)


@lru_cache
def clips(n=1200, seed=0, length=20):
    """Clips of unequal length with one marked frame, whose content is the answer: frames, lengths, answers."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, length, 8, generator=g)
    x[:, :, 0] = 0
    long = torch.randint(5, length + 1, (n,), generator=g)
    at = (torch.rand(n, generator=g) * long).long()
    y = torch.randint(4, (n,), generator=g)
    rows = torch.arange(n)
    x[rows, at, 0] = 2.5
    x[rows, at, 1:5] = -1.0
    x[rows, at, 1 + y] = 2.0
    real = torch.arange(length) < long[:, None]
    return x * real[:, :, None], real, y
