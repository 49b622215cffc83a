import numpy as np
import torch
from sklearn import datasets
from torch.utils.data import DataLoader, TensorDataset


def gen(seed):
    return torch.Generator().manual_seed(seed)


def table(name, scale=True, seed=7, held=0.3):
    data = getattr(datasets, f"load_{name}")()
    x = torch.tensor(np.asarray(data.data), dtype=torch.float32)
    y = torch.tensor(np.asarray(data.target))
    y = y.float() if name == "diabetes" else y.long()
    order = torch.randperm(len(x), generator=gen(seed))
    x, y = x[order], y[order]
    cut = int(len(x) * (1 - held))
    xa, ya, xb, yb = x[:cut], y[:cut], x[cut:], y[cut:]
    if scale:
        m, s = xa.mean(0), xa.std(0).clamp(min=1e-6)
        xa, xb = (xa - m) / s, (xb - m) / s
    return xa, ya, xb, yb


def digits(image=False):
    xa, ya, xb, yb = table("digits", scale=False)
    xa, xb = (xa - 4.9) / 6.0, (xb - 4.9) / 6.0
    if image:
        xa, xb = xa.view(-1, 1, 8, 8), xb.view(-1, 1, 8, 8)
    return xa, ya, xb, yb


def load(*tensors, size=32, **more):
    more.setdefault("shuffle", "sampler" not in more and "batch_sampler" not in more)
    if "batch_sampler" in more:
        more.pop("shuffle")
        return DataLoader(TensorDataset(*tensors), **more)
    return DataLoader(TensorDataset(*tensors), batch_size=size, **more)


def acc(x, y):
    return lambda model: (model(x).argmax(1) == y).float().mean().item()


def binary(x, y, at=0.0):
    return lambda model: ((model(x).squeeze(-1) > at).float() == y.float().squeeze(-1)).float().mean().item()


def r2_of(out, y):
    out, y = out.float().reshape(y.shape), y
    return max(0.0, (1 - ((out - y) ** 2).sum() / ((y - y.mean(0)) ** 2).sum()).item())


def r2(x, y):
    return lambda model: r2_of(model(x), y)


def rings(n, seed, noise=0.08):
    g = gen(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    angle = torch.rand(n, generator=g) * 6.2832
    radius = 0.5 + 1.0 * y + noise * torch.randn(n, generator=g)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), y


def surface(n, d, seed, noise=0.05):
    """A smooth nonlinear function of a table, about unit variance."""
    g = gen(seed)
    x = torch.randn(n, d, generator=g)
    y = torch.sin(1.5 * x[:, 0]) + 0.6 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3] + noise * torch.randn(n, generator=g)
    return x, y


def blobs(n, size, seed, noise=0.3):
    """Images with a bright rectangle, its mask, and its box (x0, y0, x1, y1) in pixels."""
    g = gen(seed)
    wh = torch.randint(3, size // 2 + 1, (n, 2), generator=g)
    xy = (torch.rand(n, 2, generator=g) * (size - wh + 1)).long()
    grid = torch.arange(size)
    inx = (grid[None] >= xy[:, :1]) & (grid[None] < (xy + wh)[:, :1])
    iny = (grid[None] >= xy[:, 1:]) & (grid[None] < (xy + wh)[:, 1:])
    mask = (iny[:, :, None] & inx[:, None, :]).long()
    image = mask[:, None].float() * 1.5 + noise * torch.randn(n, 1, size, size, generator=g)
    return image, mask, torch.cat([xy, xy + wh], 1).float()


def iou(out, mask):
    hit = (out & mask).sum().float()
    return (hit / (out | mask).sum().clamp(min=1)).item()
