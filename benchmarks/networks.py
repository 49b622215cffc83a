"""The two networks every tool is measured on: a deep MLP, and ResNet-20 in evaluation mode."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.models import mlp, resnet


@dataclass(frozen=True)
class Network:
    """Gaussian inputs and random labels: nothing to download, the same everywhere."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor

    @property
    def loss(self) -> nn.Module:
        return nn.CrossEntropyLoss()

    def problem(self) -> wc.Problem:
        return wc.Problem(self.model, self.loss, (self.x, self.y), batchnorm="running")

    def forward_and_backward(self) -> None:
        """The unit u of all costs."""
        torch.autograd.grad(self.loss(self.model(self.x), self.y), list(self.model.parameters()))

    def to(self, dtype: torch.dtype) -> Network:
        return Network(self.name, copy.deepcopy(self.model).to(dtype), self.x.to(dtype), self.y)


def networks(device: str, seed: int = 0) -> list[Network]:
    """8-layer MLP 784-256×7-10 on 512 examples; ResNet-20 with BN on 128 images of 32×32."""
    generator = torch.Generator().manual_seed(seed)
    deep = mlp([784, *[256] * 7, 10], init="default", seed=seed)
    residual = resnet(20, seed=seed)
    made = [
        (f"MLP 784-256x7-10, batch 512 ({device})", deep, torch.randn(512, 784, generator=generator)),
        (f"ResNet-20, batch 128 ({device})", residual, torch.randn(128, 3, 32, 32, generator=generator)),
    ]
    labels = [torch.randint(0, 10, (len(x),), generator=generator) for *_, x in made]
    return [
        Network(name, model.eval().to(device), x.to(device), y.to(device))
        for (name, model, x), y in zip(made, labels, strict=True)
    ]
