"""The two networks of santurkar2018, a VGG and a deep linear network, with every norm that it compares."""

from __future__ import annotations

import math
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from wellcond.nn import LpBatchNorm1d, LpBatchNorm2d, NoisyBatchNorm2d
from wellcond_papers.experiments.experiment import Job
from wellcond_papers.models import deep_linear, vgg
from wellcond_papers.models.layers import Norm

Place = TypeVar("Place")
VARIANTS: dict[str, tuple[Norm, Norm]] = {
    "l1": (partial(LpBatchNorm1d, p=1, track_running_stats=False), partial(LpBatchNorm2d, p=1)),
    "linf": (partial(LpBatchNorm1d, p=math.inf, track_running_stats=False), partial(LpBatchNorm2d, p=math.inf)),
    "noisy": ("none", NoisyBatchNorm2d),
}
"""For the features of the linear network, which always sees its whole batch, and for images; "none" and "batch" are the
models' own."""


def deep_linear_network(job: Job) -> nn.Sequential:
    """W_k … W_1 x with a norm after every layer but the last, in double precision."""
    norm = VARIANTS.get(job["norm"], (job["norm"],))[0]
    model = deep_linear(job["width"], job["layers"], norm=norm, init="glorot", seed=job["seed"])
    return model.to(job.device, torch.float64)


def image_network(job: Job) -> nn.Sequential:
    """VGG with biases, its norms with a gain and a shift."""
    norm = VARIANTS.get(job["norm"], (job["norm"],))[-1]
    options = {"affine": True, "bias": True, "width": job["width"], "init": "glorot", "seed": job["seed"]}
    model = vgg(job["depth"], 10, norm=norm, **options).to(job.device)
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def activations_of(model: nn.Module) -> dict[str, str]:
    """The module that gives the output of every hidden layer: the norm after it, or the layer itself.

    Example:
        >>> from wellcond_papers.models import mlp
        >>> activations_of(mlp([2, 2, 2, 2], norm="batch"))
        {'fc1': 'bn1', 'fc2': 'bn2'}
    """
    outputs: dict[str, str] = {}
    last = ""
    for name, module in model.named_children():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            last = outputs[name] = name
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            outputs[last] = name
    outputs.pop(last)
    return outputs


def spread(names: list[Place], count: int) -> list[Place]:
    """Some of the layers or looks, evenly spread, with the first and the last.

    Example:
        >>> spread(["a", "b", "c", "d", "e"], 3)
        ['a', 'c', 'e']
    """
    if count >= len(names):
        return names
    return [names[round(k * (len(names) - 1) / (count - 1))] for k in range(count)]
