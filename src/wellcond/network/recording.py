"""A forward pass as a list of calls in order, with the values that each call takes and returns.

The model is run, not traced symbolically, so any Python code in it works, and the calls are those on these inputs.
Calls that torch cannot report (of a scripted function, an `autograd.Function`) are missing from the list.
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
from wellcond.network.module_names import ModuleNames
from wellcond.network.taps import bracketed

SHAPE_READERS = frozenset((
    "dim", "ndimension", "size", "stride", "numel", "nelement", "len", "is_contiguous", "is_floating_point",
    "is_complex", "element_size", "get_device",
))  # fmt: skip
"""Functions that read no value of a tensor. An attribute that is not a tensor, such as `x.shape`, does not either."""


@dataclass(frozen=True, eq=False)
class Value:
    """The value of a tensor between two writes to it: an in-place operation gives the same tensor another value.

    Attributes:
        tensor: The tensor; holding it ensures that its id is not reused.
        version: Number of writes to it so far, directly or through a view.
        shape: Its shape at that time.
    """

    tensor: Tensor
    version: int
    shape: torch.Size

    @classmethod
    def of(cls, tensor: Tensor) -> Value:
        """The current value of a tensor."""
        with torch._C.DisableTorchFunction():  # reading it is not a call of the model
            # an inference tensor has no version; it can only come from outside, and is not written to
            return cls(tensor, 0 if tensor.is_inference() else tensor._version, tensor.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.tensor is other.tensor and self.version == other.version

    def __hash__(self) -> int:
        return hash((id(self.tensor), self.version))


@dataclass(frozen=True)
class Call:
    """One call of a module or of a function.

    Attributes:
        name: Name of the module in the model, or of the function: without underscores, and `1 / x` as `div(1, x)`.
        module: The module; None for a function.
        inside: Name of the innermost module whose forward pass makes the call.
        args: Positional arguments, with a `Value` in place of each tensor.
        kwargs: Named arguments, likewise.
        gives: Values that it returned or wrote to; empty if it raised.
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
        calls: Calls in the order in which they returned.
        inputs: Values that the model received.
        outputs: Values that it returned; empty if it raised.
        error: The error that ended the pass, if one did. The last call is then the one that raised, if that was a leaf
            module.
    """

    calls: list[Call] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    error: Unsupported | None = None

    def needed_calls(self) -> list[Call]:
        """Calls that the outputs depend on; all calls if there are no outputs."""
        if self.error is not None:
            return self.calls
        needed, calls = set(self.outputs), list[Call]()
        for call in reversed(self.calls):
            if not needed.isdisjoint(call.gives):
                needed.update(call.takes)
                calls.append(call)
        return calls[::-1]


def record(model: nn.Module, inputs: Any, is_leaf: Callable[[nn.Module], bool]) -> Recording:
    """Run a model once in evaluation mode, without changing it, and record every call.

    Args:
        model: The model.
        inputs: Its arguments: a tensor, a tuple or a dict. The model gets copies.
        is_leaf: Whether a module counts as one call. The calls inside other modules are recorded.

    Returns:
        The calls of leaf modules, and of functions outside of them that read values.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> recording = record(model, torch.ones(4, 2), lambda module: isinstance(module, nn.Linear))
        >>> [(call.name, call.inside, tuple(call.gives[0].shape)) for call in recording.calls]
        [('0', '', (4, 3)), ('relu', '1', (4, 3))]
    """
    recorder = _Recorder(model)
    outside = bracketed(model.modules(), recorder.enter, recorder.leave)
    # the model's own hooks change values outside of the leaf's call
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
        self.names = ModuleNames(model)
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
            pass  # a module that raised, and the exception was caught

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
    """A function's plain name, whether its operands are swapped, and whether it reads an attribute of a tensor."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        return getattr(func.__self__, "__name__", name), False, True
    reflected = re.fullmatch(r"__r(\w+)__", name)
    if reflected and hasattr(Tensor, f"__{reflected[1]}__"):
        return reflected[1], True, False
    return name.strip("_"), False, False
