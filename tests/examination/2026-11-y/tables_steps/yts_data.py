"""Helpers for the cases on tables, science and steps."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def r2(guess, truth):
    guess, truth = guess.float(), truth.float()
    return max(0.0, float(1 - ((guess - truth) ** 2).mean() / ((truth - truth.mean(0)) ** 2).mean()))


def above_chance(logits, truth, classes):
    accuracy = float((logits.argmax(-1) == truth).float().mean())
    return max(0.0, (accuracy - 1 / classes) / (1 - 1 / classes))


def loader(*tensors, size=64):
    return DataLoader(TensorDataset(*tensors), batch_size=size, shuffle=True, drop_last=True)


class Stream:
    """Endless simulated data, in epochs of `length` fresh batches."""

    def __init__(self, draw, length=50):
        self.draw, self.length = draw, length

    def __len__(self):
        return self.length

    def __iter__(self):
        for _ in range(self.length):
            yield self.draw()


def mlp(*sizes, act=nn.ReLU):
    layers = []
    for a, b in zip(sizes[:-1], sizes[1:]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def surface(x):
    """A smooth nonlinear function of the first five columns, about standardised."""
    return torch.sin(1.5 * x[:, 0]) + 0.6 * x[:, 1] * x[:, 2] + 0.5 * x[:, 3] - 0.4 * x[:, 4].abs() + 0.3
