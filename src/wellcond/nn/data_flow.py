"""Which layer is directly before or after which batch normalization, determined by running the model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.network.layers import is_affine
from wellcond.network.recording import Call, record

RESHAPING = frozenset((
    "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute",
    "movedim", "moveaxis", "swapaxes", "swapdims", "T", "mT", "H", "mH", "data", "real",
))  # fmt: skip
"""Functions and attributes that return the same values in another shape."""


class CannotMerge(Exception):
    """A norm cannot be merged exactly into its neighbor; the message says why."""


class DataFlow:
    """One forward pass in evaluation mode, and the neighbors of each batch normalization in it.

    Two modules are neighbors if the tensor that one returned is the one that the other received, perhaps in another
    shape, and no other call used it.

    Args:
        model: A model that may be run and thrown away.
        inputs: Its arguments.

    Raises:
        Unsupported: The model cannot be run.
    """

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self._recording = record(model, inputs, lambda module: isinstance(module, _BatchNorm) or is_affine(module))
        if self._recording.error is not None:
            raise self._recording.error
        self.outputs = [value.tensor for value in self._recording.outputs]
        self.calls: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        """Input and output of each layer and norm, in the order of their calls."""
        self._modules = dict(model.named_modules())
        self._owners = Counter(id(p) for module in model.modules() for p in module._parameters.values())
        self._uses: dict[int, list[Tensor | None]] = defaultdict(list)
        """By the tensor's id, one entry per use: the same values in another shape, or None for any other use."""
        self._count_uses()
        self._computed_by: dict[int, tuple[str, int]] = {}
        """The tensor's id → the layer that computed it, and the tensor's axis of channels."""
        self._taken_by: dict[int, tuple[str, int]] = {}
        for name, calls in self.calls.items():
            if is_affine(layer := self._modules[name]):
                for x, output in calls:
                    self._taken_by[id(x)] = name, _channel_axis(layer, x)
                    self._hand_on(name, output, _channel_axis(layer, output))

    def layer_before(self, norm: str) -> str:
        """The layer whose output is this norm's input."""
        [(x, _)] = self.calls[norm]
        return self._neighbor(self._computed_by.get(id(x)), x, 1, "before")

    def layer_after(self, norm: str) -> str:
        """The layer whose input is this norm's output."""
        [(_, output)] = self.calls[norm]
        shapes = list(self._shapes(output, 1))
        x, axis = next((shape for shape in shapes if id(shape[0]) in self._taken_by), shapes[-1])
        return self._neighbor(self._taken_by.get(id(x)), x, axis, "after")

    def merged_back(self, norm: str, layer: str) -> None:
        """Record that the layer now computes the norm's output."""
        [(_, output)] = self.calls[norm]
        self._hand_on(layer, output, 1)

    def merged_forwards(self, norm: str, layer: str) -> None:
        """Record that the layer now takes the norm's input."""
        [(x, _)] = self.calls[norm]
        self._taken_by[id(x)] = layer, 1

    def _count_uses(self) -> None:
        for call in self._recording.calls:
            for value in call.takes:
                if value not in call.gives:  # a call that returns it untouched, as dropout in evaluation, is no use
                    self._uses[id(value.tensor)].append(_reshaped(call, value.tensor))
            if call.module is not None:
                for parameter in call.module.parameters():
                    self._uses[id(parameter)].append(None)
                if call.takes and call.gives:
                    self.calls[call.name].append((call.takes[0].tensor, call.gives[0].tensor))
        for tensor in self.outputs:
            self._uses[id(tensor)].append(None)

    def _neighbor(self, candidate: tuple[str, int] | None, between: Tensor, axis: int, side: str) -> str:
        if candidate is None:
            raise CannotMerge(f"there is no layer to merge it into directly {side} it")
        name, channel_axis = candidate
        parameters = [p for p in self._modules[name]._parameters.values() if p is not None]
        if axis != channel_axis:
            raise CannotMerge(f"its channels are not those of {name!r}")
        if len(self._uses[id(between)]) > 1:
            raise CannotMerge(f"the tensor between it and {name!r} is used elsewhere too")
        if len(self.calls[name]) > 1:
            raise CannotMerge(f"{name!r} is called {len(self.calls[name])} times")
        if any(self._owners[id(p)] > 1 or len(self._uses[id(p)]) > 1 for p in parameters):
            raise CannotMerge(f"a parameter of {name!r} is used elsewhere too")
        return name

    def _hand_on(self, layer: str, output: Tensor, axis: int) -> None:
        shapes = self._shapes(output, axis)
        self._computed_by.update({id(tensor): (layer, channel_axis) for tensor, channel_axis in shapes})

    def _shapes(self, tensor: Tensor, axis: int) -> Iterator[tuple[Tensor, int]]:
        """A tensor and one of its axes, and the same after each call that only changes the shape."""
        yield tensor, axis
        while len(self._uses[id(tensor)]) == 1 and (view := self._uses[id(tensor)][0]) is not None:
            # both are dense and share their memory: an axis of the same length and stride holds the same channels
            channels = tensor.shape[axis], tensor.stride(axis)
            same = [a for a in range(view.dim()) if (view.shape[a], view.stride(a)) == channels]
            if len(same) != 1:
                break
            tensor, axis = view, same[0]
            yield tensor, axis


def _channel_axis(layer: Any, tensor: Tensor) -> int:
    return tensor.dim() - 1 - len(getattr(layer, "kernel_size", ()))


def _reshaped(call: Call, tensor: Tensor) -> Tensor | None:
    """The result of a call, if it is the tensor in another shape."""
    if call.name not in RESHAPING or call.module is not None or len(call.gives) != 1:
        return None
    view = call.gives[0].tensor
    return view if view.data_ptr() == tensor.data_ptr() and view.numel() == tensor.numel() else None
