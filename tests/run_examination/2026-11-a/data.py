"""Data shared by the runs: all synthetic, all made from a seed. `SCORES` holds what a run measured at its end."""

from __future__ import annotations

import math

import torch

SCORES: dict[str, float] = {}
"""Held-out loss or error at the end of a run (lower is better), by the run's name; only verify.py reads it."""

_GLYPHS = """
01110 00100 01110 11111 00010 11111 00110 11111 01110 01110
10001 01100 10001 00010 00110 10000 01000 00001 10001 10001
10011 00100 00001 00100 01010 11110 10000 00010 10001 10001
10101 00100 00010 00010 10010 00001 11110 00100 01110 01111
11001 00100 00100 00001 11111 00001 10001 01000 10001 00001
10001 00100 01000 10001 00010 10001 10001 01000 10001 00010
01110 01110 11111 01110 00010 01110 01110 01000 01110 01100
"""


def _glyphs() -> torch.Tensor:
    rows = [line.split() for line in _GLYPHS.strip().splitlines()]
    return torch.tensor([[[float(c) for c in rows[r][d]] for r in range(7)] for d in range(10)])


def digits(count: int, seed: int, size: int = 12, noise: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    """Images of 5x7 digits somewhere on a size x size field, with pixel noise, in about 0..1; labels 0..9."""
    g = torch.Generator().manual_seed(seed)
    glyphs = _glyphs()
    labels = torch.randint(10, (count,), generator=g)
    images = torch.zeros(count, 1, size, size)
    top = torch.randint(size - 6, (count,), generator=g).tolist()
    left = torch.randint(size - 4, (count,), generator=g).tolist()
    ink = 0.6 + 0.4 * torch.rand(count, generator=g)
    for i, label in enumerate(labels.tolist()):
        images[i, 0, top[i] : top[i] + 7, left[i] : left[i] + 5] = glyphs[label] * ink[i]
    images += noise * torch.randn(images.shape, generator=g)
    return images.clamp(0, 1), labels


def tabular(
    count: int, seed: int, features: int = 20, classes: int = 5, noise: float = 0.5
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal features; the class comes from a fixed random network, with some noise."""
    t = torch.Generator().manual_seed(4242)
    first = torch.randn(features, 32, generator=t) / math.sqrt(features)
    second = torch.randn(32, classes, generator=t)
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=g)
    logits = torch.tanh(1.5 * x @ first) @ second
    return x, (logits + noise * torch.randn(logits.shape, generator=g)).argmax(1)


def friedman(count: int, seed: int, noise: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    """Friedman's first regression problem, ten features of which five matter; targets standardised."""
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 10, generator=g)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = (y + noise * torch.randn(count, generator=g) - 14.4) / 4.9
    return (x - 0.5) / 0.29, y[:, None]


_NOUNS = ["cat", "dog", "bird", "mouse", "horse", "child", "king", "fox"]
_VERBS = ["sees", "likes", "hears", "finds", "eats", "knows"]
_ADJECTIVES = ["old", "big", "red", "shy", "fast", "wise"]
ALPHABET = " .abcdefghijklmnopqrstuvwxyz"


def corpus(length: int, seed: int) -> torch.Tensor:
    """Characters of sentences of a small grammar, as indices into ALPHABET."""
    g = torch.Generator().manual_seed(seed)

    def pick(words: list[str]) -> str:
        return words[int(torch.randint(len(words), (1,), generator=g))]

    text: list[str] = []
    size = 0
    while size < length:
        subject = (pick(_ADJECTIVES) + " " if torch.rand(1, generator=g) < 0.5 else "") + pick(_NOUNS)
        sentence = f"the {subject} {pick(_VERBS)} the {pick(_NOUNS)}. "
        text.append(sentence)
        size += len(sentence)
    return torch.tensor([ALPHABET.index(c) for c in "".join(text)[:length]])


def windows(text: torch.Tensor, count: int, length: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random stretches of a text, and the same moved by one."""
    start = torch.randint(len(text) - length - 1, (count,), generator=g)
    place = start[:, None] + torch.arange(length)
    return text[place], text[place + 1]


def reviews(count: int, seed: int, length: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Token sequences (vocabulary 40): 1..6 are good words, 7..12 bad ones, 13 turns the next one round; label good."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(1, 40, (count, length), generator=g)
    mask = torch.rand(count, length, generator=g) < 0.35
    x = torch.where(mask, torch.randint(1, 14, (count, length), generator=g), x)
    worth = ((x >= 1) & (x <= 6)).float() - ((x >= 7) & (x <= 12)).float()
    turned = torch.cat([torch.zeros(count, 1, dtype=torch.bool), x[:, :-1] == 13], 1)
    total = torch.where(turned, -worth, worth).sum(1)
    total = torch.where(total == 0, worth[:, -1] + 0.1 * worth[:, -2] + 0.01, total)
    return x, (total > 0).long()


def waves(count: int, seed: int, length: int = 24, noise: float = 0.05) -> torch.Tensor:
    """Sums of two sines with random period and phase, (count, length + 1, 1)."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length + 1.0)

    def wave() -> torch.Tensor:
        period = 5 + 20 * torch.rand(count, 1, generator=g)
        phase = 2 * math.pi * torch.rand(count, 1, generator=g)
        return (0.4 + 0.6 * torch.rand(count, 1, generator=g)) * torch.sin(2 * math.pi * t / period + phase)

    y = wave() + wave()
    return (y + noise * torch.randn(y.shape, generator=g))[..., None]


def ratings(
    count: int, seed: int, users: int = 200, items: int = 150, noise: float = 0.3
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs (user, item), popular items far more often than others, and a rating around zero."""
    t = torch.Generator().manual_seed(777)
    u = torch.randn(users, 4, generator=t) / 2
    v = torch.randn(items, 4, generator=t)
    bias = 0.5 * torch.randn(items, generator=t)
    g = torch.Generator().manual_seed(seed)
    user = torch.randint(users, (count,), generator=g)
    popularity = 1 / (torch.arange(items) + 3.0)
    item = torch.multinomial(popularity, count, replacement=True, generator=g)
    y = (u[user] * v[item]).sum(1) + bias[item] + noise * torch.randn(count, generator=g)
    return torch.stack([user, item], 1), y


def ring(count: int, g: torch.Generator) -> torch.Tensor:
    """Points of eight small clouds on a circle."""
    angle = torch.randint(8, (count,), generator=g) * (math.pi / 4)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.08 * torch.randn(count, 2, generator=g)
