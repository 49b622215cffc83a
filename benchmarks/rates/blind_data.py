"""Pictures, tables and graphs of the blind tasks: digits, and what is drawn from known sources with fixed seeds."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.rates.data import Shuffled, digits

USERS, ITEMS = 300, 200
FIELDS, VALUES = 6, 40
NODES, FEATURES = 14, 3


def pictures(size: int) -> Shuffled:
    """Digits in [0, 1], (N, 1, 8, 8), as inputs and as targets."""
    x, _ = digits()
    x = (x - x.min()) / (x.max() - x.min())
    return Shuffled((x, x), size)


def labels_and_ink(size: int) -> Shuffled:
    """Digits, and two targets in one row: the label, and the standardized mean of the pixels."""
    x, y = digits()
    ink = x.mean((1, 2, 3))
    ink = (ink - ink.mean()) / ink.std()
    return Shuffled((x, torch.stack([y.float(), ink], 1)), size, noise=0.3)


def discs(size: int, images: int = 1024, pixels: int = 16) -> Shuffled:
    """Noisy images of a disc and a square, and the mask of the disc."""
    generator = torch.Generator().manual_seed(11)
    rows, columns = torch.meshgrid(torch.arange(pixels), torch.arange(pixels), indexing="ij")

    def offsets() -> tuple[Tensor, Tensor, Tensor]:
        place = 3 + (pixels - 6) * torch.rand(images, 2, 1, 1, generator=generator)
        radius = 1.5 + 3 * torch.rand(images, 1, 1, generator=generator)
        return rows - place[:, 0], columns - place[:, 1], radius

    down, right, radius = offsets()
    mask = (down.square() + right.square() < radius.square()).float()
    down, right, radius = offsets()
    square = (torch.maximum(down.abs(), right.abs()) < radius).float()
    brightness = 0.7 + 0.6 * torch.rand(images, 1, 1, generator=generator)
    x = torch.maximum(mask, square) * brightness + 0.3 * torch.randn(mask.shape, generator=generator)
    return Shuffled((x[:, None], mask[:, None]), size)


def swiss_roll(size: int, points: int = 4096) -> Shuffled:
    """Points in the plane near a spiral, as inputs and as targets."""
    generator = torch.Generator().manual_seed(12)
    angle = 1.5 * torch.pi * (1 + 2 * torch.rand(points, generator=generator))
    x = torch.stack([angle * angle.cos(), angle * angle.sin()], 1) / 7
    x = x + 0.05 * torch.randn(x.shape, generator=generator)
    return Shuffled((x, x), size)


def ratings(size: int, known: int = 16384) -> Shuffled:
    """Pairs of a user and an item, and the stars from 1 to 5 that the user gave."""
    generator = torch.Generator().manual_seed(13)
    users, items = torch.randn(USERS, 4, generator=generator), torch.randn(ITEMS, 4, generator=generator)
    liking = 0.5 * torch.randn(ITEMS, generator=generator)
    popular = torch.rand(ITEMS, generator=generator).pow(3) + 0.05
    user = torch.randint(0, USERS, (known,), generator=generator)
    item = torch.multinomial(popular, known, replacement=True, generator=generator)
    score = 3.5 + 0.5 * (users[user] * items[item]).sum(1) + liking[item]
    score = score + 0.4 * torch.randn(known, generator=generator)
    return Shuffled((torch.stack([user, item], 1), score.round().clamp(1, 5)), size)


def clicks(size: int, shown: int = 16384) -> Shuffled:
    """Categories of an advertisement and its reader, and whether one of about twenty clicked."""
    generator = torch.Generator().manual_seed(14)
    often = torch.rand(FIELDS, VALUES, generator=generator).pow(4) + 0.01
    x = torch.multinomial(often, shown, replacement=True, generator=generator).T
    hidden = torch.randn(FIELDS, VALUES, 3, generator=generator)
    chosen = torch.stack([hidden[field][x[:, field]] for field in range(FIELDS)], 1)
    score = chosen[..., 0].sum(1) + (chosen[:, 0] * chosen[:, 1]).sum(1)
    score = score - score.quantile(0.95)
    return Shuffled((x, torch.bernoulli(score.mul(2).sigmoid() * 0.9, generator=generator)[:, None]), size)


def houses(size: int, sold: int = 4096) -> Shuffled:
    """Houses in the units of a listing, and prices in thousands, of which some are entered wrongly."""
    generator = torch.Generator().manual_seed(15)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(sold, generator=generator)

    area, lot, year, away = uniform(40, 250), uniform(100, 2000), uniform(1900, 2020), uniform(0, 30)
    rooms = (area / 30 + uniform(0, 2)).floor()
    price = area * 2.2 * (-away / 25).exp() + 0.04 * lot + 0.6 * (year - 1900) + 8 * rooms
    price = price * (0.08 * torch.randn(sold, generator=generator)).exp()
    wrong = torch.rand(sold, generator=generator) < 0.05
    price = torch.where(wrong, price * uniform(0.1, 8), price)
    return Shuffled((torch.stack([area, lot, year, away, rooms], 1), price[:, None]), size)


def powers(size: int, degree: int = 9) -> Shuffled:
    """Powers of a number from -1 to 1, nearly collinear, and a wave with noise."""
    generator = torch.Generator().manual_seed(16)
    x = 2 * torch.rand(2048, 1, generator=generator) - 1
    y = (4 * x).sin() + 0.5 * x + 0.1 * torch.randn(x.shape, generator=generator)
    return Shuffled((torch.cat([x**power for power in range(1, degree + 1)], 1), y), size)


def graphs(size: int, drawn: int = 2048) -> Shuffled:
    """Graphs whose edges prefer nodes that are alike, different, or neither; the target tells which.

    A row of a graph holds a node's normalized adjacency and, last, its features.
    """
    generator = torch.Generator().manual_seed(17)
    y = torch.randint(0, 3, (drawn,), generator=generator)
    side = torch.randint(0, 2, (drawn, NODES), generator=generator).float().mul(2).sub(1)
    preference = torch.tensor([0.2, -0.2, 0.0])[y][:, None, None]
    likely = 0.3 + preference * side[:, :, None] * side[:, None, :]
    edges = torch.bernoulli(likely, generator=generator).triu(1)
    edges = edges + edges.mT
    scale = edges.sum(-1).clamp(min=1).rsqrt()
    features = torch.randn(drawn, NODES, FEATURES, generator=generator) * 0.5
    features[..., 0] += side
    return Shuffled((torch.cat([edges * scale[:, :, None] * scale[:, None, :], features], -1), y), size)


def five(size: int, later: bool) -> Shuffled:
    """The digits 0 to 4, or 5 to 9, with labels from 0 to 4."""
    x, y = digits()
    chosen = (y >= 5) == later
    return Shuffled((x[chosen], y[chosen] % 5), size, noise=0.3)


def mirrored(size: int) -> Shuffled:
    """Digits seen in a mirror and in negative, and their labels."""
    x, y = digits()
    return Shuffled((F.normalize(-x.flip(-1).flatten(1), dim=1).reshape(x.shape) * 8, y), size, noise=0.3)
