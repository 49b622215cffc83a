"""Synthetic data, with fixed seeds; EXAM_SEED varies the models' seeds only."""
import os

import torch
from torch.utils.data import DataLoader, TensorDataset

SEED = int(os.environ.get("EXAM_SEED", "0"))


def seed(k):
    torch.manual_seed(1000 * SEED + k)


def gen(k):
    return torch.Generator().manual_seed(k)


def loader(*tensors, batch=32, shuffle=True, drop_last=False):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=drop_last)


def chain(n, length, vocab=8, noise=0.05, k=0):
    """Sequences whose next token is table[previous, last], now and then a random one."""
    table = torch.randint(vocab, (vocab, vocab), generator=gen(77))
    g = gen(k)
    ids = torch.randint(vocab, (n, length), generator=g)
    keep = torch.rand(n, length, generator=g) > noise
    for t in range(2, length):
        ids[:, t] = torch.where(keep[:, t], table[ids[:, t - 2], ids[:, t - 1]], ids[:, t])
    return ids, table


def order_text(n, length, vocab=20, k=0, padded=False):
    """Does word 1 come before word 2? Ids 0 are padding, 3... are fillers."""
    g = gen(k)
    ids = torch.randint(3, vocab, (n, length), generator=g)
    lengths = torch.randint(length // 3, length - 1, (n,), generator=g) if padded else torch.full((n,), length)
    y = torch.zeros(n, dtype=torch.long)
    for i in range(n):
        a, b = torch.randperm(int(lengths[i]), generator=g)[:2].tolist()
        ids[i, a], ids[i, b] = 1, 2
        y[i] = int(a < b)
        ids[i, lengths[i]:] = 0
    return (ids, y, lengths) if padded else (ids, y)


def series(n, length, k=0, noise=0.05):
    """Sums of two sines of random phase and period."""
    g = gen(k)
    t = torch.arange(length).float()
    x = torch.zeros(n, length)
    for low, high, size in ((6, 9, 1.0), (14, 20, 0.7)):
        period = low + (high - low) * torch.rand(n, 1, generator=g)
        x += size * torch.sin(6.2832 * (t / period + torch.rand(n, 1, generator=g)))
    return x + noise * torch.randn(n, length, generator=g)


def ratings(users=60, items=50, rank=3, k=5):
    """A low-rank table of centred ratings; (user, item) pairs of two thirds to train on, and the rest."""
    g = gen(k)
    table = torch.randn(users, rank, generator=g) @ torch.randn(rank, items, generator=g) / rank**0.5
    u, i = torch.meshgrid(torch.arange(users), torch.arange(items), indexing="ij")
    pairs = torch.stack([u.reshape(-1), i.reshape(-1)], 1)[torch.randperm(users * items, generator=g)]
    cut = users * items * 2 // 3
    y = table[pairs[:, 0], pairs[:, 1]]
    return pairs[:cut], y[:cut], pairs[cut:], y[cut:]


def community(nodes=120, groups=3, inside=0.2, outside=0.02, weak=0.6, k=9):
    """A stochastic block model: adjacency, weak features, labels."""
    g = gen(k)
    y = torch.arange(nodes) % groups
    p = torch.where(y[:, None] == y[None], inside, outside)
    a = (torch.rand(nodes, nodes, generator=g) < p).float().triu(1)
    x = torch.randn(nodes, 12, generator=g)
    x[:, :groups] += weak * torch.eye(groups)[y]
    return a + a.T, x, y


def views(n, k=0, size=6):
    """Two noisy views of the same latent vectors."""
    w = gen(31)
    w1, w2 = torch.randn(size, 20, generator=w), torch.randn(size, 16, generator=w)
    g = gen(k)
    z = torch.randn(n, size, generator=g)
    return torch.tanh(z @ w1 / 2) + 0.1 * torch.randn(n, 20, generator=g), torch.tanh(z @ w2 / 2) + 0.1 * torch.randn(n, 16, generator=g)


def accuracy(logits, y):
    return (logits.argmax(-1) == y).float().mean().item()


def r2(pred, y):
    return max(0.0, 1 - ((pred - y) ** 2).mean().item() / y.var(unbiased=False).item())
