"""Bits the scripts have in common."""
import torch
from torch.utils.data import DataLoader, TensorDataset


def loader(*tensors, batch_size=64, shuffle=True, drop_last=True):
    return DataLoader(TensorDataset(*tensors), batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)


def r2(prediction, target):
    return float(1 - ((prediction - target) ** 2).mean() / ((target - target.mean(0)) ** 2).mean())


def accuracy(logits, y):
    return float((logits.argmax(-1) == y).float().mean())


def seeded(seed):
    return torch.Generator().manual_seed(seed)
