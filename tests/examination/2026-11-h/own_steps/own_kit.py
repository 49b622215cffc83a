import torch
from torch.utils.data import DataLoader, TensorDataset


def rng(seed):
    return torch.Generator().manual_seed(seed)


def loader(*tensors, size=64, shuffle=True, drop_last=True):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=drop_last)


def r2(pred, target):
    pred, target = pred.float(), target.float()
    left = ((pred - target) ** 2).sum()
    return max(0.0, (1 - left / ((target - target.mean(0)) ** 2).sum()).item())


def accuracy(logits, y):
    return (logits.argmax(-1) == y).float().mean().item()


def blobs(seed, n, classes=4, dim=16, spread=1.0, away=2.0):
    g = rng(seed)
    centres = torch.randn(classes, dim, generator=rng(1000 + classes + dim)) * away / dim**0.5 * 2
    y = torch.randint(classes, (n,), generator=g)
    return centres[y] + spread * torch.randn(n, dim, generator=g), y


def curve(seed, n, dim=8, out=1):
    """A smooth nonlinear regression task."""
    g, w = rng(seed), rng(77)
    a, b = torch.randn(dim, 6, generator=w) / dim**0.5, torch.randn(6, out, generator=w)
    x = torch.randn(n, dim, generator=g)
    return x, torch.sin(1.5 * (x @ a)) @ b / 1.5
