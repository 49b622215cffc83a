"""Synthetic texts and series shared by the cases."""
import math
import torch
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, bs=32, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=bs, shuffle=shuffle)


def chain(n, length, vocab, seed, noise=0.08):
    """Texts in which each token is mostly followed by the one that a fixed permutation names."""
    g = gen(seed)
    perm = torch.randperm(vocab, generator=gen(77))
    out = [torch.randint(0, vocab, (n,), generator=g)]
    for _ in range(length - 1):
        odd = torch.rand(n, generator=g) < noise
        out.append(torch.where(odd, torch.randint(0, vocab, (n,), generator=g), perm[out[-1]]))
    return torch.stack(out, 1)


def keyword(n, length, vocab, classes, seed, shortest=None):
    """One of the words 1..classes somewhere in a text of other words; padded with 0 at the end."""
    g = gen(seed)
    x = torch.randint(classes + 1, vocab, (n, length), generator=g)
    y = torch.randint(0, classes, (n,), generator=g)
    lengths = torch.randint(shortest or length, length + 1, (n,), generator=g)
    place = (torch.rand(n, generator=g) * lengths).long()
    x[torch.arange(n), place] = y + 1
    x[torch.arange(length)[None] >= lengths[:, None]] = 0
    return x, y, lengths


def before(n, length, vocab, seed):
    """Is word 1 before word 2?"""
    g = gen(seed)
    x = torch.randint(3, vocab, (n, length), generator=g)
    two = torch.rand(n, length, generator=g).topk(2, 1).indices
    x[torch.arange(n), two[:, 0]] = 1
    x[torch.arange(n), two[:, 1]] = 2
    return x, (two[:, 0] < two[:, 1]).long()


def waves(n, length, seed, classes=4, noise=0.3):
    g = gen(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    f = 0.05 + 0.08 * y + 0.01 * torch.rand(n, generator=g)
    phase = 2 * math.pi * torch.rand(n, 1, generator=g)
    x = torch.sin(2 * math.pi * f[:, None] * torch.arange(length) + phase)
    return x + noise * torch.randn(n, length, generator=g), y


def acc(logits, y):
    return (logits.argmax(-1) == y).float().mean().item()


def r2(pred, y):
    return 1 - ((pred - y).square().mean() / y.var()).item()
