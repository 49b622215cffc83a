"""Which forward passes belong to the gradient that an optimizer is about to use."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from wellcond.optim.bnp_layer import Layer
from wellcond.optim.input_statistics import InputStatistics, merged


class Passes:
    """The statistics that belong to the gradient now in `.grad` of a layer, whichever way that gradient came about.

    A call of the layer counts once, when the gradient of its output comes back in a backward pass that accumulates the
    layer's own gradient: passes that are only looked at, recomputed by checkpointing, or differentiated for the
    input's sake leave nothing. They are dropped with the gradient they belong to, as after a step that GradScaler
    skipped.
    """

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self._counted: set[int] = set()
        self._statistics: InputStatistics | None = None
        """Of all calls counted together: any number of micro-batches takes the memory of one."""
        self._asked_for: InputStatistics | None = None
        """Of the last call whose gradient `torch.autograd.grad` was asked for: a user may put that into `.grad`."""
        self._anchor: Tensor | None = None
        self._kind: tuple[torch.device, torch.dtype] | None = None
        self._accumulator: Any = None
        self._backward = -1
        self._trains = self._is_asked = False
        self._expected_version = 0

    def expect(self) -> bool:
        """Before a call is counted: whether the layer has anything to train. Follows layers that thaw or move."""
        anchor = self.layer.anchor
        if anchor is None:
            return False
        kind = anchor.device, anchor.dtype
        if anchor is not self._anchor or kind != self._kind:  # autograd makes a new accumulator for a moved parameter
            self._anchor, self._kind, self._accumulator = anchor, kind, get_gradient_edge(anchor).node
        return True

    def arrive(self, call: int, statistics: InputStatistics) -> None:
        """The gradient of an output has come back; the call that gave that output had these statistics."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            self._begin()
        if self._trains and call not in self._counted:  # two losses may send two gradients through one call
            self._counted.add(call)
            self._statistics = statistics if self._statistics is None else merged([self._statistics, statistics])
        elif self._is_asked:
            self._asked_for = statistics

    def take(self) -> InputStatistics | None:
        """The statistics behind the gradient in `.grad`; the next gradient starts anew."""
        taken = self._asked_for if self._statistics is None else self._statistics
        self._clear()
        return taken

    def _begin(self) -> None:
        """A backward pass is under way: will it write `.grad`, and does it add to what earlier ones left there?"""
        try:
            self._trains, self._is_asked = bool(torch._C._will_engine_execute_node(self._accumulator)), False
        except RuntimeError:  # torch.autograd.grad() was asked for this very gradient, and leaves `.grad` alone
            self._trains, self._is_asked = False, True
        if not self._trains or self._anchor is None:
            return
        gradient = self._anchor.grad
        if gradient is None:
            self._clear()
            self._expected_version = 0
            return
        version = gradient._version
        if self._counted and version != self._expected_version and not gradient.any():
            self._clear()  # it was written to since the last backward pass: zeroed
        self._expected_version = version + 1  # accumulation writes once

    def _clear(self) -> None:
        self._counted.clear()
        self._statistics = self._asked_for = None
