"""Data and scores for the cases of this part."""
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


def g(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, batch=32, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle)


def accuracy(x, y):
    def score(model):
        out = model(**x) if isinstance(x, dict) else model(x)
        return (out.argmax(-1) == y).float().mean().item()
    return score


def r2(x, y):
    def score(model):
        out = model(**x) if isinstance(x, dict) else model(x)
        out = out.reshape(y.shape)
        return 1 - ((out - y).square().mean() / (y - y.mean()).square().mean()).item()
    return score


def topics(n, length, vocab, classes, seed, sharp=1.2):
    table = (torch.randn(classes, vocab, generator=g(77)) * sharp).softmax(-1)
    y = torch.randint(classes, (n,), generator=g(seed))
    x = torch.multinomial(table[y], length, replacement=True, generator=g(seed + 1))
    return x, y


def markov(n, length, vocab, seed, certain=0.85):
    nxt = torch.randperm(vocab, generator=g(5))
    r = g(seed)
    x = torch.empty(n, length, dtype=torch.long)
    x[:, 0] = torch.randint(vocab, (n,), generator=r)
    for t in range(1, length):
        keep = torch.rand(n, generator=r) < certain
        x[:, t] = torch.where(keep, nxt[x[:, t - 1]], torch.randint(vocab, (n,), generator=r))
    return x


def markov2(n, length, vocab, seed, certain=0.9):
    """The next token depends on the token two back."""
    nxt = torch.randperm(vocab, generator=g(5))
    r = g(seed)
    x = torch.randint(vocab, (n, length), generator=r)
    for t in range(2, length):
        keep = torch.rand(n, generator=r) < certain
        x[:, t] = torch.where(keep, nxt[x[:, t - 2]], x[:, t])
    return x


def who_is_first(n, length, vocab, seed):
    r = g(seed)
    x = torch.randint(3, vocab, (n, length), generator=r)
    places = torch.rand(n, length, generator=r).argsort(1)[:, :2]
    x.scatter_(1, places, torch.tensor([1, 2]).expand(n, 2))
    return x, (places[:, 0] < places[:, 1]).long()


def first_token(n, length, classes, seed):
    r = g(seed)
    x = torch.randint(classes, 2 * classes, (n, length), generator=r)
    y = torch.randint(classes, (n,), generator=r)
    x[:, 0] = y
    return x, y


def waves(n, length, classes, seed, noise=0.3):
    r = g(seed)
    y = torch.randint(classes, (n,), generator=r)
    t = torch.arange(length) / length
    f = 1.0 + 1.5 * y.float()
    x = torch.sin(6.2832 * (f[:, None] * t + torch.rand(n, 1, generator=r)))
    return (x + noise * torch.randn(n, length, generator=r))[..., None], y


def ratings(n, users, items, seed, rank=3, noise=0.1):
    r = g(11)
    u, v = torch.randn(users, rank, generator=r), torch.randn(items, rank, generator=r)
    r = g(seed)
    i, j = torch.randint(users, (n,), generator=r), torch.randint(items, (n,), generator=r)
    y = (u[i] * v[j]).sum(1) / rank**0.5 + noise * torch.randn(n, generator=r)
    return torch.stack([i, j], 1), y


def community(n, classes, features, seed, inside=0.12, outside=0.015, signal=0.5):
    r = g(seed)
    y = torch.randint(classes, (n,), generator=r)
    p = torch.where(y[:, None] == y, inside, outside)
    a = (torch.rand(n, n, generator=r) < p).float().triu(1)
    a = a + a.T
    centre = torch.randn(classes, features, generator=g(3))
    x = signal * centre[y] + torch.randn(n, features, generator=r)
    return x, a, y


def normalised(a):
    a = a + torch.eye(len(a))
    d = a.sum(1).rsqrt()
    return d[:, None] * a * d


def digit_rows():
    """1797 digits as 8 rows of 8."""
    d = load_digits()
    order = torch.randperm(len(d.target), generator=g(1))
    x = torch.tensor(d.images, dtype=torch.float32)[order] / 16
    y = torch.tensor(d.target)[order]
    return (x[:1400], y[:1400]), (x[1400:], y[1400:])


def series(n, length, seed, ahead=1):
    """Windows of a noisy sum of two sines, and what follows."""
    r = g(seed)
    start = torch.rand(n, 1, generator=r) * 200
    t = start + torch.arange(length + ahead)
    s = torch.sin(0.5 * t) + 0.6 * torch.sin(0.23 * t + 1) + 0.05 * torch.randn(n, length + ahead, generator=r)
    return s[:, :length, None], s[:, length:]
