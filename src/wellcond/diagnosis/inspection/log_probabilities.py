"""What torch's losses get where they take logarithms of probabilities, wherever a loss or a step calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from wellcond.diagnosis.inspection.outputs import is_normalized

WATCHED: dict[Any, str] = {F.kl_div: "kl_div", F.ctc_loss: "ctc_loss", torch.ctc_loss: "ctc_loss"}
"""Losses that take logarithms of probabilities, and cannot know whether they get them."""


class LogArgument(NamedTuple):
    """What one call gets.

    Attributes:
        function: Name of the loss.
        shape: Shape of what it gets.
        normalized_dims: Dimensions over which that, or its exponential, sums to one.
        are_probabilities: Whether it is that itself, with nothing below zero: no logarithm was taken.
        total: Sum of the exponentials over the last dimension, the median of all places.
    """

    function: str
    shape: tuple[int, ...]
    normalized_dims: frozenset[int]
    are_probabilities: bool
    total: float


class LogProbabilities(TorchFunctionMode):
    """Notes, while it is active, what such losses get from the model."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[LogArgument] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in WATCHED:
            first = next(iter([*args, *(kwargs or {}).values()]), None)
            if isinstance(first, Tensor) and first.requires_grad and first.dim() > 1:
                self._look_at(WATCHED[func], first.detach().double())
        return func(*args, **(kwargs or {}))

    def _look_at(self, name: str, values: Tensor) -> None:
        dims = frozenset(dim for dim in range(values.dim()) if is_normalized(values, dim))
        are_probabilities = bool(dims) and bool((values >= 0).all())
        total = float(values.logsumexp(-1).median().exp())
        self.seen.append(LogArgument(name, tuple(values.shape), dims, are_probabilities, total))
