import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from torch.utils.data import DataLoader, TensorDataset


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def split(x, y, n):
    order = torch.randperm(len(x), generator=gen(7))
    x, y = x[order], y[order]
    return x[:n], y[:n], x[n:], y[n:]


def digits(scale=16.0):
    d = load_digits()
    return split(torch.tensor(d.data, dtype=torch.float32) / scale, torch.tensor(d.target), 1400)


def table(which, standard=True):
    d = {"wine": load_wine, "iris": load_iris, "cancer": load_breast_cancer}[which]()
    x = torch.tensor(d.data, dtype=torch.float32)
    if standard:
        x = (x - x.mean(0)) / x.std(0)
    return split(x, torch.tensor(d.target), int(0.75 * len(x)))


def loader(*tensors, bs=64, **kw):
    kw.setdefault("shuffle", True)
    kw.setdefault("drop_last", True)
    return DataLoader(TensorDataset(*tensors), batch_size=bs, **kw)


def r2(pred, y):
    return float(1 - ((pred - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum())


def acc(logits, y):
    return float((logits.argmax(-1) == y).float().mean())
