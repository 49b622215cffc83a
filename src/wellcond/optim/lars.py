"""LARS: every layer's step is a fixed share of its weight's norm."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from wellcond.optim.momentum import Group, ScaledSGD, Tensors, norms


def lars_scales(params: Tensors, gradients: Tensors, trust_coefficients: Iterable[float | None]) -> list[Tensor]:
    """η‖W‖/‖δW‖ of each tensor; 1 where either norm is zero or η is None."""
    weights, slopes = norms(params), norms(gradients)
    ratios, smaller = torch._foreach_div(weights, slopes), torch._foreach_minimum(weights, slopes)
    return [
        torch.ones_like(ratio) if trust is None else torch.where(low > 0, trust * ratio, 1.0)
        for ratio, low, trust in zip(ratios, smaller, trust_coefficients, strict=True)
    ]


class LARS(ScaledSGD):
    """Layer-wise adaptive rate scaling: the learning rate of a parameter tensor W is lr·η·‖W‖/‖δW‖.

    Without momentum, a step moves W by lr·η of its own norm, whatever the size of its gradient. δW includes weight
    decay.

    zhang2018 writes the rule without a trust coefficient (η = 1) and runs it with lr 2, Nesterov momentum 0.9 and
    weight decay 1e-3. Taken literally that moves every weight by twice its norm in one step, and a small
    convolutional network diverges within 50; with the η = 1e-3 of LARS's own authors (You et al. 2017) a step is
    0.2 %. So either take a small lr, or `LARS(params, lr=2.0, trust_coefficient=1e-3)`.

    A tensor that is zero, or whose gradient is, has scale 1: a zero weight takes a plain SGD step and leaves zero.
    Biases and norm parameters are scaled like weights. To exclude them, as is usual where they start at zero, give
    their group `trust_coefficient=None`: plain SGD with the group's own lr.

    lr: with η, the share of ‖W‖ that a step moves. trust_coefficient: η > 0, or None for plain SGD.

    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> w.grad = torch.tensor([0.0, 7.0])
    >>> LARS([w], lr=0.1).step()  # 10 % of ‖W‖ = 5
    >>> w.data
    tensor([3.0000, 3.5000])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 2.0,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        trust_coefficient: float | None = 1.0,
    ) -> None:
        options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(params, {"lr": lr, **options, "trust_coefficient": trust_coefficient})

    def check(self, options: Group) -> None:
        super().check(options)
        trust = options["trust_coefficient"]
        if trust is not None and not trust > 0:
            raise ValueError(f"trust_coefficient must be > 0, or None for plain SGD, not {trust}")

    def scales(self, params: Tensors, gradients: Tensors, groups: list[Group]) -> Tensors:
        return lars_scales(params, gradients, [group["trust_coefficient"] for group in groups])
