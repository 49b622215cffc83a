"""Which forward passes belong to the gradient that an optimizer is about to use."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from wellcond.optim.bnp_layer import Layer
from wellcond.optim.input_statistics import InputStatistics


class Passes:
    """The statistics that belong to the gradient now in `.grad` of a layer, whichever way that gradient came about.

    A call of the layer counts once the gradient of its output has arrived *and* the gradient of its weight has been
    accumulated: passes that are only looked at, recomputed by checkpointing, or differentiated for the input's sake
    leave nothing. They are dropped with the gradient they belong to, as after a step that GradScaler skipped.
    """

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self._pending: list[InputStatistics] = []
        self._arriving: list[InputStatistics] = []
        self._backward = -1
        self._adds_up = False
        self._version = -1
        self._hooked: Tensor | None = None
        self._hook: RemovableHandle | None = None

    def expect(self) -> bool:
        """Before a call is counted: whether the layer has anything to train. Follows layers that thaw."""
        anchor = self.layer.anchor
        if anchor is not self._hooked:
            self.remove()
            self._hooked = anchor
            if anchor is not None:
                self._hook = anchor.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
        return anchor is not None

    def arrive(self, statistics: InputStatistics) -> None:
        """The gradient of an output has come back: the call that it belongs to had these statistics."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward, self._adds_up = backward, self._is_gradient_kept()
            self._arriving.clear()
        self._arriving.append(statistics)

    def take(self) -> list[InputStatistics]:
        """The statistics behind the gradient in `.grad`; the next gradient starts anew."""
        taken, self._pending = self._pending, []
        return taken

    def remove(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._hooked = None

    def _accumulated(self, anchor: Tensor) -> None:
        if not self._adds_up:
            self._pending.clear()
        self._pending.extend(self._arriving)
        self._arriving.clear()
        self._version = -1 if anchor.grad is None else anchor.grad._version

    def _is_gradient_kept(self) -> bool:
        """Whether the backward pass that now begins adds to what the last one left in `.grad`."""
        gradient = None if self._hooked is None else self._hooked.grad
        if gradient is None:
            return False
        # written to since the last backward pass: zeroed, or only scaled or averaged?
        return gradient._version == self._version or bool(gradient.any())
