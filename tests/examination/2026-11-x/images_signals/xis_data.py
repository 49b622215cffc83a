"""Synthetic images and signals, drawn with torch's global generator."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def templates():
    t = torch.zeros(6, 5, 5)
    t[0, 2, :] = 1
    t[1, :, 2] = 1
    t[2, 2, :] = 1
    t[2, :, 2] = 1
    t[3, 0, :] = t[3, 4, :] = 1
    t[3, :, 0] = t[3, :, 4] = 1
    t[4] = torch.eye(5)
    t[5] = torch.eye(5).flip(1)
    return t


def shapes(n, size=12, classes=4, noise=0.25):
    """Images (n, 1, size, size) of one small shape each, and which one it is."""
    kinds = torch.randint(classes, (n,))
    at = torch.randint(size - 4, (n, 2))
    images = noise * torch.randn(n, 1, size, size)
    t = templates()
    for i in range(n):
        r, c = at[i].tolist()
        images[i, 0, r : r + 5, c : c + 5] += t[kinds[i]]
    return images, kinds


def grid(size):
    line = torch.linspace(-1, 1, size)
    return torch.meshgrid(line, line, indexing="ij")


def blobs(n, size=12, noise=0.4, radius=(0.25, 0.5)):
    """Images of one bright disc, its mask, and its centre and radius (y, x, r)."""
    yy, xx = grid(size)
    centre = 1.2 * torch.rand(n, 2) - 0.6
    r = radius[0] + (radius[1] - radius[0]) * torch.rand(n)
    d = ((yy - centre[:, 0, None, None]) ** 2 + (xx - centre[:, 1, None, None]) ** 2).sqrt()
    mask = (d < r[:, None, None]).float()
    images = (mask + noise * torch.randn(n, size, size)).unsqueeze(1)
    return images, mask, torch.cat([centre, r[:, None]], 1)


def gratings(n, size=12, classes=4, noise=0.5):
    """Stripes of an orientation, at any phase."""
    yy, xx = grid(size)
    kinds = torch.randint(classes, (n,))
    angle = kinds * math.pi / classes
    phase = 2 * math.pi * torch.rand(n)
    u = xx * angle.cos()[:, None, None] + yy * angle.sin()[:, None, None]
    images = torch.sin(8 * u + phase[:, None, None]) + noise * torch.randn(n, size, size)
    return images.unsqueeze(1), kinds


def fields(n, size=12, coarse=4):
    """Smooth random images."""
    return F.interpolate(torch.randn(n, 1, coarse, coarse), size=(size, size), mode="bicubic", align_corners=True)


def tones(n, length=64, classes=4, noise=0.5):
    """Signals (n, 1, length) of one frequency each, at any phase."""
    kinds = torch.randint(classes, (n,))
    freq = 3.0 + 4.0 * kinds
    t = torch.arange(length) / length
    phase = 2 * math.pi * torch.rand(n, 1)
    x = torch.sin(2 * math.pi * freq[:, None] * t + phase) + noise * torch.randn(n, length)
    return x.unsqueeze(1), kinds


def beats(n, length=96, noise=0.15):
    """Heart-like signals: a spike and a wave per beat, which is narrow, wide, or upside down; and the rate of beats."""
    kinds = torch.randint(3, (n,))
    period = 16 + 16 * torch.rand(n)
    t = torch.arange(length).float()
    offset = period * torch.rand(n)
    at = (t[None] + offset[:, None]) % period[:, None] - period[:, None] / 2
    width = torch.where(kinds == 1, 2.6, 1.0)[:, None]
    sign = torch.where(kinds == 2, -1.0, 1.0)[:, None]
    x = sign * 2 * torch.exp(-((at / width) ** 2)) + 0.4 * torch.exp(-(((at - 5) / 2.5) ** 2))
    return (x + noise * torch.randn(n, length)).unsqueeze(1), kinds, period


def loader(*tensors, batch=32, shuffle=True, drop_last=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=drop_last)


def accuracy(outputs, kinds):
    return (outputs.argmax(1) == kinds).float().mean().item()


def r2(outputs, targets):
    """Share of the variance that is explained."""
    outputs, targets = outputs.float(), targets.float()
    return 1 - ((outputs - targets) ** 2).mean().item() / targets.var(0, unbiased=False).mean().item()


def iou(predicted, mask):
    predicted, mask = predicted.bool(), mask.bool()
    return (predicted & mask).sum().item() / max(1, (predicted | mask).sum().item())
