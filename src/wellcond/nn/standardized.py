"""Inputs standardized by the data: a model that first computes (x − mean)/std of its inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from wellcond.errors import Unsupported
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.isolation.copies import copied
from wellcond.network.layers import feature_dim, has_channels_first

SHARED_MAXIMUM = 0.5
"""Share of the columns of a table with the same largest value, above which the columns are in one unit.

Pixels of flattened images reach the same white in most columns, and columns at the border are almost always black: a
standard deviation per column would blow up the few values there. So all columns share one mean and one standard
deviation. Measured columns (an age, a price) rarely have a maximum in common.
"""


class Standardized(nn.Module):
    """A model that is called with (x − mean)/std of its inputs.

    Tensors of integers, such as tokens, and tensors of zeros and ones, such as masks, are passed on unchanged.

    Args:
        model: The model.
        moments: Mean and standard deviation of each tensor among the inputs, of a shape that broadcasts; None for a
            tensor that is passed on unchanged.
    """

    def __init__(self, model: nn.Module, moments: Iterable[tuple[Tensor, Tensor] | None]) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self._count = 0
        for i, each in enumerate(moments):
            mean, std = each or (None, None)
            self.register_buffer(f"mean_{i}", mean)
            self.register_buffer(f"std_{i}", std)
            self._count = i + 1

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves, form = tree_flatten((args, kwargs))
        for i, leaf in enumerate(leaves[: self._count]):
            mean, std = getattr(self, f"mean_{i}"), getattr(self, f"std_{i}")
            if mean is not None and isinstance(leaf, Tensor):
                leaves[i] = (leaf - mean) / std
        args, kwargs = tree_unflatten(leaves, form)
        return self.model(*args, **kwargs)


@torch.inference_mode(False)  # tensors created in inference mode cannot be trained
@own_arithmetic()
def with_standardized_inputs(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Return a copy of the model that first standardizes its inputs, (x − mean)/std, by the statistics of batches.

    Each feature has its own mean and standard deviation: a column of (N, d) or (N, T, d), a channel of an image. If
    more than half of the columns of a table have the same largest value, as pixels do, all columns share one mean and
    one standard deviation. A constant feature is only centered. The statistics are buffers: they are saved with the
    model.

    Args:
        model: The model, which is not changed.
        batches: An iterable of `(inputs, targets)`, which is read once; or one such pair.

    Returns:
        The new model; the old one is its `.model`.

    Raises:
        Unsupported: There is nothing to standardize, or the model cannot be copied.

    Example:
        >>> model = with_standardized_inputs(nn.Identity(), [(torch.tensor([[1.0, 10.0], [3.0, 30.0]]), None)])
        >>> model(torch.tensor([[2.0, 40.0]]))
        tensor([[0., 2.]])
    """
    return standardized(copied(model), batches)


def standardized(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """The model itself, not a copy, with standardized inputs."""
    if isinstance(batches, (tuple, list)) and len(batches) == 2 and not isinstance(batches[0], (tuple, list)):
        batches = [batches]
    channels_first = has_channels_first(model)
    seen: list[_Moments | None] = []
    for inputs, *_ in batches:
        leaves = _leaves(inputs)
        seen = seen or [_Moments(leaf, channels_first) if _is_scalable(leaf) else None for leaf in leaves]
        for moments, leaf in zip(seen, leaves, strict=True):
            if moments is not None:
                moments.add(leaf)
    if not any(seen):
        raise Unsupported("there is no tensor of real numbers among the inputs, so nothing to standardize.")
    reference = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return Standardized(model, [None if moments is None else moments.mean_and_std(reference) for moments in seen])


def _leaves(inputs: Any) -> list[Any]:
    """The leaves of the inputs, in the order in which the model gets them."""
    arguments: Any = ((inputs,), {})
    if isinstance(inputs, (tuple, list)):
        arguments = (tuple(inputs), {})
    elif hasattr(inputs, "keys"):
        arguments = ((), dict(inputs))
    return tree_flatten(arguments)[0]


def _is_scalable(leaf: Any) -> bool:
    if (
        not isinstance(leaf, Tensor)
        or not leaf.is_floating_point()
        or leaf.dim() == 0
        or leaf.layout is not torch.strided
    ):
        return False
    return not bool(((leaf == 0) | (leaf == 1)).all())


class _Moments:
    """Sums over one input tensor, in float64, for every feature."""

    def __init__(self, x: Tensor, channels_first: bool) -> None:
        self._feature = feature_dim(x, channels_first=channels_first)
        self._others = [axis for axis in range(x.dim()) if axis != self._feature] if x.dim() > 1 else [0]
        self._is_table = x.dim() == 2
        self._count, self._sum, self._squares = 0, torch.zeros(()).double(), torch.zeros(()).double()
        self._largest = torch.tensor(-torch.inf).double()

    def add(self, x: Tensor) -> None:
        x = x.detach().to("cpu", torch.float64)
        self._count += x.numel() // (x.shape[self._feature] if x.dim() > 1 else 1)
        self._sum = self._sum + x.sum(self._others, keepdim=True)
        self._squares = self._squares + x.square().sum(self._others, keepdim=True)
        self._largest = torch.maximum(self._largest, x.amax(self._others, keepdim=True))

    def mean_and_std(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, of a shape that broadcasts against a batch."""
        mean, squares = self._sum / self._count, self._squares / self._count
        if self._is_table and (self._largest == self._largest.max()).double().mean() > SHARED_MAXIMUM:
            mean, squares = mean.mean(), squares.mean()
        std = (squares - mean.square()).clamp_min(0).sqrt()
        is_constant = std <= 1e-7 * (1 + mean.abs())  # rounding leaves this much of a constant
        return mean.to(like), torch.where(is_constant, 1.0, std).to(like)
