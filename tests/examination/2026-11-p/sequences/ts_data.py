"""Data and scores that the cases of sequences have in common."""

import math

import torch
from torch.utils.data import DataLoader, TensorDataset


def loader(*tensors, batch=32, shuffle=True, **more):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, **more)


def share_right(logits, y, ignore=-100):
    kept = y != ignore
    return (logits.argmax(-1) == y)[kept].float().mean().item()


def r2(prediction, y):
    return max(0.0, 1 - ((prediction - y) ** 2).mean().item() / y.var().item())


def chain(n, length, vocab, noise=0.1, first=0, seed=7):
    """Tokens of which each is followed by its successor in a fixed permutation, but for noise."""
    follow = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))
    out = torch.empty(n, length, dtype=torch.long)
    out[:, 0] = torch.randint(vocab, (n,))
    for t in range(1, length):
        out[:, t] = torch.where(torch.rand(n) < noise, torch.randint(vocab, (n,)), follow[out[:, t - 1]])
    return out + first


def reviews(n, vocab=60, shortest=6, longest=20, width=None):
    """Padded texts (0 is padding), whose label is which of two sets of words they use more."""
    width = width or longest
    y = torch.randint(2, (n,))
    lengths = torch.randint(shortest, longest + 1, (n,))
    kind = torch.rand(n, width)
    words = torch.randint(21, vocab, (n, width))
    lexicon = torch.randint(1, 11, (n, width))
    words = torch.where(kind < 0.4, lexicon + 10 * y[:, None], words)
    words = torch.where(kind > 0.95, lexicon + 10 * (1 - y[:, None]), words)
    words[:, 0] = torch.where(kind[:, 0] < 0.9, lexicon[:, 0] + 10 * y, words[:, 0])
    words[torch.arange(width)[None] >= lengths[:, None]] = 0
    return words, lengths, y


def tagged(n, vocab=40, length=14, tags=5, shortest=None):
    """A word's tag is that of its kind, unless a function word (id 1 to 4) stands before it; 0 pads."""
    words = torch.randint(1, vocab, (n, length))
    tag = words % (tags - 1) + 1
    before = torch.cat([torch.full((n, 1), vocab), words[:, :-1]], 1)
    tag = torch.where(before <= 8, torch.zeros_like(tag), tag)
    lengths = torch.randint(shortest or length, length + 1, (n,))
    gone = torch.arange(length)[None] >= lengths[:, None]
    return words.masked_fill(gone, 0), tag, gone, lengths


def waves(n, length, noise=0.05):
    t = torch.arange(length)[None]
    frequency = 0.15 + 0.35 * torch.rand(n, 1)
    amplitude = 0.6 + 0.8 * torch.rand(n, 1)
    return amplitude * torch.sin(frequency * t + 2 * math.pi * torch.rand(n, 1)) + noise * torch.randn(n, length)


def tones(n, classes=4, length=256, noise=0.3):
    """Sounds whose class is their pitch."""
    y = torch.randint(classes, (n,))
    t = torch.arange(length)[None]
    omega = (0.2 + 0.25 * y.float())[:, None] * (1 + 0.04 * torch.randn(n, 1))
    x = torch.sin(omega * t + 2 * math.pi * torch.rand(n, 1)) * (0.5 + torch.rand(n, 1))
    return (x + noise * torch.randn(n, length))[:, None], y
