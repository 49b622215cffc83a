"""Predictions and targets of a training step that are compared as (N, 1) and (N,), each with all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.overrides import TorchFunctionMode

DIFFERENCES = frozenset({"sub", "subtract", "__sub__"})
LOSSES = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
"""They broadcast what they compare, and warn of it."""
PRODUCTS = frozenset({"mul", "multiply", "__mul__", "__rmul__"})
"""What they weigh: (N,) logarithms of probabilities by (N, 1) rewards."""


class Broadcast(NamedTuple):
    """One comparison.

    Attributes:
        function: Its name.
        predicted: Shape of what depends on the weights.
        fixed: Shape of what does not.
    """

    function: str
    predicted: tuple[int, ...]
    fixed: tuple[int, ...]


class Broadcasts(TorchFunctionMode):
    """Notes, while it is active, comparisons of N numbers with N others that give N × N.

    One of the two depends on the weights and the other does not. In a difference it must be the column: (N,) weights
    are subtracted from a column of inputs, as centers, on purpose. In a product it must be computed, and no parameter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Broadcast] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in DIFFERENCES | LOSSES | PRODUCTS:
            both = [*args, *(kwargs or {}).values()][:2]
            if len(both) == 2 and all(isinstance(t, Tensor) for t in both):
                self._look_at(name, *both)
        return func(*args, **(kwargs or {}))

    def _look_at(self, name: str, first: Tensor, second: Tensor) -> None:
        predicted, fixed = (first, second) if first.requires_grad else (second, first)
        if not predicted.requires_grad or fixed.requires_grad or not predicted.dim() or len(predicted) < 2:
            return
        if {tuple(predicted.shape), tuple(fixed.shape)} != {(len(predicted),), (len(predicted), 1)}:
            return
        if name in LOSSES or (predicted.dim() == 2 if name in DIFFERENCES else predicted.grad_fn is not None):
            self.found.append(Broadcast(name, tuple(predicted.shape), tuple(fixed.shape)))
