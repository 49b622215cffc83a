"""Whether a layer that overrides `forward` still computes what the rule of its type says."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.network.layers import described_forward
from wellcond.problem.batch_losses import Gradients
from wellcond.problem.problem import Problem


class RuleCheck:
    """Compares autograd's gradient of a layer's weight with Σ_t g_t x_tᵀ, which the rule implies.

    Args:
        problem: The model, loss and data.
        module: The layer.
    """

    def __init__(self, problem: Problem, module: nn.Module) -> None:
        self._module: Any = module
        self._weight = next((name for name, p in problem.params.items() if p is getattr(module, "weight", None)), None)
        self._calls: list[tuple[Tensor, Tensor]] = []  # since the last comparison
        self._is_confirmed = self._is_refuted = False

    def can_read(self, x: Any, output: Any) -> bool:
        """Whether torch's layer of this type takes the same input, and returns an output of the same shape."""
        try:
            with torch.no_grad():
                expected = self._as_described(x)
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
            expected = None
        fits = isinstance(expected, Tensor) and isinstance(output, Tensor) and expected.shape == output.shape
        self._is_refuted |= not fits
        return fits

    def add_call(self, x: Any, gradient: Tensor) -> None:
        """Add the input of one call and the gradient of its output."""
        if self._weight is not None and not self._is_refuted:
            self._calls.append((x.detach(), gradient.detach()))

    def compare(self, gradients: Gradients) -> None:
        """After a backward pass: check that the calls explain the gradient of the weight."""
        calls, self._calls = self._calls, []
        if self._weight is None or not calls or self._is_refuted:
            return
        weight, gradient = self._module.weight, gradients[self._weight]
        missing = torch.zeros_like(weight, dtype=torch.float64) if gradient is None else gradient.double()
        size = rounding = 0.0
        for x, g in calls:
            with torch.enable_grad():
                h = self._as_described(x)
            (implied,) = torch.autograd.grad(h, weight, g.to(h.dtype))
            missing = missing - implied
            size += float(implied.double().norm())
            # rows that cancel leave the rounding of their products
            rounding += torch.finfo(g.dtype).eps * float(g.double().norm()) * float(x.double().norm())
        eps = max(torch.finfo(t.dtype).eps for t in (weight, calls[0][1]))
        self._is_refuted = not float(missing.norm()) <= math.sqrt(eps) * size + 10 * rounding
        self._is_confirmed = True

    @property
    def why_not_believed(self) -> str:
        """Empty where all comparisons agree."""
        kind = type(self._module).__name__
        if self._is_refuted:
            return (
                f"{kind} has a forward of its own, and the gradient of its weight does not follow from its input and "
                "the gradient of its output: it has no Σx ⊗ Σ∇h"
            )
        if self._is_confirmed:
            return ""
        return (
            f"{kind} has a forward of its own, which only a gradient of its weight can confirm, and it has none: it "
            "is frozen, parametrized or not used"
        )

    def _as_described(self, x: Tensor) -> Any:
        x = x.detach().to(self._module.weight.dtype) if x.is_floating_point() else x
        return described_forward(self._module)(self._module, x)
