"""Data for the loops."""

from functools import lru_cache

import torch
from sklearn.datasets import load_breast_cancer, load_digits


@lru_cache(maxsize=None)
def digits():
    raw = load_digits()
    x = torch.tensor(raw.data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.tensor(raw.target, dtype=torch.long)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(17))
    x, y = (x[order] - 0.305) / 0.376, y[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


@lru_cache(maxsize=None)
def cancer():
    raw = load_breast_cancer()
    x = torch.tensor(raw.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(raw.target, dtype=torch.float32)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    return x[order][:450], y[order][:450], x[order][450:], y[order][450:]


def shifted(x, generator):
    """Images moved by up to one pixel, with a little noise."""
    dy, dx = torch.randint(-1, 2, (2,), generator=generator).tolist()
    return torch.roll(x, (dy, dx), (-2, -1)) + 0.15 * torch.randn(x.shape, generator=generator)


def chain(length, vocabulary, seed, sharpness=2.5):
    """A stream of tokens in which two predecessors tell much about the next."""
    g = torch.Generator().manual_seed(seed)
    table = torch.softmax(sharpness * torch.randn(vocabulary, vocabulary, vocabulary, generator=g), -1).cumsum(-1)
    rows = table.tolist()
    u = torch.rand(length, generator=g).tolist()
    out = [0, 1]
    for value in u:
        row = rows[out[-2]][out[-1]]
        nxt = 0
        while nxt < vocabulary - 1 and row[nxt] < value:
            nxt += 1
        out.append(nxt)
    return torch.tensor(out[2:])


def windows(stream, batch, length, generator):
    start = torch.randint(0, len(stream) - length - 1, (batch, 1), generator=generator)
    index = start + torch.arange(length + 1)
    piece = stream[index]
    return piece[:, :-1], piece[:, 1:]
