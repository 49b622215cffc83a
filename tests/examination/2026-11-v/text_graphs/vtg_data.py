"""Synthetic texts, graphs and series."""

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


def vtg_loader(*tensors, batch=64, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=True)


class DictRows(Dataset):
    """Rows of a dict of tensors with a target."""

    def __init__(self, fields, target):
        self.fields, self.target = fields, target

    def __len__(self):
        return len(self.target)

    def __getitem__(self, i):
        return {k: v[i] for k, v in self.fields.items()}, self.target[i]


def accuracy(logits, y):
    return (logits.argmax(-1) == y).float().mean().item()


def r2(p, y):
    return max(-1.0, (1 - (p - y).pow(2).sum() / (y - y.mean(0)).pow(2).sum()).item())


def cycle_map(vocab, first=0):
    """A permutation of first .. vocab - 1 with one cycle."""
    order = torch.randperm(vocab - first) + first
    nxt = torch.arange(vocab)
    nxt[order] = order.roll(-1)
    return nxt


def chains(n, length, nxt, keep=0.95, first=0):
    """Token sequences in which a token mostly determines the next one."""
    vocab = len(nxt)
    out = torch.empty(n, length, dtype=torch.long)
    out[:, 0] = torch.randint(first, vocab, (n,))
    for t in range(1, length):
        other = torch.randint(first, vocab, (n,))
        out[:, t] = torch.where(torch.rand(n) < keep, nxt[out[:, t - 1]], other)
    return out


def strides(n, length, vocab):
    """Sequences with x[t+1] = x[t] + s, for a stride s of their own."""
    s = torch.tensor([1, 2, 3])[torch.randint(3, (n, 1))]
    return (torch.randint(vocab, (n, 1)) + s * torch.arange(length)) % vocab


def reviews(n, length, valence, least=None):
    """Padded word ids (0 is padding), their lengths and the sign of the summed valence."""
    vocab = len(valence)
    ids = torch.randint(1, vocab, (n, length))
    lengths = torch.randint(least or length, length + 1, (n,))
    ids[torch.arange(length) >= lengths[:, None]] = 0
    v = valence.clone()
    v[0] = 0
    return ids, lengths, (v[ids].sum(1) > 0).long()


def topics(n, length, classes, per_topic=12, noise=0.3):
    """Documents of words of their topic, and of noise words."""
    y = torch.randint(classes, (n,))
    vocab = 2 + classes * per_topic
    own = 2 + y[:, None] * per_topic + torch.randint(per_topic, (n, length))
    ids = torch.where(torch.rand(n, length) < noise, torch.randint(2, vocab, (n, length)), own)
    return ids, y, vocab


def slots(n, k, keys, values):
    """Key-value slots, a key that is asked for, and its value."""
    ks = torch.rand(n, keys).argsort(1)[:, :k]
    vs = torch.randint(values, (n, k))
    i = torch.randint(k, (n,))
    rows = torch.arange(n)
    return ks, vs, ks[rows, i], vs[rows, i]


def waves(n, length):
    """Two waves with phases of their own and a little noise."""
    t = torch.arange(length).float()
    f = 0.25 + 0.35 * torch.rand(n, 2, 1)
    a = 0.5 + torch.rand(n, 2, 1)
    p = 6.283 * torch.rand(n, 2, 1)
    return (a * torch.sin(f * t + p)).sum(1) + 0.03 * torch.randn(n, length)


def blocks(nodes, groups, p_in=0.12, p_out=0.01):
    """A graph of communities: its groups and adjacency."""
    y = torch.arange(nodes) % groups
    p = torch.where(y[:, None] == y[None], p_in, p_out)
    a = (torch.rand(nodes, nodes) < p).float().triu(1)
    return y, a + a.T


def normalised(a):
    a = a + torch.eye(len(a))
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d


def views(n, latent, left, right, noise=0.1):
    """Two views of a latent vector."""
    z = torch.randn(n, latent)
    a = torch.tanh(z @ left) + noise * torch.randn(n, left.shape[1])
    b = torch.tanh(z @ right) + noise * torch.randn(n, right.shape[1])
    return a, b
