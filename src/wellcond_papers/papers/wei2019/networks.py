"""The networks, losses and images of wei2019, from the settings of a cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.learning_rate.meanfield import Architecture
from wellcond.learning_rate.meanfield.prediction import Loss
from wellcond_papers.data.dataset import Dataset
from wellcond_papers.data.load import load
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.models import meanfield_cnn, meanfield_mlp

FC = "fc {inputs}-1000-1000-1000-10"
CONV = "conv {image} 30-60-90 k3 s2 10"
MOMENTUM = 0.9
STANDARDIZED = (
    "Images are standardized, channel by channel; the source assumes inputs of mean 0 and variance 1 in its theory, "
    "and does not say how it prepares its images."
)


def network(architecture: Architecture, seed: int) -> nn.Sequential:
    """A network with the widths, the norm and the variances of an architecture."""
    drawn: dict[str, Any] = {
        "classes": architecture.outputs,
        "norm": architecture.norm,
        "gamma": float(architecture.gamma),
        "sigma_w2": float(architecture.sigma_w2),
        "sigma_b2": float(architecture.sigma_b2),
        "seed": seed,
    }
    hidden = [int(width) for width in architecture.hidden]
    if architecture.is_convolutional:
        return meanfield_cnn(architecture.input, hidden, **drawn)  # type: ignore[arg-type]
    return meanfield_mlp(architecture.input[0], hidden[0], len(hidden) + 1, **drawn)


def images(job: Job, architecture: Architecture, *, train: bool) -> Dataset:
    """The data set of a cell, in the size that the network takes."""
    size = architecture.input[-1] if architecture.is_convolutional else None
    return load(job["data"], job.data, train=train, size=size)


def half_squared(outputs: Tensor, labels: Tensor) -> Tensor:
    """½‖f − y‖² to one-hot targets, the mean over the examples: the loss that the theory is about."""
    targets = nn.functional.one_hot(labels, outputs.shape[-1])
    return (outputs - targets).square().sum(-1).mean() / 2


LOSSES: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": nn.functional.cross_entropy,
    "half-squared": half_squared,
}


def gaussian_inputs(architecture: Architecture, count: int, seed: int) -> Tensor:
    """Independent inputs of mean 0 and variance 1, as the theory assumes."""
    draw = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(count, *architecture.input, generator=draw)
