"""The precision that a model is trained in: autocast, and the scale of its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LOWER = 2.0**4
"""Factor by which a loss scale is lowered until gradients are finite."""


@dataclass(frozen=True)
class Precision:
    """How a script computes its training steps.

    Attributes:
        autocast: Dtype of the `torch.autocast` around the model and the loss; None: there is none.
        scaler: State of the `GradScaler`; None: there is none, or it is off.
    """

    autocast: torch.dtype | None = None
    scaler: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        words = "full precision" if self.autocast is None else f"{str(self.autocast).removeprefix('torch.')} autocast"
        return words if self.scaler is None else f"{words} with a loss scale of {self.scaler['scale']:g}"


def scaled_gradient(loss: Tensor, inputs: Any, scale: float, **options: Any) -> tuple[tuple[Any, ...], float]:
    """The gradient of a loss in float32, by way of a multiple of it, and the scale with which it is finite.

    A `GradScaler` leaves out the steps in which a gradient overflows, and lowers its scale. Here the scale is lowered
    at once, down to 1.
    """
    tensors = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    options |= {"retain_graph": True}
    while True:
        scaled = torch.autograd.grad(loss.float() * scale, tensors, **options)
        if scale <= 1 or all(g is None or bool(g.isfinite().all()) for g in scaled):
            return tuple(None if g is None else g / scale for g in scaled), scale
        scale = max(scale / LOWER, 1.0)
