"""SGD with momentum that scales the gradient of every parameter tensor first: what this room's optimizers share."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

Tensors = list[Tensor] | tuple[Tensor, ...]
Group = dict[str, Any]
"""A parameter group of an optimizer: its parameters and its options."""


def descend(
    params: Tensors, directions: Tensors, buffers: Tensors, *, lr: float, momentum: float, nesterov: bool
) -> None:
    """v ← μv + δ, W ← W − lr·v; Nesterov: W ← W − lr·(δ + μv). In place, and as `torch.optim.SGD` does it.

    buffers: the v, zero before the first step; not looked at when μ is 0.
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
    """Weight decay, a scale a tensor, momentum, in this order.

        δ ← ∂L/∂W + λW,   δ' = s·δ,   then `descend` along δ'

    Every group has the options `lr`, `momentum` μ, `nesterov`, `weight_decay` λ, and what the subclass adds.
    The scale s stands before the momentum, so that a buffer adds up steps of one unit when s changes over time.
    """

    # must define

    @abstractmethod
    def scales(self, params: Tensors, gradients: Tensors, groups: list[Group]) -> Tensors:
        """s of each parameter, tensors of one number. groups: that of each; the gradients include weight decay."""

    # may override

    def check(self, options: Group) -> None:
        """Raise if a group's options make no sense."""
        for name in ("lr", "weight_decay"):
            if not options[name] >= 0:
                raise ValueError(f"{name} must be ≥ 0, not {options[name]}")
        if not 0 <= options["momentum"] < 1:
            raise ValueError(f"momentum must be ≥ 0 and < 1, not {options['momentum']}")
        if options["nesterov"] and not options["momentum"]:
            raise ValueError("nesterov=True needs a momentum > 0, not 0")

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own; options that are not named are those of the optimizer."""
        if isinstance(param_group, dict):  # torch says it if not
            self.check(self.defaults | param_group)
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient, or none if something is wrong with one of them.

        closure: evaluates the model and returns the loss, which is returned. It is called once.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # groups with equal options, one a layer perhaps, are updated in one go
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
