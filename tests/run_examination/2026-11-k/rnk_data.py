"""Synthetic and bundled data for the rnk cases."""

from __future__ import annotations

import torch
from sklearn import datasets
from torch import nn

torch.set_num_threads(1)


def rnk_digits(images=True, seed=0):
    d = datasets.load_digits()
    x = torch.tensor(d.data, dtype=torch.float32) / 8 - 1
    y = torch.tensor(d.target)
    p = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[p], y[p]
    if images:
        x = x.view(-1, 1, 8, 8)
    return x[:1400], y[:1400], x[1400:], y[1400:]


def rnk_table(name, seed=0, held=0.25):
    d = {"wine": datasets.load_wine, "diabetes": datasets.load_diabetes, "cancer": datasets.load_breast_cancer}[name]()
    x = torch.tensor(d.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    if name == "diabetes":
        y = torch.tensor(d.target, dtype=torch.float32)[:, None]
        y = (y - y.mean()) / y.std()
    else:
        y = torch.tensor(d.target)
    p = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    x, y = x[p], y[p]
    k = int(len(x) * (1 - held))
    return x[:k], y[:k], x[k:], y[k:]


def rnk_clusters(n, d=16, classes=6, noise=1.0, per=3, seed=0):
    """Several clusters of points for each class."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes * per, d, generator=g) * 1.3
    k = torch.randint(0, classes * per, (n,), generator=g)
    x = centres[k] + noise * torch.randn(n, d, generator=g)
    return x / 1.6, k % classes


def rnk_teacher(n, d=12, out=1, hidden=24, noise=0.05, seed=0):
    """Regression on what a fixed random network says."""
    g = torch.Generator().manual_seed(seed)
    w1 = torch.randn(d, hidden, generator=g) / d**0.5 * 2
    w2 = torch.randn(hidden, out, generator=g) / hidden**0.5 * 1.5
    x = torch.randn(n, d, generator=g)
    y = torch.sin(x @ w1) @ w2
    return x, y + noise * torch.randn(y.shape, generator=g)


def rnk_waves(n, length=24, classes=4, noise=0.4, seed=0):
    """Waves whose frequency is the class."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    t = torch.arange(length) / length
    f = 1.0 + 1.2 * y[:, None]
    x = torch.sin(6.283 * (f * t + torch.rand(n, 1, generator=g))) + noise * torch.randn(n, length, generator=g)
    return x[..., None], y


def rnk_markov(n, length=20, vocab=30, seed=0, skew=1.0, peak=2.5):
    """Token sequences of a Markov chain, with rare words where skew is high."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(vocab, vocab, generator=g) * peak - skew * torch.arange(vocab).add(1).log()
    p = logits.softmax(-1)
    s = [torch.randint(0, vocab, (n,), generator=g)]
    for _ in range(length):
        s.append(torch.multinomial(p[s[-1]], 1, generator=g)[:, 0])
    return torch.stack(s, 1)


class rnk_Flat(nn.Module):
    """Cross-entropy over all places of a sequence."""

    def __init__(self, ignore=-100):
        super().__init__()
        self.ce = nn.CrossEntropyLoss(ignore_index=ignore)

    def forward(self, out, target):
        return self.ce(out.reshape(-1, out.shape[-1]), target.reshape(-1))


def rnk_cycle(loader):
    while True:
        yield from loader


@torch.no_grad()
def rnk_evaluate(model, criterion, x, y):
    was = model.training
    model.eval()
    v = float(criterion(model(x), y))
    model.train(was)
    return v
