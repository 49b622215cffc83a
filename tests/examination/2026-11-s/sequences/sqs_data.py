"""Synthetic sequences."""
import math
import torch
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, bs=32, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=bs, shuffle=shuffle)


def waves(n, T, classes, seed, noise=0.3):
    """Vibration streams: the class is the frequency, the phase is random."""
    g = gen(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.arange(T).float()
    f = 0.04 + 0.05 * y.float()
    x = torch.sin(2 * math.pi * (f[:, None] * t + torch.rand(n, 1, generator=g))) * 1.4
    x = x + noise * torch.randn(n, T, generator=g)
    return x[..., None], y


def chain(n, T, V, seed, p=0.9, low=0):
    """Text from a Markov chain whose successor table is fixed."""
    g = gen(seed)
    table = torch.randperm(V - low, generator=gen(77)) + low
    s = torch.randint(low, V, (n, 1), generator=g)
    out = [s]
    for _ in range(T - 1):
        nxt = table[out[-1] - low]
        rnd = torch.randint(low, V, (n, 1), generator=g)
        out.append(torch.where(torch.rand(n, 1, generator=g) < p, nxt, rnd))
    return torch.cat(out, 1)


def chats(n, T, V, seed, lo=4, hi=None):
    """Messages of unequal lengths, padded with 0; happy words 1..V/2-1, angry ones above; the majority decides."""
    g = gen(seed)
    hi = hi or T
    length = torch.randint(lo, hi + 1, (n,), generator=g)
    y = torch.randint(0, 2, (n,), generator=g)
    half = V // 2
    p = torch.where(y == 1, 0.75, 0.25)
    good = torch.rand(n, T, generator=g) < p[:, None]
    a = torch.randint(1, half, (n, T), generator=g)
    b = torch.randint(half, V, (n, T), generator=g)
    x = torch.where(good, a, b)
    x[torch.arange(T)[None] >= length[:, None]] = 0
    y = ((x > 0) & (x < half)).sum(1) > (x >= half).sum(1)
    return x, length, y.long()


def dna(n, T, seed):
    """Reads of 4 bases; class 1 holds the motif ACGTGA."""
    g = gen(seed)
    x = torch.randint(0, 4, (n, T), generator=g)
    y = torch.randint(0, 2, (n,), generator=g)
    motif = torch.tensor([0, 1, 2, 3, 2, 0])
    at = torch.randint(0, T - 6, (n,), generator=g)
    for i in range(n):
        if y[i]:
            x[i, at[i]:at[i] + 6] = motif
    return x, y


def ecg(n, T, seed, noise=0.1):
    """Beats: normal, or with a wide late wave, or without the first wave."""
    g = gen(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    t = torch.linspace(0, 1, T)[None]
    j = 0.04 * torch.randn(n, 1, generator=g)
    bump = lambda c, w, h: h * torch.exp(-((t - c - j) / w) ** 2)
    x = bump(0.45, 0.03, 2.5) + (y != 2).float()[:, None] * bump(0.25, 0.05, 0.7)
    x = x + torch.where((y == 1)[:, None], bump(0.75, 0.14, 1.0), bump(0.7, 0.06, 0.6))
    return (x + noise * torch.randn(n, T, generator=g))[..., None], y


def series(n, T, seed, noise=0.1):
    """Windows of a damped seasonal load and the value two steps after the window (x: (n, T, 1), y: (n, 1))."""
    g = gen(seed)
    t = torch.arange(T + 2).float()[None]
    f = 0.05 + 0.07 * torch.rand(n, 1, generator=g)
    s = torch.sin(2 * math.pi * (f * t + torch.rand(n, 1, generator=g))) * (0.6 + torch.rand(n, 1, generator=g))
    x = s + noise * torch.randn(n, T + 2, generator=g)
    return x[:, :T, None], s[:, -1:]


def accuracy(x, y):
    return lambda m: (m(x).argmax(-1) == y).float().mean().item()


def r2(x, y):
    def score(m):
        p = m(x).float()
        p = p.reshape(y.shape)
        return max(0.0, (1 - (p - y).square().mean() / y.var(unbiased=False)).item())
    return score


def next_token(ids, pick=lambda out: out):
    """Accuracy of the next token after prefixes."""
    def score(m):
        hits = [(pick(m(ids[:, :k]))[:, -1].argmax(-1) == ids[:, k]).float().mean() for k in (3, 5, 8)]
        return (sum(hits) / len(hits)).item()
    return score


def with_next(ids):
    """Targets: the next token, and nothing at the last place."""
    return torch.cat([ids[:, 1:], torch.full_like(ids[:, :1], -100)], 1)
