"""Synthetic texts and series, the same for all seeds of the model."""
import math

import torch
from torch.utils.data import DataLoader, TensorDataset


def G(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, batch=32, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle)


def accuracy(x, y):
    return lambda model: (model(x).argmax(-1) == y).float().mean().item()


def r2(x, y):
    def score(model):
        out = model(x)
        return max(0.0, 1 - ((out.flatten() - y.flatten()).pow(2).mean() / y.var()).item())

    return score


def markov(n, length, vocab, seed, noise=0.08):
    """Text in which a token mostly has one successor; tokens from 0."""
    perm = torch.randperm(vocab, generator=G(99))
    g = G(seed)
    s = torch.randint(vocab, (n, length), generator=g)
    for t in range(1, length):
        keep = torch.rand(n, generator=g) > noise
        s[keep, t] = perm[s[keep, t - 1]]
    return s


def reviews(n, length, vocab, seed, shortest=None, longest=None):
    """Tokens from 1, padded with 0 on the right; the label is the sign of the summed polarity of the words."""
    g = G(seed)
    polarity = torch.randn(vocab, generator=G(7)).sign() * (0.5 + torch.rand(vocab, generator=G(8)))
    polarity -= polarity[1:].mean()
    x = torch.randint(1, vocab, (n, length), generator=g)
    if shortest is not None:
        lengths = torch.randint(shortest, (longest or length) + 1, (n,), generator=g)
        x[torch.arange(length)[None] >= lengths[:, None]] = 0
    polarity[0] = 0
    y = (polarity[x].sum(1) > 0).long()
    return x, y


def first_matters(n, length, vocab, seed, classes=4):
    x = torch.randint(vocab, (n, length), generator=G(seed))
    return x, x[:, 0] % classes


def tagged(n, length, vocab, tags, seed):
    """A tag that depends on the word, and for some words on the word before."""
    table = torch.randint(tags, (vocab, 2), generator=G(5))
    x = torch.randint(1, vocab, (n, length), generator=G(seed))
    before = torch.cat([torch.zeros(n, 1, dtype=torch.long), x[:, :-1]], 1)
    return x, table[x, before % 2]


def waves(n, length, seed, noise=0.05):
    """A wave each with its frequency and phase, and the value after its end."""
    g = G(seed)
    f = 0.15 + 0.35 * torch.rand(n, 1, generator=g)
    p = 2 * math.pi * torch.rand(n, 1, generator=g)
    s = torch.sin(f * torch.arange(length + 1.0) + p) + noise * torch.randn(n, length + 1, generator=g)
    return s[:, :-1, None], s[:, -1:]


def tones(n, length, seed, classes=4, noise=0.3):
    """Sounds (n, 1, length) of one of several pitches, at any phase."""
    g = G(seed)
    y = torch.randint(classes, (n,), generator=g)
    f = 0.25 + 0.35 * y[:, None].float() + 0.05 * torch.rand(n, 1, generator=g)
    p = 2 * math.pi * torch.rand(n, 1, generator=g)
    s = torch.sin(f * torch.arange(float(length)) + p) + noise * torch.randn(n, length, generator=g)
    return s[:, None], y
