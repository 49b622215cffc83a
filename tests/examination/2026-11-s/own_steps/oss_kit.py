"""Data shared by the cases."""
import torch
from sklearn.datasets import load_digits, make_moons
from torch.utils.data import DataLoader, TensorDataset


def loader(*tensors, batch=64, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=True)


def digits(scale=True):
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    p = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    x, y = x[p], y[p]
    if scale:
        x = (x / 16 - 0.3) / 0.37
    return x[:1400], y[:1400], x[1400:], y[1400:]


def r2(pred, y):
    pred, y = pred.float(), y.float()
    return float(1 - ((pred - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum())


def accuracy(logits, y):
    return float((logits.argmax(-1) == y).float().mean())


def moons(n, seed):
    x, y = make_moons(n, noise=0.08, random_state=seed)
    x = torch.tensor(x, dtype=torch.float32)
    x = (x - torch.tensor([0.5, 0.25])) / torch.tensor([0.87, 0.5])
    return x, torch.tensor(y)


def gen(seed):
    return torch.Generator().manual_seed(seed)
