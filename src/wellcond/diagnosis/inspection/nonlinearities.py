"""Nonlinearities by the functions that compute them, and where the bounded ones are flat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wellcond.network.taps import WatchedRelu

FLAT = 0.1
"""A nonlinearity is saturated where its slope is below this share of its largest one."""
FUNCTIONS: dict[Any, str] = WatchedRelu.FUNCTIONS | {
    function: name
    for name, functions in {
        "tanh": (torch.tanh, torch.tanh_, F.tanh, Tensor.tanh, Tensor.tanh_),
        "sigmoid": (torch.sigmoid, torch.sigmoid_, F.sigmoid, Tensor.sigmoid, Tensor.sigmoid_, torch.special.expit),
        "hardtanh": (F.hardtanh,),
        "relu6": (F.relu6,),
        "gelu": (F.gelu,),
        "silu": (F.silu,),
        "elu": (F.elu,),
        "selu": (F.selu, torch.selu),
        "leaky_relu": (F.leaky_relu,),
        "softplus": (F.softplus,),
    }.items()
    for function in functions
}
SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": lambda y: 1 - y.square(),
    "sigmoid": lambda y: 4 * y * (1 - y),
}
"""Slopes of bounded functions as functions of their output, relative to the largest slope."""
RECTIFIERS = ("relu", "relu6")


def is_flat(function: str, output: Tensor) -> Tensor:
    """Where a bounded function is saturated, by its output.

    >>> is_flat("tanh", torch.tensor([0.0, 0.9, 0.99]))
    tensor([False, False,  True])
    """
    return SLOPES[function](output) < FLAT
