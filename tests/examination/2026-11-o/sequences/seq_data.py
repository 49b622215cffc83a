"""Made-up texts, signals and series, and scores on them."""

import math

import torch
from torch.utils.data import DataLoader, TensorDataset


def loader(*tensors, batch=32, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=True)


def chain(n, length, vocab, keep=0.9):
    """Token sequences in which the next token is mostly a fixed function of the present one."""
    table = torch.randperm(vocab).roll(1)
    x = torch.randint(vocab, (n, length))
    for i in range(1, length):
        sure = torch.rand(n) < keep
        x[sure, i] = table[x[sure, i - 1]]
    return x


def chain2(n, length, vocab, keep=0.9):
    """The next token is mostly a fixed function of the last two."""
    table = torch.randint(vocab, (vocab, vocab))
    x = torch.randint(vocab, (n, length))
    for i in range(2, length):
        sure = torch.rand(n) < keep
        x[sure, i] = table[x[sure, i - 1], x[sure, i - 2]]
    return x


def tones(n, length, classes, noise=0.3):
    """Noisy tones of random phase; the class is the frequency."""
    y = torch.randint(classes, (n,))
    f = 0.03 + 0.05 * y.float()
    t = torch.arange(length).float()
    x = torch.sin(2 * math.pi * (f[:, None] * t + torch.rand(n, 1)))
    return (x + noise * torch.randn_like(x)).unsqueeze(1), y


def waves(n, length, noise=0.05):
    """Sums of two sines of random phase, with noise."""
    t = torch.arange(length).float()
    a = torch.sin(2 * math.pi * (t / 12 + torch.rand(n, 1)))
    b = torch.sin(2 * math.pi * (t / 7.3 + torch.rand(n, 1)))
    return a + 0.6 * b + noise * torch.randn(n, length)


def accuracy(x, y):
    def score(model):
        return (model(x).argmax(-1) == y).float().mean().item()

    return score


def r2(x, y):
    def score(model):
        out = model(x)
        return 1 - ((out.reshape(y.shape) - y).square().mean() / (y - y.mean()).square().mean()).item()

    return score
