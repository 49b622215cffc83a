"""LSALR: layers with a small gradient take larger steps."""

from __future__ import annotations

import torch
from torch.optim.optimizer import ParamsT

from wellcond.optim.momentum import Group, ScaledSGD, Tensors, norms


def lsalr_scales(gradients: Tensors) -> Tensors:
    """1 + log(1 + 1/‖δW‖) of each tensor, with ‖δW‖ no smaller than the smallest normal number."""
    slopes = norms(gradients)
    slopes = torch._foreach_clamp_min(slopes, torch.finfo(slopes[0].dtype).tiny)
    return torch._foreach_add(torch._foreach_log1p(torch._foreach_reciprocal(slopes)), 1)


class LSALR(ScaledSGD):
    """Layer-specific adaptive learning rates: that of a parameter tensor W is lr·(1 + log(1 + 1/‖δW‖)).

    A large gradient takes the step of plain SGD; a vanishing one at most 88 times that (in float32), so a zero
    gradient moves nothing. δW includes weight decay. Every tensor counts as a layer of its own, biases too.

    zhang2018 compares with lr = 0.1, Nesterov momentum 0.9 and weight decay 1e-3.

    lr: as that of SGD, of which it is a multiple ≥ 1.

    >>> w = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    >>> w.grad = torch.tensor([0.0, 1.0])
    >>> LSALR([w], lr=0.5).step()  # a rate of 0.5·(1 + log 2)
    >>> w.data
    tensor([1.0000, 0.1534])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.1,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay})

    def scales(self, params: Tensors, gradients: Tensors, groups: list[Group]) -> Tensors:
        return lsalr_scales(gradients)
