"""ReLUs by another name: `x.clamp(min=0)`, `torch.where(x > 0, x, 0)`, `x * (x > 0)`, `torch.maximum(x, zero)`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wellcond.network.calling import tensors_in

FUNCTIONS: frozenset[Any] = frozenset(
    {
        *(torch.clamp, torch.clamp_, torch.clamp_min, torch.clamp_min_, torch.clip, torch.clip_),
        *(Tensor.clamp, Tensor.clamp_, Tensor.clamp_min, Tensor.clamp_min_, Tensor.clip, Tensor.clip_),
        *(torch.maximum, torch.max, torch.fmax, Tensor.maximum, Tensor.max, Tensor.fmax),
        *(torch.where, Tensor.where, torch.threshold, F.threshold, Tensor.masked_fill, torch.masked_fill),
        *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__),
    }
)
"""Functions that are a ReLU for some of their arguments."""


def is_rectified(args: Any, output: Any) -> bool:
    """Whether the output of one of these functions is max(x, 0) of one of its arguments, and some x is cut off.

    >>> x = torch.tensor([-1.0, 2.0], requires_grad=True)
    >>> is_rectified((x,), x.clamp(min=0)), is_rectified((x,), x.clamp(min=-1)), is_rectified((x, x), x * x)
    (True, False, False)
    """
    if not isinstance(output, Tensor) or not output.requires_grad or not output.is_floating_point():
        return False
    return any(_is_relu_of(x, output) for x in tensors_in(args) if x.requires_grad and x.shape == output.shape)


def _is_relu_of(x: Tensor, output: Tensor) -> bool:
    is_cut = bool((x < 0).any()) or (x is output and bool((x == 0).any()))  # in place, x is the output
    return is_cut and torch.equal(output, x.relu())
