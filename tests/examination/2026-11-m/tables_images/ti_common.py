"""Data and scores that several cases use."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loader(*tensors: Tensor, batch: int = 64, shuffle: bool = True, seed: int = 7, drop_last: bool = True) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=drop_last, generator=rng(seed))


def accuracy(logits: Tensor, y: Tensor) -> float:
    if not torch.isfinite(logits).all():
        return 0.0
    return (logits.argmax(1) == y).float().mean().item()


def r2(prediction: Tensor, y: Tensor) -> float:
    prediction, y = prediction.float().reshape(-1), y.float().reshape(-1)
    return max(0.0, 1 - ((prediction - y) ** 2).mean().item() / y.var().item())


def blobs(n: int, classes: int, features: int, seed: int, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Classes of two clusters each."""
    g = rng(seed)
    centres = torch.randn(classes, 2, features, generator=g) * 1.2
    y = torch.randint(classes, (n,), generator=g)
    which = torch.randint(2, (n,), generator=g)
    return centres[y, which] + spread * torch.randn(n, features, generator=g), y


def shapes(n: int, seed: int, size: int = 12, channels: int = 1, noise: float = 0.25) -> tuple[Tensor, Tensor]:
    """Images of a horizontal bar, a vertical bar, a square outline or a cross, somewhere, in [0, 1]."""
    g = rng(seed)
    y = torch.randint(4, (n,), generator=g)
    x = torch.zeros(n, channels, size, size)
    for i in range(n):
        r, c = (int(v) for v in torch.randint(0, size - 5, (2,), generator=g))
        k = int(y[i])
        if k == 0:
            x[i, :, r + 2, c : c + 5] = 1
        elif k == 1:
            x[i, :, r : r + 5, c + 2] = 1
        elif k == 2:
            x[i, :, r : r + 5, c : c + 5] = 1
            x[i, :, r + 1 : r + 4, c + 1 : c + 4] = 0
        else:
            x[i, :, r + 2, c : c + 5] = 1
            x[i, :, r : r + 5, c + 2] = 1
    x = (0.75 * x + noise * torch.rand(x.shape, generator=g)).clamp(0, 1)
    return x, y


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])
