"""Synthetic images and signals, all drawn from torch's global generator."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

_ROWS = [
    ["..#..", "..#..", "#####", "..#..", "..#.."],
    ["#...#", ".#.#.", "..#..", ".#.#.", "#...#"],
    ["#####", "#...#", "#...#", "#...#", "#####"],
    ["#####", ".....", "#####", ".....", "#####"],
]
GLYPHS = torch.tensor([[[float(c == "#") for c in r] for r in g] for g in _ROWS])


def glyphs(n, size=10, noise=0.25):
    """One of four glyphs somewhere in a noisy image."""
    y = torch.randint(4, (n,))
    x = noise * torch.randn(n, 1, size, size)
    at = torch.randint(size - 4, (n, 2)).tolist()
    for i, (r, c) in enumerate(at):
        x[i, 0, r : r + 5, c : c + 5] += GLYPHS[y[i]]
    return x, y


def discs(n, size=12, noise=0.4):
    """A disc on a noisy ramp, and its mask."""
    g = torch.arange(size).float()
    c = 2 + (size - 5) * torch.rand(n, 2, 1, 1)
    r = 1.5 + 2.0 * torch.rand(n, 1, 1)
    mask = (((g[:, None] - c[:, 0]) ** 2 + (g[None, :] - c[:, 1]) ** 2) < r**2).float()
    ramp = (torch.rand(n, 1, 1) - 0.5) * g[None, None, :] / size
    x = mask * (0.8 + 0.6 * torch.rand(n, 1, 1)) + ramp + noise * torch.randn(n, size, size)
    return x[:, None], mask[:, None]


def spots(n, size=10, noise=0.2):
    """A bright spot and where it is, in (0, 1)."""
    g = torch.arange(size).float()
    c = 1 + (size - 3) * torch.rand(n, 2)
    d = (g[None, :, None] - c[:, 0, None, None]) ** 2 + (g[None, None, :] - c[:, 1, None, None]) ** 2
    return (2 * torch.exp(-d / 3) + noise * torch.randn(n, size, size))[:, None], c / size


def smooth(n, size=12, coarse=4):
    """Smooth random images of mean 0 and spread near 1."""
    z = F.interpolate(torch.randn(n, 1, coarse, coarse), size=size, mode="bicubic", align_corners=False)
    return z / 0.75


def tones(n, length=96, classes=4, noise=0.3):
    """A tone of one of a few frequencies, with any phase."""
    y = torch.randint(classes, (n,))
    t = torch.arange(length).float()
    f = torch.tensor([0.04, 0.09, 0.16, 0.25, 0.34])[y][:, None]
    x = torch.cos(2 * math.pi * (f * t + torch.rand(n, 1))) * (0.6 + 0.8 * torch.rand(n, 1))
    return (x + noise * torch.randn(n, length))[:, None], y


def chirps(n, length=96, noise=0.2):
    """Sweeps that rise, fall or stay."""
    y = torch.randint(3, (n,))
    t = torch.linspace(0, 1, length)
    a = torch.tensor([5.0, 17.0, 11.0])[y][:, None]
    b = torch.tensor([17.0, 5.0, 11.0])[y][:, None]
    x = torch.cos(2 * math.pi * (a * t + (b - a) * t**2 / 2 + torch.rand(n, 1)))
    return (x + noise * torch.randn(n, length))[:, None], y


def moving(n, frames=5, size=8, noise=0.1, either_sign=False):
    """A dot that moves in one of four directions (on a torus)."""
    y = torch.randint(4, (n,))
    step = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])[y]
    at = torch.randint(size, (n, 2))
    sign = torch.randint(2, (n,)).float() * 2 - 1 if either_sign else torch.ones(n)
    x = noise * torch.randn(n, 1, frames, size, size)
    for f in range(frames):
        p = (at + f * step) % size
        x[torch.arange(n), 0, f, p[:, 0], p[:, 1]] += 2 * sign
    return x, y


def accuracy(x, y):
    return lambda m: float((m(x).argmax(1) == y).float().mean())


def r2_of(p, y):
    return float(1 - (p - y).pow(2).mean() / (y - y.mean(0)).pow(2).mean())


def r2(x, y):
    return lambda m: r2_of(m(x), y)


def iou(x, mask):
    def score(m):
        p = m(x) > 0
        return float((p & (mask > 0.5)).sum() / (p | (mask > 0.5)).sum().clamp(min=1))

    return score
