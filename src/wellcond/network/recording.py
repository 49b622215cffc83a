"""What a forward pass does: its calls in their order, with the values that each takes and gives.

The model is run, not traced symbolically, so any Python code in it works. What is seen is the path it takes on the
given inputs. Code that torch cannot watch (a scripted function, an `autograd.Function`) gives values that no call gave.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from wellcond.errors import Unsupported
from wellcond.network.calling import tensors_in
from wellcond.network.example_inputs import evaluating, run
from wellcond.network.taps import bracketed

SHAPE_READERS = frozenset((
    "dim", "ndimension", "size", "stride", "numel", "nelement", "len", "is_contiguous", "is_floating_point",
    "is_complex", "element_size", "get_device",
))  # fmt: skip
"""Functions that look at no value. Neither does an attribute that is not a tensor, such as `x.shape`."""


@dataclass(frozen=True, eq=False)
class Value:
    """What a tensor holds between two writes to it: an in-place operation gives the same tensor another value.

    Attributes:
        tensor: The tensor, which is kept alive so that its identity stays its own.
        version: How often it had been written to, itself or through a view.
        shape: Its shape at that time.
    """

    tensor: Tensor
    version: int
    shape: torch.Size

    @classmethod
    def of(cls, tensor: Tensor) -> Value:
        """The value of a tensor now."""
        with torch._C.DisableTorchFunction():  # looking at it is not a call of the model
            # an inference tensor has no version; none is written to here, as they can only come from outside
            return cls(tensor, 0 if tensor.is_inference() else tensor._version, tensor.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.tensor is other.tensor and self.version == other.version

    def __hash__(self) -> int:
        return hash((id(self.tensor), self.version))


@dataclass(frozen=True)
class Call:
    """One call of a module or of a function.

    Attributes:
        name: The module's name in the model, or the function's: without underscores, and with `1 / x` as `div(1, x)`.
        module: The module; None for a function.
        inside: The name of the innermost module whose forward pass makes the call.
        args: The positional arguments, with a `Value` in place of each tensor.
        kwargs: The named arguments, likewise.
        gives: What it returned or wrote to; nothing if it raised.
    """

    name: str
    module: nn.Module | None
    inside: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gives: tuple[Value, ...] = ()

    @property
    def takes(self) -> list[Value]:
        """The values among its arguments, each once."""
        return list(dict.fromkeys(leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Value)))


@dataclass(frozen=True)
class Recording:
    """One forward pass.

    Attributes:
        calls: In the order in which they returned.
        inputs: The values that the model received.
        outputs: The values that it returned; nothing if it raised.
        error: Why the model could not be run to its end, if it could not. The last call is then the one that raised,
            if that was a leaf module.
    """

    calls: list[Call] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    error: Unsupported | None = None

    def needed_calls(self) -> list[Call]:
        """The calls that the outputs depend on; all of them if there are no outputs."""
        if self.error is not None:
            return self.calls
        wanted, found = set(self.outputs), list[Call]()
        for call in reversed(self.calls):
            if not wanted.isdisjoint(call.gives):
                wanted.update(call.takes)
                found.append(call)
        return found[::-1]


def record(model: nn.Module, inputs: Any, is_leaf: Callable[[nn.Module], bool]) -> Recording:
    """Run a model once in evaluation mode, without changing anything of it, and note every call.

    Args:
        model: The model.
        inputs: What it is called with: a tensor, a tuple or a dict. It sees copies.
        is_leaf: Which modules count as one call. Other modules are looked into.

    Returns:
        The calls of leaf modules, and of functions outside of them that look at values.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> recording = record(model, torch.ones(4, 2), lambda module: isinstance(module, nn.Linear))
        >>> [(call.name, call.inside, tuple(call.gives[0].shape)) for call in recording.calls]
        [('0', '', (4, 3)), ('relu', '1', (4, 3))]
    """
    recorder = _Recorder(model)
    outside = bracketed(model.modules(), recorder.enter, recorder.leave)
    # what hooks of the model's own do to a value is none of the leaf's doing
    inside = bracketed(filter(is_leaf, model.modules()), recorder.begin, recorder.end, within_hooks=True)
    with evaluating(model), outside, inside, recorder:
        try:
            outputs = [Value.of(tensor) for tensor in tensors_in(run(model, inputs))]
        except Unsupported as error:
            if recorder.leaf is not None:
                recorder.calls.append(recorder.leaf)
            return Recording(recorder.calls, recorder.inputs, error=error)
    return Recording(recorder.calls, recorder.inputs, outputs)


class _Recorder(TorchFunctionMode):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.calls: list[Call] = []
        self.inputs: list[Value] = []
        self.running: list[nn.Module] = []
        self.leaf: Call | None = None
        """The call of the leaf module that is running."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        args, kwargs = _with_values((args, kwargs))
        if not self.running:
            self.inputs = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Value)]
        self.running.append(module)

    def leave(self, module: nn.Module, output: Any) -> None:
        while self.running.pop() is not module:
            pass  # a module that raised, and someone caught it

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.leaf is None:
            self.leaf = Call(self.names[module], module, self._inside(-2), *_with_values((args, kwargs)))

    def end(self, module: nn.Module, output: Any) -> None:
        if self.leaf is not None and self.leaf.module is module:
            self._note(self.leaf, output)
            self.leaf = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.leaf is not None or not self.running:
            return func(*args, **kwargs)
        name, is_reflected, is_attribute = _name(func)
        values, named = _with_values((args, kwargs))
        output = func(*args, **kwargs)
        if isinstance(output, Tensor) or not (is_attribute or name in SHAPE_READERS):
            self._note(Call(name, None, self._inside(), values[::-1] if is_reflected else values, named), output)
        return output

    def _note(self, call: Call, output: Any) -> None:
        now = [Value.of(tensor) for tensor in tensors_in(output)]
        now += [value for value in (Value.of(taken.tensor) for taken in call.takes) if value not in call.takes]
        self.calls.append(replace(call, gives=tuple(dict.fromkeys(now))))

    def _inside(self, level: int = -1) -> str:
        return self.names[self.running[level]] if len(self.running) >= -level else ""


def _with_values(tree: Any) -> Any:
    return tree_map(lambda leaf: Value.of(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def _name(func: Any) -> tuple[str, bool, bool]:
    """A function's plain name, whether its operands are exchanged, and whether it reads an attribute of a tensor."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        return getattr(func.__self__, "__name__", name), False, True
    reflected = re.fullmatch(r"__r(\w+)__", name)
    if reflected and hasattr(Tensor, f"__{reflected[1]}__"):
        return reflected[1], True, False
    return name.strip("_"), False, False
