"""Synthetic tables and images, and scores."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def table(n=2048, d=10, seed=3):
    """Four classes, not linearly separable."""
    x = torch.randn(n, d, generator=gen(seed))
    return x, 2 * (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] + 0.5 * x[:, 3] > 0).long()


def curve(n=2048, d=8, seed=5):
    x = torch.randn(n, d, generator=gen(seed))
    y = torch.sin(1.5 * x[:, 0]) + 0.7 * x[:, 1] * x[:, 2] + 0.6 * x[:, 3]
    return x, y / 1.15


def shapes(n=1536, size=12, seed=7, noise=0.25):
    """Bars, diagonals and blocks in images of one channel, in 0..1 roughly."""
    g = gen(seed)
    x = noise * torch.randn(n, 1, size, size, generator=g)
    y = torch.randint(0, 4, (n,), generator=g)
    at = torch.randint(0, size - 5, (n, 2), generator=g).tolist()
    for i, (r, c) in enumerate(at):
        k = int(y[i])
        if k == 0:
            x[i, 0, r + 2, c : c + 5] += 1
        elif k == 1:
            x[i, 0, r : r + 5, c + 2] += 1
        elif k == 2:
            for j in range(5):
                x[i, 0, r + j, c + j] += 1
        else:
            x[i, 0, r : r + 3, c : c + 3] += 1
    return x, y


def boxes(n=1536, size=12, seed=9):
    """A bright rectangle: image, mask, and its centre and size as fractions."""
    g = gen(seed)
    x = 0.3 * torch.randn(n, 1, size, size, generator=g)
    mask = torch.zeros(n, 1, size, size)
    wh = torch.randint(3, 7, (n, 2), generator=g)
    box = torch.zeros(n, 4)
    for i in range(n):
        w, h = wh[i].tolist()
        c = int(torch.randint(0, size - w + 1, (1,), generator=g))
        r = int(torch.randint(0, size - h + 1, (1,), generator=g))
        mask[i, 0, r : r + h, c : c + w] = 1
        box[i] = torch.tensor([c + w / 2, r + h / 2, w, h]) / size
    return x + mask, mask, box


def loader(*tensors, batch=64, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, generator=gen(11), drop_last=True)


def accuracy(x, y):
    return lambda model: (model(x).argmax(1) == y).float().mean().item()


def r2(pred, y):
    return max(0.0, 1 - ((pred - y) ** 2).mean().item() / y.var(0).mean().item())


def r2_of(x, y):
    return lambda model: r2(model(x).reshape(y.shape), y)


def iou_of(x, mask):
    def score(model):
        p = model(x) > 0
        t = mask > 0.5
        return ((p & t).sum() / (p | t).sum().clamp(min=1)).item()

    return score
