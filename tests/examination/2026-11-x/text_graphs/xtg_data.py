"""Synthetic texts, chains, graphs, ratings and series, drawn with torch's global generator."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def loader(*tensors, size=32, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=True)


def accuracy(logits, y):
    return (logits.argmax(-1) == y).float().mean().item()


def r2(out, y):
    out, y = out.float().reshape(-1), y.float().reshape(-1)
    return max(0.0, 1 - ((out - y) ** 2).mean().item() / y.var().item())


def texts(n, length, vocab, classes, low, high, plant=3, words=4):
    """Texts of low..high tokens, padded with 0 to length; words of the class stand among neutral ones."""
    y = torch.randint(classes, (n,))
    lengths = torch.randint(low, high + 1, (n,))
    x = torch.randint(1 + classes * words, vocab, (n, length))
    for i in range(n):
        where = torch.randperm(int(lengths[i]))[:plant]
        x[i, where] = 1 + int(y[i]) * words + torch.randint(words, (len(where),))
    x[torch.arange(length)[None] >= lengths[:, None]] = 0
    return x, lengths, y


def chain(n, length, vocab, sure=0.85):
    """Texts in which most tokens have a usual successor; the table is drawn too."""
    follow = torch.randperm(vocab)
    x = torch.randint(vocab, (n, length))
    for t in range(1, length):
        usual = torch.rand(n) < sure
        x[usual, t] = follow[x[usual, t - 1]]
    return x


def chain2(n, length, vocab, sure=0.9):
    """Texts in which a token follows from the two before it."""
    table = torch.randint(vocab, (vocab, vocab))
    x = torch.randint(vocab, (n, length))
    for t in range(2, length):
        usual = torch.rand(n) < sure
        x[usual, t] = table[x[usual, t - 2], x[usual, t - 1]]
    return x


def blocks(nodes, classes, inside, outside, features, noise):
    """A graph of communities: features (noisy), adjacency without loops, communities."""
    y = torch.arange(nodes) % classes
    same = y[:, None] == y[None]
    p = torch.where(same, torch.tensor(inside), torch.tensor(outside))
    upper = torch.triu(torch.rand(nodes, nodes) < p, 1).float()
    centres = torch.randn(classes, features)
    return centres[y] + noise * torch.randn(nodes, features), upper + upper.T, y


def normalised(a):
    a = a + torch.eye(len(a))
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d[None]
