"""Measures and tables that the cases share."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def r2(predicted, truth):
    predicted, truth = predicted.reshape(-1).float(), truth.reshape(-1).float()
    if predicted.shape != truth.shape or not torch.isfinite(predicted).all():
        return 0.0
    rest = ((predicted - truth) ** 2).mean() / truth.var(unbiased=False)
    return float((1 - rest).clamp(0, 1))


def mean_r2(predicted, truth):
    return sum(r2(predicted[:, i], truth[:, i]) for i in range(truth.shape[1])) / truth.shape[1]


def accuracy(logits, labels):
    return float((logits.argmax(-1) == labels).float().mean())


def auc(scores, labels):
    scores, labels = scores.reshape(-1), labels.reshape(-1) > 0.5
    if not torch.isfinite(scores).all():
        return 0.5
    gap = scores[labels][:, None] - scores[~labels][None]
    return float((gap > 0).float().mean() + 0.5 * (gap == 0).float().mean())


def gini(scores, labels):
    return max(0.0, 2 * auc(scores, labels) - 1)


def correlation(a, b):
    a, b = a.reshape(-1), b.reshape(-1)
    a, b = a - a.mean(), b - b.mean()
    return float(((a * b).mean() / (a.std() * b.std() + 1e-9)).clamp(0, 1))


def loader(*tensors, size=64, shuffle=True):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, drop_last=True)


def mlp(*widths, act=nn.ReLU):
    parts = []
    for i, (a, b) in enumerate(zip(widths[:-1], widths[1:])):
        parts.append(nn.Linear(a, b))
        if i < len(widths) - 2:
            parts.append(act())
    return nn.Sequential(*parts)


def bumpy(x):
    """A smooth function of a table's first columns, of variance about 1."""
    return torch.sin(1.5 * x[:, 0]) + 0.6 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3].abs() - 0.4
