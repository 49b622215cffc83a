"""What a training step would take on an ordinary core, by what it computes: the same on a busy machine."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from wellcond.problem.problem import Problem

CALL_SECONDS = 2e-6
"""Calling an operator. With these numbers perceptrons, convolutional and recurrent networks and transformers, whose
steps take 0.1 to 15 ms on one core of a server of 2024, are within a factor of two of what they take there."""
CONVOLUTION_SECONDS = 40e-6
"""Setting up a convolution or its gradient."""
FLOP_SECONDS = 1 / 110e9
"""A floating point operation of a matrix product or a convolution."""
ELEMENT_SECONDS = 3e-10
"""Writing one number."""
CONVOLUTIONS = (torch.ops.aten.convolution, torch.ops.aten.convolution_backward)


class _Counted(TorchDispatchMode):
    """Adds up what the operators that run inside would take."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        written = sum(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        self.seconds += CALL_SECONDS + ELEMENT_SECONDS * written
        self.seconds += CONVOLUTION_SECONDS * (func._overloadpacket in CONVOLUTIONS)
        if func._overloadpacket in flop_registry:
            flops = flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=result)
            self.seconds += FLOP_SECONDS * flops
        return result


def nominal_step_seconds(problem: Problem) -> float:
    """Seconds of a forward and a backward pass of the first batch on an ordinary core."""
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        with _Counted() as counted:
            problem.gradient(problem.training_loss(index, batch), [*problem.params.values()], allow_unused=True)
    seconds: float = counted.seconds
    return seconds
