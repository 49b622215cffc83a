"""SGD that scales the gradient of every parameter tensor before its momentum: the base class, LARS and LSALR."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

Tensors = list[Tensor] | tuple[Tensor, ...]
Group = dict[str, Any]
"""A parameter group of an optimizer: its parameters and its options."""


def descend(
    params: Tensors, directions: Tensors, buffers: Tensors, *, lr: float, momentum: float, nesterov: bool
) -> None:
    """v ← μv + δ, W ← W − lr·v; Nesterov: W ← W − lr·(δ + μv). In place, and as `torch.optim.SGD` does it.

    The buffers v are zero before the first step, and unused when μ is 0.
    """
    if momentum:
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, directions)
        directions = torch._foreach_add(directions, buffers, alpha=momentum) if nesterov else buffers
    torch._foreach_add_(params, directions, alpha=-lr)


def norms(tensors: Tensors) -> Tensors:
    """‖·‖₂ of each tensor, at least in float32: a sum of squares soon leaves the range of half precision."""
    dtype = functools.reduce(torch.promote_types, (tensor.dtype for tensor in tensors), torch.float32)
    return torch._foreach_norm(tensors, 2, dtype)


class ScaledSGD(Optimizer, ABC):
    """Weight decay, one scale per tensor, momentum, in this order.

        δ ← ∂L/∂W + λW,   δ' = s·δ,   then `descend` along δ'

    The scale s comes before the momentum, so that a buffer adds up steps of one unit when s changes over time.
    """

    # must define

    @abstractmethod
    def scales(self, params: Tensors, gradients: Tensors, groups: list[Group]) -> Tensors:
        """The s of each parameter, as a tensor of one number; gradients include weight decay, groups are one each."""

    # may override

    def check(self, options: Group) -> None:
        """Raise ValueError if a group's options make no sense."""
        for name in ("lr", "weight_decay"):
            if not options[name] >= 0:
                raise ValueError(f"{name} must be ≥ 0, not {options[name]}")
        if not 0 <= options["momentum"] < 1:
            raise ValueError(f"momentum must be ≥ 0 and < 1, not {options['momentum']}")
        if options["nesterov"] and not options["momentum"]:
            raise ValueError("nesterov=True needs a momentum > 0, not 0")

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with their own options; missing options are those of the optimizer."""
        if isinstance(param_group, dict):  # torch raises if not
            self.check(self.defaults | param_group)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient, or none if something is wrong with one of them.

        Args:
            closure: Evaluates the model and returns the loss. It is called once.

        Returns:
            What the closure returned.

        Raises:
            RuntimeError: A gradient is sparse or complex.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # groups with equal options, perhaps one per layer, are updated in one go
        alike: defaultdict[tuple[Any, ...], list[tuple[Tensor, Group]]] = defaultdict(list)
        for group in self.param_groups:
            options = tuple(group[name] for name in ("lr", "momentum", "nesterov", "weight_decay"))
            alike[options] += [(p, group) for p in group["params"] if p.grad is not None]
        updates = [(options, *self._directions(members, options[-1])) for options, members in alike.items() if members]
        for (lr, momentum, nesterov, _), params, directions in updates:
            buffers = self._buffers(params) if momentum else []
            descend(params, directions, buffers, lr=lr, momentum=momentum, nesterov=nesterov)
        return loss

    def _directions(self, members: list[tuple[Tensor, Group]], weight_decay: float) -> tuple[list[Tensor], Tensors]:
        params = [p for p, _ in members]
        gradients: Tensors = [p.grad for p in params if p.grad is not None]
        for g in gradients:
            if g.layout is not torch.strided or g.is_complex():
                kind = "complex" if g.is_complex() else "sparse"
                raise RuntimeError(
                    f"{type(self).__name__} takes no {kind} gradients, and that of a parameter of shape "
                    f"{tuple(g.shape)} is {kind}. Write nn.Embedding(..., sparse=False), or use another optimizer."
                )
        if weight_decay:
            gradients = torch._foreach_add(gradients, params, alpha=weight_decay)
        return params, torch._foreach_mul(gradients, self.scales(params, gradients, [group for _, group in members]))

    def _buffers(self, params: list[Tensor]) -> list[Tensor]:
        for p in params:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return [self.state[p]["momentum_buffer"] for p in params]


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

    Without momentum, a step moves W by lr·η of its own norm, whatever its gradient; δW includes weight decay.

    zhang2018 writes the rule with η = 1 and runs it with lr 2, Nesterov momentum 0.9 and weight decay 1e-3. Taken
    literally, every step moves a weight by twice its norm, and a small convolutional network diverges within 50 steps.
    Take a small lr, or `LARS(params, lr=2.0, trust_coefficient=1e-3)` with the η of You et al. (2017).

    A tensor that is zero, or whose gradient is, has scale 1: a zero weight takes a plain SGD step. Biases and norm
    parameters are scaled like weights; to exclude them, give their group `trust_coefficient=None`.

    Args:
        params: Parameters, or parameter groups.
        lr: With η, the share of ‖W‖ that a step moves.
        momentum: μ, as in `torch.optim.SGD`.
        nesterov: Whether the momentum is Nesterov's.
        weight_decay: λ, added to the gradient as λW.
        trust_coefficient: η > 0, or None for plain SGD.

    Raises:
        ValueError: An option is out of range.

    Example:
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


def lsalr_scales(gradients: Tensors) -> Tensors:
    """1 + log(1 + 1/‖δW‖) of each tensor, with ‖δW‖ no smaller than the smallest normal number."""
    slopes = norms(gradients)
    slopes = torch._foreach_clamp_min(slopes, torch.finfo(slopes[0].dtype).tiny)
    return torch._foreach_add(torch._foreach_log1p(torch._foreach_reciprocal(slopes)), 1)


class LSALR(ScaledSGD):
    """Layer-specific adaptive learning rates: that of a parameter tensor W is lr·(1 + log(1 + 1/‖δW‖)).

    A large gradient takes the step of plain SGD; a vanishing one at most 88 times that (in float32), so a zero
    gradient moves nothing. δW includes weight decay. Every tensor counts as a layer, biases too.
    zhang2018 compares with lr = 0.1, Nesterov momentum 0.9 and weight decay 1e-3.

    Args:
        params: Parameters, or parameter groups.
        lr: Learning rate as for SGD; the rate of a tensor is a multiple ≥ 1 of it.
        momentum: μ, as in `torch.optim.SGD`.
        nesterov: Whether the momentum is Nesterov's.
        weight_decay: λ, added to the gradient as λW.

    Raises:
        ValueError: An option is out of range.

    Example:
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
