import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def gen(s):
    return torch.Generator().manual_seed(s)


def table(n=1500, d=10, k=3, seed=0):
    g = gen(seed)
    m = n + 500
    x = torch.randn(m, d, generator=g)
    w1 = torch.randn(d, 6, generator=g) * 0.5
    w2 = torch.randn(6, k, generator=g)
    s = torch.tanh(x @ w1) @ w2
    y = (s - s.mean(0)).argmax(1)
    return x[:n], y[:n], x[n:], y[n:]


def curve(n=1500, d=8, seed=0, noise=0.1):
    g = gen(seed)
    m = n + 500
    x = torch.randn(m, d, generator=g)
    y = torch.sin(1.5 * x[:, 0]) + 0.6 * x[:, 1] * x[:, 2] + 0.6 * x[:, 3] + 0.4 * x[:, 4].abs()
    y = (y - y.mean()) / y.std() + noise * torch.randn(m, generator=g)
    return x[:n], y[:n, None], x[n:], y[n:, None]


def images(n=1200, k=4, seed=0, noise=0.5, size=10):
    g = gen(seed)
    m = n + 400
    t = torch.randn(k, 7, 7, generator=g)
    y = torch.randint(k, (m,), generator=g)
    x = noise * torch.randn(m, 1, size, size, generator=g)
    dx = torch.randint(size - 6, (m, 2), generator=g)
    for i in range(m):
        a, b = dx[i].tolist()
        x[i, 0, a : a + 7, b : b + 7] += t[y[i]]
    return x[:n], y[:n], x[n:], y[n:]


def boxes(n=600, seed=0, noise=0.6, size=12):
    g = gen(seed)
    m = n + 150
    x = noise * torch.randn(m, 1, size, size, generator=g)
    y = torch.zeros(m, size, size, dtype=torch.long)
    for i in range(m):
        a, b, h, w = torch.randint(6, (4,), generator=g).tolist()
        y[i, a : a + 3 + h, b : b + 3 + w] = 1
    x[:, 0] += 1.4 * y
    return x[:n], y[:n], x[n:], y[n:]


def factors(n=1500, d=24, q=4, seed=0, noise=0.15):
    g = gen(seed)
    m = n + 400
    z = torch.randn(m, q, generator=g)
    x = torch.tanh(z @ torch.randn(q, d, generator=g) * 0.7) + noise * torch.randn(m, d, generator=g)
    return x[:n], x[n:]


def loader(*t, bs=64, shuffle=True, seed=1, **kw):
    return DataLoader(TensorDataset(*t), batch_size=bs, shuffle=shuffle, generator=gen(seed), **kw)


def accuracy(x, y):
    return lambda m: (m(x).argmax(1) == y).float().mean().item()


def r2(pred, y):
    return (1 - ((pred - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum()).item()


def fit(x, y):
    return lambda m: max(-1.0, r2(m(x), y))


def dice(x, y):
    def score(m):
        p = m(x).argmax(1)
        return (2 * (p * y).sum() / ((p + y).sum() + 1e-9)).item()

    return score


def mlp(*w, act=nn.ReLU):
    layers = []
    for i, (a, b) in enumerate(zip(w, w[1:])):
        layers.append(nn.Linear(a, b))
        if i < len(w) - 2:
            layers.append(act())
    return nn.Sequential(*layers)
