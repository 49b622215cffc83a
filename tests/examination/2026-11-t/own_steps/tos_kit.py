import torch
from sklearn import datasets
from torch.utils.data import DataLoader, TensorDataset


def rn(*shape, s=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(s))


def ru(*shape, s=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(s))


def dl(*tensors, bs=64, shuffle=True, **kw):
    return DataLoader(TensorDataset(*tensors), batch_size=bs, shuffle=shuffle, **kw)


def r2(p, y):
    return max(0.0, float(1 - ((p - y) ** 2).mean() / ((y - y.mean(0)) ** 2).mean()))


def acc(logits, y):
    return float((logits.argmax(-1) == y).float().mean())


def table(name, scale=True, held=4):
    """x, y, held-out x, held-out y of a set of sklearn."""
    x, y = getattr(datasets, "load_" + name)(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    if name == "digits":
        x = x / 16 if scale else x
    elif scale:
        x = (x - x.mean(0)) / x.std(0)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(7))
    x, y = x[order], y[order]
    n = len(x) // held
    return x[n:], y[n:], x[:n], y[:n]
