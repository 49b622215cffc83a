"""What a training step compares: predictions with numbers that depend on no weight, their shapes and their sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.overrides import TorchFunctionMode

from wellcond.diagnosis.inspection.data import wide
from wellcond.network.guarded import is_inside_vmap

DIFFERENCES = frozenset({"sub", "subtract", "__sub__"})
LOSSES = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"})
"""They broadcast what they compare, and warn of it."""
PRODUCTS = frozenset({"mul", "multiply", "__mul__", "__rmul__"})
"""What they weigh: (N,) logarithms of probabilities by (N, 1) rewards."""


class Broadcast(NamedTuple):
    """A comparison of N numbers with N others, each with all.

    Attributes:
        function: Its name.
        predicted: Shape of what depends on the weights.
        fixed: Shape of what does not.
    """

    function: str
    predicted: tuple[int, ...]
    fixed: tuple[int, ...]


class Sizes(NamedTuple):
    """How large predictions and their targets are, where a loss of torch's takes the difference.

    Attributes:
        predicted: RMS of what depends on the weights.
        fixed: RMS of what does not.
    """

    predicted: float
    fixed: float


class Comparisons(TorchFunctionMode):
    """Notes, while it is active, what is compared with what: one of the two depends on the weights, the other does not.

    Attributes:
        broadcasts: Those of N numbers with N others that give N × N. In a difference what depends on the weights must
            be the column: (N,) weights are subtracted from a column of inputs, as centers, on purpose. In a product it
            must be computed, and no parameter.
        sizes: Those that torch's losses of differences make.
    """

    def __init__(self) -> None:
        super().__init__()
        self.broadcasts: list[Broadcast] = []
        self.sizes: list[Sizes] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in DIFFERENCES | LOSSES | PRODUCTS and not is_inside_vmap():
            both = [*args, *(kwargs or {}).values()][:2]
            if len(both) == 2 and all(isinstance(t, Tensor) for t in both):
                self._look_at(name, *both)
        return func(*args, **(kwargs or {}))

    def _look_at(self, name: str, first: Tensor, second: Tensor) -> None:
        predicted, fixed = (first, second) if first.requires_grad else (second, first)
        if not predicted.requires_grad or fixed.requires_grad:
            return
        if name in LOSSES:
            self.sizes.append(Sizes(_rms(predicted), _rms(fixed)))
        if not predicted.dim() or len(predicted) < 2:
            return
        if {tuple(predicted.shape), tuple(fixed.shape)} != {(len(predicted),), (len(predicted), 1)}:
            return
        if name in LOSSES or (predicted.dim() == 2 if name in DIFFERENCES else predicted.grad_fn is not None):
            self.broadcasts.append(Broadcast(name, tuple(predicted.shape), tuple(fixed.shape)))


def _rms(t: Tensor) -> float:
    return float(wide(t.detach()).square().mean().sqrt())
