"""Data and scores for the sequence cases."""
import math

import torch
from torch.utils.data import DataLoader, TensorDataset


def rng(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, size=32, **kw):
    kw.setdefault("shuffle", True)
    return DataLoader(TensorDataset(*tensors), batch_size=size, **kw)


def accuracy(x, y):
    return lambda model: (model(x).argmax(-1) == y).float().mean().item()


def r2(x, y):
    def score(model):
        out = model(x).reshape(y.shape)
        return max(-1.0, 1 - ((out - y) ** 2).mean().item() / y.var().item())

    return score


def chain(n, length, vocab, seed, noise=0.1):
    """Sequences in which a fixed successor follows with probability 1 - noise."""
    follow = torch.randperm(vocab, generator=rng(99))
    follow = torch.empty_like(follow).scatter_(0, follow, follow.roll(1))
    g = rng(seed)
    x = torch.randint(vocab, (n, length), generator=g)
    for t in range(1, length):
        keep = torch.rand(n, generator=g) < noise
        x[:, t] = torch.where(keep, x[:, t], follow[x[:, t - 1]])
    return x


def pairs(n, length, vocab, seed, noise=0.05):
    """Sequences in which the last two tokens fix the next."""
    table = torch.randint(vocab, (vocab, vocab), generator=rng(98))
    g = rng(seed)
    x = torch.randint(vocab, (n, length), generator=g)
    for t in range(2, length):
        keep = torch.rand(n, generator=g) < noise
        x[:, t] = torch.where(keep, x[:, t], table[x[:, t - 2], x[:, t - 1]])
    return x


def topics(n, length, seed, vocab=60, classes=4, short=None, strength=0.4):
    """Texts whose class prefers some words; padded with 0 on the right if `short` is the least length."""
    g = rng(seed)
    y = torch.randint(classes, (n,), generator=g)
    x = torch.randint(1, vocab, (n, length), generator=g)
    own = 1 + y[:, None] * 8 + torch.randint(8, (n, length), generator=g)
    x = torch.where(torch.rand(n, length, generator=g) < strength, own, x)
    if short is not None:
        lengths = torch.randint(short, length // 2 + 1, (n,), generator=g)
        x = x.masked_fill(torch.arange(length) >= lengths[:, None], 0)
    return x, y


def before(n, length, seed, vocab=12):
    """Whether token 1 comes before token 2; both occur once."""
    g = rng(seed)
    x = torch.randint(3, vocab, (n, length), generator=g)
    order = torch.rand(n, length, generator=g).argsort(1)
    rows = torch.arange(n)
    x[rows, order[:, 0]] = 1
    x[rows, order[:, 1]] = 2
    return x, (order[:, 0] < order[:, 1]).long()


def tags(n, length, seed, vocab=12, kinds=4, short=None, span=None):
    """Tags that hang on a token and the one before it; with `short`, right-padded with token 0 and tag -100."""
    g = rng(seed)
    x = torch.randint(1, vocab, (n, length), generator=g)
    previous = torch.cat([torch.zeros(n, 1, dtype=torch.long), x[:, :-1]], 1)
    y = (x % 2) * 2 + (previous % 2) if kinds == 4 else (x + previous) % kinds
    if short is not None:
        lengths = torch.randint(short, (span or length) + 1, (n,), generator=g)
        pad = torch.arange(length) >= lengths[:, None]
        x, y = x.masked_fill(pad, 0), y.masked_fill(pad, -100)
    return x, y


def tag_accuracy(x, y):
    def score(model):
        right = model(x).argmax(-1) == y
        return right[y >= 0].float().mean().item()

    return score


def waves(n, length, seed, noise=0.1):
    """Windows of sums of two sines, and the value that follows."""
    g = rng(seed)
    t = torch.arange(length + 1.0)
    phase = 2 * math.pi * torch.rand(n, 2, 1, generator=g)
    size = 0.5 + torch.rand(n, 2, 1, generator=g)
    s = (size * torch.sin(2 * math.pi * t / torch.tensor([[[12.0], [7.0]]]) + phase)).sum(1)
    s = s + noise * torch.randn(n, length + 1, generator=g)
    return s[:, :-1].unsqueeze(-1), s[:, -1]


def tones(n, length, seed, noise=0.5, classes=4):
    """Noisy tones, of class by frequency: (n, 1, length)."""
    g = rng(seed)
    y = torch.randint(classes, (n,), generator=g)
    f = 0.05 + 0.06 * y[:, None]
    x = torch.sin(2 * math.pi * (f * torch.arange(length) + torch.rand(n, 1, generator=g)))
    return (x + noise * torch.randn(n, length, generator=g)).unsqueeze(1), y


def first(n, length, seed, classes=4):
    """A token at the start, then noise: (n, length, classes + 1)."""
    g = rng(seed)
    y = torch.randint(classes, (n,), generator=g)
    x = torch.zeros(n, length, classes + 1)
    x[torch.arange(n), 0, y] = 2.0
    x[:, :, -1] = torch.randn(n, length, generator=g) * 0.5
    return x, y


def events(n, length, seed, classes=4):
    """Events (key, one-hot value); the class is the value of the one with the greatest key."""
    g = rng(seed)
    key = torch.rand(n, length, 1, generator=g) * 4 - 2
    value = torch.randint(classes, (n, length), generator=g)
    x = torch.cat([key, torch.nn.functional.one_hot(value, classes).float()], -1)
    return x, value[torch.arange(n), key[..., 0].argmax(1)]


def speech(n, frames, seed, words=3, labels=4):
    """Frames (n, frames, 6) of `words` phones of varying length, never the same twice in a row; labels from 1."""
    g = rng(seed)
    prototypes = 2 * torch.randn(labels + 1, 6, generator=rng(97))
    y = torch.randint(1, labels + 1, (n, words), generator=g)
    for k in range(1, words):
        same = y[:, k] == y[:, k - 1]
        y[:, k] = torch.where(same, y[:, k] % labels + 1, y[:, k])
    span = frames // words
    x = torch.zeros(n, frames, dtype=torch.long)
    for k in range(words):
        long = torch.randint(2, span, (n, 1), generator=g)
        at = torch.arange(frames)
        x = torch.where((at >= k * span) & (at < k * span + long), y[:, k : k + 1], x)
    return prototypes[x] + 0.4 * torch.randn(n, frames, 6, generator=g), y


def decoded(out):
    """Greedy CTC decoding of (batch, frames, labels)."""
    found = []
    for row in out.argmax(-1).tolist():
        found.append([a for a, b in zip(row, [0, *row]) if a != b and a != 0])
    return found
