"""Small images and signals whose answers can be learned, and scores for them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def generator(seed: int) -> torch.Generator:
    """Random numbers that do not depend on the seed of training."""
    return torch.Generator().manual_seed(seed)


def loader(x: Tensor, y: Tensor, batch: int = 32, shuffle: bool = True) -> DataLoader:
    """Batches of pairs."""
    return DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=shuffle, drop_last=True)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Handwritten digits of 8 x 8 pixels in [0, 1]: training images and labels, held-out images and labels."""
    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(bunch.target)
    order = torch.randperm(len(x), generator=generator(7))
    x, y = x[order], y[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


def shapes(
    n: int, seed: int, size: int = 16, noise: float = 0.1
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A square, a frame, a plus or an X somewhere: image, class, mask, centre in [-1, 1], radius in pixels."""
    g = generator(seed)
    label = torch.randint(0, 4, (n,), generator=g)
    radius = torch.randint(2, 5, (n,), generator=g).float()
    span = size - 1 - 2 * radius
    centre = torch.round(radius[:, None] + torch.rand(n, 2, generator=g) * span[:, None])
    grid = torch.arange(size).float()
    dx = (grid[None, None, :] - centre[:, 0, None, None]).abs().expand(n, size, size)
    dy = (grid[None, :, None] - centre[:, 1, None, None]).abs().expand(n, size, size)
    far, near, r = torch.maximum(dx, dy), torch.minimum(dx, dy), radius[:, None, None]
    inside = far <= r
    kinds = torch.stack([inside, inside & (far > r - 1), inside & (near < 1), inside & ((dx - dy).abs() < 1)], 1)
    mask = kinds[torch.arange(n), label].float()[:, None]
    bright = 0.6 + 0.4 * torch.rand(n, 1, 1, 1, generator=g)
    image = mask * bright + noise * torch.randn(n, 1, size, size, generator=g)
    return image, label, mask, centre / (size - 1) * 2 - 1, radius


def gratings(n: int, seed: int, size: int = 12, kinds: int = 4) -> tuple[Tensor, Tensor]:
    """Waves of any phase in one of some orientations."""
    g = generator(seed)
    label = torch.randint(0, kinds, (n,), generator=g)
    angle = label * math.pi / kinds + 0.1 * torch.randn(n, generator=g)
    phase = 2 * math.pi * torch.rand(n, generator=g)
    grid = torch.arange(size).float()
    along = grid[None, None, :] * angle.cos()[:, None, None] + grid[None, :, None] * angle.sin()[:, None, None]
    image = torch.sin(1.6 * along + phase[:, None, None]) + 0.4 * torch.randn(n, size, size, generator=g)
    return image[:, None], label


def smooth_images(n: int, seed: int, size: int = 12) -> Tensor:
    """Images of three soft blobs, in [0, 1]."""
    g = generator(seed)
    grid = torch.linspace(0, 1, size)
    centre, width = torch.rand(n, 3, 2, generator=g), 0.12 + 0.15 * torch.rand(n, 3, generator=g)
    far = (grid[None, None, None, :] - centre[:, :, 0, None, None]) ** 2
    far = far + (grid[None, None, :, None] - centre[:, :, 1, None, None]) ** 2
    return torch.exp(-far / (2 * width[:, :, None, None] ** 2)).sum(1, keepdim=True).clamp(0, 1)


def blob_pairs(n: int, seed: int, size: int = 12) -> tuple[Tensor, Tensor]:
    """Two frames in which a blob moves, and how far it moved in pixels."""
    g = generator(seed)
    first = 3.5 + 4 * torch.rand(n, 2, generator=g)
    shift = 5 * torch.rand(n, 2, generator=g) - 2.5
    grid = torch.arange(size).float()

    def frame(centre: Tensor) -> Tensor:
        far = (grid[None, None, :] - centre[:, 0, None, None]) ** 2
        far = far + (grid[None, :, None] - centre[:, 1, None, None]) ** 2
        return torch.exp(-far / 3) + 0.03 * torch.randn(n, size, size, generator=g)

    return torch.stack([frame(first), frame(first + shift)], 1), shift


def tones(n: int, seed: int, length: int = 96, kinds: int = 5) -> tuple[Tensor, Tensor]:
    """Waveforms of one pitch of some, at any phase."""
    g = generator(seed)
    label = torch.randint(0, kinds, (n,), generator=g)
    pitch = 0.25 + 0.3 * label + 0.04 * torch.randn(n, generator=g)
    phase = 2 * math.pi * torch.rand(n, generator=g)
    t = torch.arange(length).float()
    wave = torch.sin(pitch[:, None] * t + phase[:, None]) + 0.3 * torch.randn(n, length, generator=g)
    return wave[:, None], label


def tagged(n: int, seed: int, bands: int = 24, frames: int = 16, tags: int = 6) -> tuple[Tensor, Tensor]:
    """Spectrograms in which each of some events may sound for a while, and which do."""
    g = generator(seed)
    present = (torch.rand(n, tags, generator=g) < 0.4).float()
    start = torch.randint(0, frames - 6, (n, tags), generator=g)
    t, b = torch.arange(frames), torch.arange(bands).float()
    on = ((t >= start[..., None]) & (t < start[..., None] + 6)).float() * present[..., None]
    profile = torch.exp(-((b - (2 + 4 * torch.arange(tags).float())[:, None]) ** 2) / 2)
    spectrum = torch.einsum("nkt,kb->nbt", on, profile) + 0.25 * torch.randn(n, bands, frames, generator=g)
    return spectrum, present


def beats(n: int, seed: int, length: int = 96) -> tuple[Tensor, Tensor, Tensor]:
    """Heart beats: the signal, its class (normal, wide, inverted T) and beats per 100 samples."""
    g = generator(seed)
    label = torch.randint(0, 3, (n,), generator=g)
    period = 20 + 20 * torch.rand(n, generator=g)
    offset = torch.rand(n, generator=g) * period
    t = torch.remainder(torch.arange(length).float()[None] - offset[:, None], period[:, None])
    width = torch.where(label == 1, 2.4, 1.0)[:, None]
    wave = torch.where(label == 2, -0.35, 0.35)[:, None]
    signal = torch.exp(-((t - 7) ** 2) / (2 * width**2)) + wave * torch.exp(-((t - 14) ** 2) / 8)
    signal = signal + 0.15 * torch.exp(-((t - 2) ** 2) / 3) + 0.05 * torch.randn(n, length, generator=g)
    return signal[:, None], label, 100 / period


def motions(n: int, seed: int, length: int = 30) -> tuple[Tensor, Tensor]:
    """Six channels of a wrist: (n, time, channel), and which of four gestures it is."""
    g = generator(seed)
    label = torch.randint(0, 4, (n,), generator=g)
    t = torch.arange(length).float()
    start = 4 + 12 * torch.rand(n, generator=g)

    def push(at: Tensor) -> Tensor:
        return torch.exp(-((t[None] - at[:, None]) ** 2) / 6)

    sign = torch.where(label % 2 == 0, 1.0, -1.0)[:, None]
    gesture = sign * (push(start) - push(start + 7))
    x = 0.3 * torch.randn(n, length, 6, generator=g)
    axis = (label >= 2).long()
    for channel in (0, 1):
        x[:, :, channel] += torch.where((axis == channel)[:, None], 1.5 * gesture, 0.0)
    x[:, :, 3:] += torch.sin(0.4 * t[None, :, None] + 6 * torch.rand(n, 1, 3, generator=g))
    return x, label


def accuracy(x: Tensor, y: Tensor) -> Callable[[nn.Module], float]:
    """The share of examples whose largest output is that of their class."""
    return lambda model: (model(x).float().argmax(1) == y).float().mean().item()


def explained(x: Tensor, y: Tensor) -> Callable[[nn.Module], float]:
    """The share of the targets' variance that is explained, at least 0."""

    def score(model: nn.Module) -> float:
        error = ((model(x).float().reshape(y.shape) - y) ** 2).mean()
        return max(0.0, 1 - (error / y.var(unbiased=False)).item())

    return score


def overlap(x: Tensor, mask: Tensor, threshold: float = 0.0) -> Callable[[nn.Module], float]:
    """Intersection over union of what exceeds a threshold."""

    def score(model: nn.Module) -> float:
        found = model(x) > threshold
        return ((found & (mask > 0)).sum() / (found | (mask > 0)).sum().clamp(min=1)).item()

    return score


def neighbours(x: Tensor, y: Tensor) -> Callable[[nn.Module], float]:
    """How often the nearest other embedding is of the same class."""

    def score(model: nn.Module) -> float:
        z = model(x).flatten(1).double()
        far = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")
        far.fill_diagonal_(math.inf)
        return (y[far.argmin(1)] == y).float().mean().item()

    return score


def conv_block(given: int, made: int) -> nn.Sequential:
    """Convolution, BatchNorm, ReLU."""
    return nn.Sequential(nn.Conv2d(given, made, 3, padding=1, bias=False), nn.BatchNorm2d(made), nn.ReLU())


def shape_cnn(classes: int = 4, channels: int = 1, width: int = 8) -> nn.Sequential:
    """A small classifier of 16 x 16 images."""
    return nn.Sequential(
        conv_block(channels, width), nn.MaxPool2d(2), conv_block(width, 2 * width), nn.MaxPool2d(2),
        conv_block(2 * width, 2 * width), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes),
    )
