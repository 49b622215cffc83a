"""Who hands what to whom in a model, seen by running it: no tracing, so it works for any Python code."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wellcond.network.example_inputs import call, evaluating, tensors_in
from wellcond.network.layers import is_affine
from wellcond.network.taps import tapped

SHAPE_READERS = frozenset((
    "dim", "ndimension", "size", "stride", "numel", "nelement", "__len__", "is_contiguous", "is_floating_point",
    "is_complex", "element_size", "get_device", "__get__",
))  # fmt: skip
"""Calls that say nothing about values, unless they return a tensor; `__get__` is that of `x.shape` or `x.dtype`."""
SHAPE_CHANGERS = frozenset((
    "view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute",
    "movedim", "moveaxis", "swapaxes", "swapdims", "__get__",
))  # fmt: skip
"""Calls that give the same values in another shape; `__get__` is that of `x.mT`."""


class Uses(TorchFunctionMode):
    """Counts the calls that use each tensor.

    of: by the tensor's id, one entry a call: the same values in another shape, where the call made no more of it.

    >>> import torch
    >>> x = torch.ones(2, 3)
    >>> with Uses() as uses:
    ...     _ = x.relu() + x.shape[0], x.flatten()
    >>> len(uses.of[id(x)]), uses.of[id(x)][1].shape
    (2, torch.Size([6]))
    """

    def __init__(self) -> None:
        super().__init__()
        self.of: dict[int, list[Tensor | None]] = defaultdict(list)
        self._alive: list[Any] = []  # or an id could be given twice

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = {id(t): (t, _version(t)) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **kwargs)
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        self._alive += [given, made]
        name = getattr(func, "__name__", "")
        if not made and name in SHAPE_READERS:
            return result
        for key, (tensor, version) in given.items():
            if any(t is tensor for t in made) and _version(tensor) == version:
                continue  # handed on untouched, as by dropout in evaluation
            is_view = name in SHAPE_CHANGERS and len(made) == 1 and _shares_values(made[0], tensor)
            self.of[key].append(made[0] if is_view else None)
        return result


class CannotMerge(Exception):
    """Why a norm cannot be merged exactly into the layer beside it."""


class DataFlow:
    """One forward pass in evaluation mode: which layer stands right before or right behind which batch normalisation.

    It does if the tensor that one returned is the one that the other received, perhaps in another shape, and no other
    call used it. The model is one that may be run and thrown away.
    """

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self.modules = {name: m for name, m in model.named_modules() if isinstance(m, _BatchNorm) or is_affine(m)}
        self.calls: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        """What each module received and returned, the modules in the order of their calls."""
        with evaluating(model), tapped(self.modules, self._on_call), Uses() as uses:
            self.outputs = tensors_in(call(model, inputs))
        self.uses = uses.of
        for tensor in self.outputs:
            self.uses[id(tensor)].append(None)
        self._owners = Counter(id(p) for module in model.modules() for p in module._parameters.values())
        self._made_by: dict[int, tuple[str, int]] = {}
        """The tensor's id → the layer and the tensor's axis of channels."""
        self._taken_by: dict[int, tuple[str, int]] = {}
        for name, calls in self.calls.items():
            if is_affine(layer := self.modules[name]):
                for x, output in calls:
                    self._taken_by[id(x)] = name, _channel_axis(layer, x)
                    self._hand_on(name, output, _channel_axis(layer, output))

    def layer_before(self, norm: str) -> str:
        """The layer whose output is this norm's input."""
        [(x, _)] = self.calls[norm]
        return self._neighbour(self._made_by.get(id(x)), x, 1, "before")

    def layer_behind(self, norm: str) -> str:
        """The layer whose input is this norm's output."""
        [(_, output)] = self.calls[norm]
        stages = list(self._stages(output, 1))
        x, axis = next((stage for stage in stages if id(stage[0]) in self._taken_by), stages[-1])
        return self._neighbour(self._taken_by.get(id(x)), x, axis, "behind")

    def merged_back(self, norm: str, layer: str) -> None:
        """From now on the layer makes what the norm made."""
        [(_, output)] = self.calls[norm]
        self._hand_on(layer, output, 1)

    def merged_forwards(self, norm: str, layer: str) -> None:
        """From now on the layer takes what the norm took."""
        [(x, _)] = self.calls[norm]
        self._taken_by[id(x)] = layer, 1

    def _neighbour(self, found: tuple[str, int] | None, between: Tensor, axis: int, side: str) -> str:
        if found is None:
            raise CannotMerge(f"no layer to merge it into stands right {side} it")
        name, channel_axis = found
        parameters = [p for p in self.modules[name]._parameters.values() if p is not None]
        if axis != channel_axis:
            raise CannotMerge(f"its channels are not those of {name!r}")
        if len(self.uses[id(between)]) > 1:
            raise CannotMerge(f"what passes between it and {name!r} is used elsewhere too")
        if len(self.calls[name]) > 1:
            raise CannotMerge(f"{name!r} is called {len(self.calls[name])} times")
        if any(self._owners[id(p)] > 1 or len(self.uses[id(p)]) > 1 for p in parameters):
            raise CannotMerge(f"a parameter of {name!r} is used elsewhere too")
        return name

    def _hand_on(self, layer: str, output: Tensor, axis: int) -> None:
        self._made_by.update({id(made): (layer, channel_axis) for made, channel_axis in self._stages(output, axis)})

    def _stages(self, tensor: Tensor, axis: int) -> Iterator[tuple[Tensor, int]]:
        """A tensor and an axis of it, and what they become while nothing but the shape changes."""
        yield tensor, axis
        while len(self.uses[id(tensor)]) == 1 and (view := self.uses[id(tensor)][0]) is not None:
            # both are dense and share their memory: an axis of the same length and stride holds the same channels
            channels = tensor.shape[axis], tensor.stride(axis)
            same = [a for a in range(view.dim()) if (view.shape[a], view.stride(a)) == channels]
            if len(same) != 1:
                break
            tensor, axis = view, same[0]
            yield tensor, axis

    def _on_call(self, name: str, _module: nn.Module, x: Any, output: Any) -> None:
        if isinstance(x, Tensor) and isinstance(output, Tensor):
            self.calls[name].append((x, output))


def _channel_axis(layer: Any, tensor: Tensor) -> int:
    return tensor.dim() - 1 - len(getattr(layer, "kernel_size", ()))


def _version(tensor: Tensor) -> int:
    """How often the tensor was written to; an inference tensor does not say, and only a user's input can be one."""
    return 0 if tensor.is_inference() else tensor._version


def _shares_values(view: Tensor, tensor: Tensor) -> bool:
    return view.data_ptr() == tensor.data_ptr() and view.numel() == tensor.numel()
