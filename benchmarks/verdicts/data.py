"""Data that need no download: scikit-learn's embedded sets, and generated ones of the kind that a fault needs."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.nn import functional as F

Data = tuple[Tensor, Tensor]


@functools.cache
def embedded(name: str) -> Data:
    """scikit-learn's iris, wine, breast_cancer, diabetes or digits as float32 inputs and its targets."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return torch.from_numpy(x).float(), torch.from_numpy(y)


def table(name: str, *, scaled: bool) -> Data:
    """Rows of an embedded set in an order of their own, as they are or with columns of mean 0 and variance 1."""
    x, y = embedded(name)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return (standardized(x) if scaled else x)[order], y[order]


def standardized(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0).clamp_min(1e-6)


@functools.cache
def digit_images(size: int) -> Data:
    """The 1797 digits at another size, in [0, 1], (N, 1, size, size), in an order of their own."""
    x, y = table("digits", scaled=False)
    images = F.interpolate(x.view(-1, 1, 8, 8) / 16, size=(size, size), mode="bilinear")
    return images, y.long()


def mnist(*, scaled: bool) -> Data:
    """Digits in the format of MNIST: 28×28, 0 to 255, or divided by 255."""
    images, y = digit_images(28)
    return (images if scaled else (255 * images).round()), y


@functools.cache
def textures(size: int = 32, count: int = 1024, classes: int = 10, noise: float = 1.0) -> Data:
    """Color images (N, 3, size, size) with values 0 to 255: a smooth pattern for each class, shifted, and noise."""
    draw = torch.Generator().manual_seed(7)
    y = torch.randint(0, classes, (count,), generator=draw)
    patterns = F.interpolate(torch.randn(classes, 3, 5, 5, generator=draw), (size, size), mode="bicubic")
    shifts = torch.randint(0, size // 4, (count, 2), generator=draw)
    images = torch.stack(
        [patterns[k].roll((int(a), int(b)), (1, 2)) for k, (a, b) in zip(y.tolist(), shifts, strict=True)]
    )
    images = images + noise * torch.randn(images.shape, generator=draw)
    return (128 + 48 * images).clamp(0, 255).round(), y


def pictures(size: int = 32, **options: float) -> Data:
    """The textures as people feed them: about mean 0 and variance 1."""
    x, y = textures(size, **options)  # type: ignore[arg-type]
    return (x - 128) / 64, y


def medical(*, scaled: bool) -> Data:
    """768 patients with the eight columns, their scales and zeros, of the Pima diabetes table; y is 0 or 1."""
    draw = torch.Generator().manual_seed(3)
    z = torch.randn(768, 8, generator=draw)
    mean = torch.tensor([3.8, 121.0, 69.0, 20.5, 80.0, 32.0, 0.47, 33.0])
    spread = torch.tensor([3.4, 32.0, 19.0, 16.0, 115.0, 7.9, 0.33, 11.8])
    x = (mean + spread * z).clamp_min(0)
    signal = 1.3 * z[:, 1] + 0.8 * z[:, 5] + 0.6 * z[:, 7] + 0.8 * z[:, 6] - 0.7
    y = (signal + 0.5 * torch.randn(768, generator=draw) > 0).float()[:, None]
    return (standardized(x) if scaled else x), y


def houses(*, scaled: bool) -> Data:
    """Area, rooms and income of 600 houses and their price, in their own units or standardized."""
    draw = torch.Generator().manual_seed(4)
    z = torch.randn(600, 3, generator=draw)
    x = torch.stack([1800 + 700 * z[:, 0], (5 + 1.5 * z[:, 1]).round(), 60_000 + 22_000 * z[:, 2]], 1)
    price = 250_000 + 90_000 * torch.tanh(z[:, 0]) + 25_000 * z[:, 1] + 70_000 * z[:, 2] + 30_000 * z[:, 0] * z[:, 2]
    y = (price + 8_000 * torch.randn(600, generator=draw))[:, None]
    return (standardized(x), standardized(y)) if scaled else (x, y)


def circles(count: int = 512) -> Data:
    """Two rings, one inside the other; no line divides them."""
    draw = torch.Generator().manual_seed(5)
    y = torch.randint(0, 2, (count,), generator=draw)
    angle = 2 * math.pi * torch.rand(count, generator=draw)
    radius = 0.6 + 0.9 * y + 0.12 * torch.randn(count, generator=draw)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), y


def blobs(count: int = 512) -> Data:
    """Two Gaussian clouds in the plane, side by side and on the same side of the origin."""
    draw = torch.Generator().manual_seed(6)
    y = torch.randint(0, 2, (count,), generator=draw)
    along = torch.stack([y - 0.5, 0.5 - y], 1)
    return 0.5 * torch.randn(count, 2, generator=draw) + 1.5 + 2.0 * along, y


def bits() -> Data:
    """All bytes, as eight bits, and the same with their order reversed and every other bit flipped."""
    x = ((torch.arange(256)[:, None] & 2 ** torch.arange(8)) > 0).float()
    return x, (x.flip(1) - torch.arange(8) % 2).abs()


def marked_tokens(count: int = 2048, length: int = 10, kinds: int = 8) -> Data:
    """A class token 0, then common tokens with one of another alphabet among them; the label says which one."""
    draw = torch.Generator().manual_seed(8)
    x = torch.randint(1, 8, (count, length), generator=draw)
    y = torch.randint(0, kinds, (count,), generator=draw)
    x[:, 0] = 0
    x[torch.arange(count), torch.randint(1, length, (count,), generator=draw)] = 8 + y
    return x, y


@functools.cache
def text(count: int = 512, length: int = 24, vocabulary: int = 24) -> Data:
    """Sequences of a Markov chain and the same, one step on; each token has two likely followers."""
    draw = torch.Generator().manual_seed(9)
    followers = torch.randint(0, vocabulary, (vocabulary, 2), generator=draw)
    tokens = [torch.randint(0, vocabulary, (count,), generator=draw)]
    for _ in range(length):
        likely = followers[tokens[-1], (torch.rand(count, generator=draw) < 0.15).long()]
        anything = torch.randint(0, vocabulary, (count,), generator=draw)
        tokens.append(torch.where(torch.rand(count, generator=draw) < 0.05, anything, likely))
    whole = torch.stack(tokens, 1)
    return whole[:, :-1], whole[:, 1:]


def first_value(count: int = 512, length: int = 500) -> Data:
    """(N, length, 2): a little noise, and a second channel that is ±3 at the first step and 0 after; which it was."""
    draw = torch.Generator().manual_seed(10)
    y = torch.randint(0, 2, (count,), generator=draw)
    x = torch.zeros(count, length, 2)
    x[:, :, 0] = 0.1 * torch.randn(count, length, generator=draw)
    x[:, 0, 1] = 6.0 * y - 3
    return x, y


def words(count: int = 1024, length: int = 20, vocabulary: int = 200) -> Data:
    """Bags of words: documents of two topics with their own frequent words."""
    draw = torch.Generator().manual_seed(11)
    y = torch.randint(0, 4, (count,), generator=draw)
    common = torch.randint(0, vocabulary, (count, length), generator=draw)
    own = torch.randint(0, vocabulary // 4, (count, length), generator=draw) + (vocabulary // 4) * y[:, None]
    return torch.where(torch.rand(count, length, generator=draw) < 0.3, own, common), y
