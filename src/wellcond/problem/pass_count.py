"""`PassCount`: what the passes over a problem have cost."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wellcond.network.isolation.arithmetic import precision_now
from wellcond.network.isolation.precision import scaled_gradient
from wellcond.results import Cost


class PassCount:
    """Counts forward and backward passes of batches, products with curvature matrices, and passes of copies."""

    def __init__(self) -> None:
        self._forward_passes = self._backward_passes = 0
        self._copies_and_products = Cost()

    def _counted(self) -> Cost:
        return self._copies_and_products + Cost(self._forward_passes, self._backward_passes)

    def count_products(self, matvecs: int, passes: float) -> None:
        """Add products with a curvature matrix, and the forward+backward passes of one batch that they took."""
        self._copies_and_products += Cost(matvecs=matvecs, product_passes=passes)

    def count_copies(self, cost: Cost) -> None:
        """Add the passes of copies of the model."""
        self._copies_and_products += cost

    def count_backward(self) -> None:
        """Count the backward pass of one batch."""
        self._backward_passes += 1

    def gradient(self, outputs: Any, inputs: Any, grad_outputs: Any = None, **options: Any) -> tuple[Any, ...]:
        """`torch.autograd.grad`, counted as the backward pass of one batch.

        Where passes are computed as in training, the loss is scaled as there, and the gradient divided again.
        """
        self.count_backward()
        now = precision_now()
        if now is not None and now.scaler is not None and isinstance(outputs, Tensor) and grad_outputs is None:
            return scaled_gradient(outputs, inputs, float(now.scaler["scale"]), **options)[0]
        gradients: tuple[Any, ...] = torch.autograd.grad(outputs, inputs, grad_outputs, **options)
        return gradients
