"""Data and scores that the cases share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


def vts_relation(d: int, k: int = 6, outs: int = 1, pair: float = 0.5):
    """A random smooth function of d standard normal inputs, of about unit variance."""
    w, b, v = torch.randn(d, k) * 1.5 / d**0.5, torch.randn(k) * 0.5, torch.randn(k, outs)

    def f(x: Tensor) -> Tensor:
        h = torch.tanh(x @ w + b) @ v * (1.6 / k**0.5)
        return h + pair * (x[:, :1] * x[:, 1:2])

    ref = f(torch.randn(4000, d))
    m, s = ref.mean(0), ref.std(0)
    return lambda x: (f(x) - m) / s


def vts_loader(*tensors: Tensor, batch: int = 64, shuffle: bool = True, drop: bool = True) -> DataLoader:
    return DataLoader(TensorDataset(*tensors), batch_size=batch, shuffle=shuffle, drop_last=drop)


class VtsDicts(torch.utils.data.Dataset):
    """Rows as (dict of inputs, target)."""

    def __init__(self, inputs: dict[str, Tensor], target: Tensor | dict[str, Tensor]):
        self.inputs, self.target = inputs, target

    def __len__(self) -> int:
        return len(next(iter(self.inputs.values())))

    def __getitem__(self, i: int):
        y = {k: v[i] for k, v in self.target.items()} if isinstance(self.target, dict) else self.target[i]
        return {k: v[i] for k, v in self.inputs.items()}, y


def vts_r2(p: Tensor, y: Tensor) -> float:
    p, y = p.float(), y.float()
    if p.shape != y.shape:
        p = p.reshape(y.shape)
    if not torch.isfinite(p).all():
        return 0.0
    if y.dim() == 1:
        p, y = p[:, None], y[:, None]
    r = 1 - ((p - y) ** 2).mean(0) / y.var(0)
    return r.clamp(0, 1).mean().item()


def vts_rank_corr(p: Tensor, y: Tensor) -> float:
    p, y = p.flatten().float(), y.flatten().float()
    if not torch.isfinite(p).all() or p.std() == 0:
        return 0.0
    a, b = p.argsort().argsort().double(), y.argsort().argsort().double()
    return max(0.0, torch.corrcoef(torch.stack([a, b]))[0, 1].item())


def vts_acc(logits: Tensor, y: Tensor) -> float:
    if not torch.isfinite(logits).all():
        return 0.0
    return (logits.argmax(-1) == y).float().mean().item()


def vts_gini(s: Tensor, y: Tensor) -> float:
    """2 AUC - 1."""
    s, y = s.flatten(), y.flatten() > 0.5
    if not torch.isfinite(s).all():
        return 0.0
    r = s.argsort().argsort().double() + 1
    n1, n0 = int(y.sum()), int((~y).sum())
    auc = (r[y].sum().item() - n1 * (n1 + 1) / 2) / (n1 * n0)
    return max(0.0, 2 * auc - 1)
