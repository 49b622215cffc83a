"""Synthetic texts and series."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def gen(s):
    return torch.Generator().manual_seed(s)


def chain(n, length, vocab, seed, noise=0.1):
    """A noisy cycle through the vocabulary."""
    order = torch.randperm(vocab, generator=gen(99))
    follow = torch.empty(vocab, dtype=torch.long)
    follow[order] = order.roll(-1)
    g = gen(seed)
    rows = [torch.randint(vocab, (n,), generator=g)]
    for _ in range(length - 1):
        other = torch.randint(vocab, (n,), generator=g)
        keep = torch.rand(n, generator=g) > noise
        rows.append(torch.where(keep, follow[rows[-1]], other))
    return torch.stack(rows, 1)


def topics(n, length, seed, classes=4, vocab=61, rate=0.35, least=None, left=False):
    """Texts of a class each; pad is 0; returns tokens, lengths, classes."""
    g = gen(seed)
    y = torch.randint(classes, (n,), generator=g)
    x = torch.randint(1, vocab, (n, length), generator=g)
    per = (vocab - 1) // classes
    word = 1 + y[:, None] * per + torch.randint(per, (n, length), generator=g)
    x = torch.where(torch.rand(n, length, generator=g) < rate, word, x)
    lengths = torch.full((n,), length)
    if least:
        lengths = torch.randint(least, length + 1, (n,), generator=g)
        at = torch.arange(length)
        pad = at >= lengths[:, None] if not left else at < length - lengths[:, None]
        x = x.masked_fill(pad, 0)
    return x, lengths, y


def tagged(n, length, seed, vocab=20, least=None, tags=3, fill=0):
    g = gen(seed)
    x = torch.randint(1, vocab, (n, length), generator=g)
    before = torch.cat([torch.zeros(n, 1, dtype=torch.long), x[:, :-1]], 1)
    y = (x % tags + (before > vocab // 2).long()) % tags
    if least:
        lengths = torch.randint(least, length + 1, (n,), generator=g)
        pad = torch.arange(length) >= lengths[:, None]
        x, y = x.masked_fill(pad, 0), y.masked_fill(pad, fill)
    return x, y


def waves(n, length, seed, noise=0.05):
    g = gen(seed)
    t = torch.arange(length).float()
    f = 0.15 + 0.5 * torch.rand(n, 1, generator=g)
    p = 6.28 * torch.rand(n, 1, generator=g)
    a = 0.5 + torch.rand(n, 1, generator=g)
    return a * torch.sin(f * t + p) + noise * torch.randn(n, length, generator=g)


def order_task(n, length, seed, vocab=12):
    """Does 1 come before 2? Each text has one of each."""
    g = gen(seed)
    x = torch.randint(3, vocab, (n, length), generator=g)
    at = torch.rand(n, length, generator=g).argsort(1)[:, :2]
    x.scatter_(1, at, torch.tensor([1, 2]).expand(n, 2))
    return x, (at[:, 0] < at[:, 1]).long()


def loader(*tensors, size=32, shuffle=True, seed=5, **kw):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, generator=gen(seed), **kw)


def accuracy(*data):
    *x, y = data
    return lambda m: (m(*x).argmax(-1) == y).float().mean().item()


def r2(out, y):
    return (1 - ((out - y) ** 2).mean() / ((y - y.mean()) ** 2).mean()).clamp(min=-1).item()


def last_accuracy(tokens, k):
    """Next-token accuracy after a prefix of k tokens."""
    return lambda m: (m(tokens[:, :k])[:, -1].argmax(-1) == tokens[:, k]).float().mean().item()


def flat_ce(logits, y, **kw):
    return nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1), **kw)
