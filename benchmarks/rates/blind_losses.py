"""Losses of the blind tasks, called as (outputs, targets); means over the batch unless a docstring says otherwise."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

QUANTILES = (0.1, 0.5, 0.9)


def beta_bound(outputs: tuple[Tensor, Tensor, Tensor], images: Tensor, beta: float = 0.2) -> Tensor:
    """Squared errors summed over pixels, plus the weighted divergence of a Gaussian from the standard one."""
    pictures, mean, log_variance = outputs
    errors = F.mse_loss(pictures, images, reduction="sum")
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return (errors + beta * divergence) / len(images)


def hinge(outputs: tuple[Tensor, Tensor], _: Tensor) -> Tensor:
    """The discriminator's hinge loss, of its scores of real and of generated images."""
    real, generated = outputs
    return F.relu(1 - real).mean() + F.relu(1 + generated).mean()


def temporal_difference(values: Tensor, targets: Tensor) -> Tensor:
    """Huber's loss between the values of the actions taken and their targets."""
    taken = values.gather(1, targets[:, :1].long())
    return F.smooth_l1_loss(taken, targets[:, 1:])


def noise_error(outputs: tuple[Tensor, Tensor], _: Tensor) -> Tensor:
    """The mean squared error of predicted noise."""
    return F.mse_loss(*outputs)


def dice_and_cross(logits: Tensor, masks: Tensor) -> Tensor:
    """Binary cross-entropy, plus one minus the soft Dice coefficient of every image."""
    likely = logits.sigmoid()
    shared = (likely * masks).sum((1, 2, 3))
    dice = (2 * shared + 1) / (likely.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1)
    return F.binary_cross_entropy_with_logits(logits, masks) + 1 - dice.mean()


def contrast(views: tuple[Tensor, Tensor], _: Tensor, temperature: float = 0.2) -> Tensor:
    """Cross-entropy of finding an image's other view among all others of the batch."""
    n = len(views[0])
    every = F.normalize(torch.cat(views), dim=1)
    alike = (every @ every.T / temperature).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
    return F.cross_entropy(alike, torch.arange(2 * n).roll(n))


def pinball(quantiles: Tensor, values: Tensor) -> Tensor:
    """The loss whose minimum is at the quantiles."""
    levels = torch.tensor(QUANTILES)
    error = values - quantiles
    return torch.maximum(levels * error, (levels - 1) * error).mean()


def cauchy(predicted: Tensor, values: Tensor, scale: float = 50.0) -> Tensor:
    """The negative log-likelihood of Cauchy errors, up to a constant."""
    return ((predicted - values) / scale).square().log1p().mean()


def measured_and_physics(outputs: tuple[Tensor, Tensor], values: Tensor, weight: float = 1e-4) -> Tensor:
    """The mean squared error, plus the weighted mean square of what is left of the differential equation."""
    predicted, residual = outputs
    return F.mse_loss(predicted, values) + weight * residual.square().mean()


def two_heads(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Cross-entropy of the label plus half the squared error of the number."""
    logits, number = outputs
    return F.cross_entropy(logits, targets[:, 0].long()) + 0.5 * F.mse_loss(number[:, 0], targets[:, 1])
