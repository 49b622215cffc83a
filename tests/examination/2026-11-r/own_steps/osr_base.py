"""Data and small helpers."""
import torch
from sklearn import datasets
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def mlp(*sizes, act=nn.ReLU):
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(sizes) - 2:
            layers.append(act())
    return nn.Sequential(*layers)


def loader(*tensors, n=64, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=n, shuffle=shuffle, drop_last=True)


def r2(pred, y):
    return (1 - ((pred - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum()).item()


def accuracy(out, y):
    return (out.argmax(-1) == y).float().mean().item()


def digits():
    x, y = datasets.load_digits(return_X_y=True)
    p = torch.randperm(len(x), generator=gen(5))
    x, y = torch.tensor(x, dtype=torch.float32)[p] / 16, torch.tensor(y)[p]
    return x[:1400], y[:1400], x[1400:], y[1400:]


def bandit(seed, n=2048, d=8, k=4):
    g = gen(seed)
    x = torch.randn(n + 500, d, generator=g)
    v = torch.tanh(x @ torch.randn(d, 16, generator=g) / d**0.5) @ torch.randn(16, k, generator=g)
    return x[:n], v[:n], x[n:], v[n:]


def room(seed, n=2000):
    """Random transitions of a walker in the unit square, who wants to be at (0.7, 0.3)."""
    g = gen(seed)
    moves = torch.tensor([[0.1, 0], [-0.1, 0], [0, 0.1], [0, -0.1]])
    goal = torch.tensor([0.7, 0.3])
    s = torch.rand(n, 2, generator=g)
    a = torch.randint(4, (n,), generator=g)
    t = (s + moves[a]).clamp(0, 1)
    r = -(t - goal).norm(dim=1)

    def score(q):
        z = torch.rand(400, 2, generator=gen(seed + 1))
        z = z[(z - goal).norm(dim=1) > 0.15]
        best = torch.stack([((z + m).clamp(0, 1) - goal).norm(dim=1) for m in moves], 1)
        chosen = best.gather(1, q(z).argmax(1, keepdim=True))[:, 0]
        now = (z - goal).norm(dim=1)
        return (((now - chosen) / (now - best.min(1).values)).mean()).item()

    return s, a, r, t, score


def ema(target, source, rate):
    with torch.no_grad():
        for p, q in zip(target.parameters(), source.parameters()):
            p.lerp_(q, rate)
