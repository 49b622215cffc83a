"""Tables and scores that the cases share."""

import torch
from torch.utils.data import DataLoader, TensorDataset


def surface(x):
    """A smooth relation of the first four columns with interactions, of variance near 1."""
    return 0.8 * torch.sin(1.5 * x[:, 0]) + 0.6 * x[:, 1] * x[:, 2] + 0.5 * torch.tanh(2 * x[:, 3])


def loader(*tensors, size=64, shuffle=True, **rest):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=shuffle, **rest)


def r2(predicted, truth):
    predicted = predicted.detach().float().reshape(truth.shape)
    left = ((predicted - truth) ** 2).mean()
    return (1 - left / ((truth - truth.mean(0)) ** 2).mean()).clamp(min=0).item()


def accuracy(logits, truth):
    return (logits.argmax(-1) == truth).float().mean().item()


def balanced(predicted, truth):
    """Mean of the recalls of all classes."""
    return sum((predicted[truth == k] == k).float().mean().item() for k in truth.unique()) / len(truth.unique())


def concordance(risk, time, event):
    risk = risk.flatten()
    earlier = (time[:, None] < time[None, :]) & event.bool()[:, None]
    right = (risk[:, None] > risk[None, :]).float() + 0.5 * (risk[:, None] == risk[None, :]).float()
    return (right[earlier].mean()).item()
