"""The networks every tool is measured on: two deep MLPs, and ResNet-20 in both meanings of BatchNorm."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import wellcond as wc
from wellcond_papers.models import mlp, resnet


@dataclass(frozen=True)
class Network:
    """Gaussian inputs and random labels: nothing to download, the same everywhere."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    batchnorm: Literal["batch", "running"] = "running"

    @property
    def loss(self) -> nn.Module:
        return nn.CrossEntropyLoss()

    def problem(self) -> wc.Problem:
        return wc.Problem(self.model, self.loss, (self.x, self.y), batchnorm=self.batchnorm)

    def for_peers(self) -> Network:
        """The same function in evaluation mode: a norm without running statistics takes those of the batch."""
        if self.batchnorm == "running":
            return self
        model = copy.deepcopy(self.model)
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.running_mean = module.running_var = None
        return replace(self, model=model)

    def forward_and_backward(self) -> None:
        """The unit u of all costs."""
        torch.autograd.grad(self.loss(self.model(self.x), self.y), list(self.model.parameters()))

    def to(self, dtype: torch.dtype) -> Network:
        return replace(self, model=copy.deepcopy(self.model).to(dtype), x=self.x.to(dtype))


def networks(device: str, seed: int = 0) -> list[Network]:
    """MLPs of 8 and 3 layers on 512 examples; ResNet-20 with BatchNorm on 64 images of 32×32."""
    generator = torch.Generator().manual_seed(seed)
    x, images = torch.randn(512, 784, generator=generator), torch.randn(64, 3, 32, 32, generator=generator)
    y, labels = (torch.randint(0, 10, (len(batch),), generator=generator) for batch in (x, images))
    built = [
        Network("MLP 784-256x7-10", mlp([784, *[256] * 7, 10], init="default", seed=seed), x, y),
        Network("MLP 784-512x2-10", mlp([784, 512, 512, 10], init="default", seed=seed), x, y),
        Network("ResNet-20, running statistics", resnet(20, seed=seed), images, labels),
        Network("ResNet-20, a batch's statistics", resnet(20, seed=seed), images, labels, "batch"),
    ]
    return [replace(n, model=n.model.eval().to(device), x=n.x.to(device), y=n.y.to(device)) for n in built]
