"""Taps: the only hooks in the library. They see what layers receive and return, and the gradients that come back.

Nothing is stored here: a callback reduces each tensor as it passes by, so one pass over a very deep network needs
no more memory than its own forward and backward.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

OnCall = Callable[[str, nn.Module, Any, Any], Any]
"""Called as (name, module, first input, output) after each forward call of a tapped module."""
OnGradient = Callable[[str, nn.Module, Any, Tensor], None]
"""Called as (name, module, what `OnCall` returned, gradient of the output of that call) during the backward pass."""


class Watcher(Protocol):
    """What `watched` tells about the calls of one module."""

    def on_call(self, x: Any, output: Tensor) -> Callable[[Tensor], None] | None:
        """After a call, with its first input; what it returns is called with the gradient of the output."""

    def on_traced_call(self, x: Tensor, output: Tensor) -> Tensor:
        """The same inside a graph of `torch.compile`: returns the output, whose backward pass does the rest."""


OnEntry = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]
"""Called as (module, args, kwargs) before a forward call."""
OnExit = Callable[[nn.Module, Any], Any]
"""Called as (module, output) after it; what it returns, unless None, takes the place of the output."""


@contextlib.contextmanager
def tapped(
    modules: Mapping[str, nn.Module],
    on_call: OnCall,
    on_gradient: OnGradient | None = None,
    on_input_gradient: OnGradient | None = None,
) -> Iterator[None]:
    """Watch modules while the block runs; the hooks come off in any case.

    Gradients come from a hook on the output *tensor*. Unlike a module's backward hook, it survives an in-place
    activation behind the layer, and a module that is called twice reports each call. They are those of what the module
    itself has computed, before forward hooks of others change it.

    Calls that the model makes under `no_grad`, as of a momentum encoder or a target network, are not seen, unless the
    block was entered in that mode.
    """
    with_grad = torch.is_grad_enabled()

    def hook(name: str) -> Callable[..., None]:
        def after_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if torch.is_grad_enabled() < with_grad:
                return
            x = _first(args or kwargs.get("query", tuple(kwargs.values())))
            kept = on_call(name, module, x, output)
            tensor = _first(output)
            if on_gradient is not None and isinstance(tensor, Tensor) and tensor.requires_grad:
                _watch_gradient(tensor, lambda gradient: None if _closed else on_gradient(name, module, kept, gradient))
            if on_input_gradient is not None and isinstance(x, Tensor) and x.requires_grad:
                x.register_hook(lambda gradient: None if _closed else on_input_gradient(name, module, kept, gradient))  # type: ignore[no-untyped-call]

        return after_forward

    with contextlib.ExitStack() as stack:
        for name, module in modules.items():
            first = on_gradient is not None
            stack.callback(module.register_forward_hook(hook(name), with_kwargs=True, prepend=first).remove)
        yield


_closed = False


@contextlib.contextmanager
def closed() -> Iterator[None]:
    """A backward pass inside goes by all taps: it is there to find something out, and is not what is measured."""
    global _closed
    before, _closed = _closed, True
    try:
        yield
    finally:
        _closed = before


@contextlib.contextmanager
def bracketed(
    modules: Iterable[nn.Module], on_entry: OnEntry, on_exit: OnExit, *, within_hooks: bool = False
) -> Iterator[None]:
    """See calls as the caller does: the arguments before all other hooks, and the output after them.

    Within hooks, see them as `forward` does.
    """
    with contextlib.ExitStack() as stack:
        for module in modules:
            before = module.register_forward_pre_hook(on_entry, prepend=not within_hooks, with_kwargs=True)
            stack.callback(before.remove)
            after = module.register_forward_hook(lambda m, _args, output: on_exit(m, output), prepend=within_hooks)
            stack.callback(after.remove)
        yield


def watched(modules: Mapping[str, nn.Module], watchers: Mapping[str, Watcher]) -> Callable[[], None]:
    """Watch modules over a whole training run.

    Calls that build no graph, and calls in eval mode, are not seen. A copy of the model, deep or pickled, is not
    watched.

    Returns:
        The function that ends it.
    """
    hooks = [TrainingHook(module, watchers[name]) for name, module in modules.items()]
    handles = [
        module.register_forward_hook(hook, with_kwargs=True)
        for module, hook in zip(modules.values(), hooks, strict=True)
    ]

    def stop() -> None:
        for handle, hook in zip(handles, hooks, strict=True):
            handle.remove()
            hook.module = None  # a compiled graph goes on calling it

    return stop


class TrainingHook:
    """Sees the calls of one module and changes no value; a copy of it, made with the model, does nothing."""

    def __init__(self, module: nn.Module | None = None, watcher: Watcher | None = None) -> None:
        self.module, self.watcher = module, watcher

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        if module is not self.module or not module.training or not output.requires_grad:
            return None
        x = args[0] if args else next(iter(kwargs.values()))
        if not torch.compiler.is_dynamo_compiling():
            self._see(x, output)
        elif x.is_nested or torch._C._functorch.maybe_current_level() is not None:
            torch.compiler.disable(self._see)(x, output)  # type: ignore[no-untyped-call]
        else:
            return self.watcher.on_traced_call(x, output)  # type: ignore[union-attr]
        return None

    def _see(self, x: Any, output: Tensor) -> None:
        if self.watcher is None or self.module is None:
            return
        if torch._C._functorch.is_functorch_wrapped_tensor(output):  # torch.func has gradients of its own
            return
        on_gradient = self.watcher.on_call(x, output)
        if on_gradient is not None:
            _watch_gradient(output, on_gradient)

    def __reduce__(self) -> tuple[Any, ...]:  # what deepcopy and pickle make of it: a hook that does nothing
        return TrainingHook, ()


def _watch_gradient(output: Tensor, on_gradient: Callable[[Tensor], None]) -> None:
    """Call back with the gradient of an output, also if what follows writes over it in place.

    A linear layer returns a view of tokens, (N, T, d). Writing over a view gives it a new history, in which a hook on
    the old one is never called. The history of its base goes on from what the layer computed.
    """
    base = output._base
    if base is None or base.grad_fn is None:
        # as `register_hook` does, without the handle, which costs a small layer as much as its statistics
        if output._backward_hooks is None and output.grad_fn is not None:
            output._backward_hooks = OrderedDict({-1: on_gradient})  # handles count from 0
            output.grad_fn._register_hook_dict(output)
        else:
            output.register_hook(on_gradient)  # type: ignore[no-untyped-call]
        return
    index, size, stride = base.output_nr, base.size(), base.stride()
    offset = output.storage_offset() - base.storage_offset()
    size_of_view, stride_of_view = output.size(), output.stride()

    def before_base(gradients: Any) -> None:
        gradient = gradients[index]
        if gradient is not None:
            laid_out = (
                gradient if gradient.stride() == stride else gradient.new_empty_strided(size, stride).copy_(gradient)
            )
            on_gradient(laid_out.as_strided(size_of_view, stride_of_view, laid_out.storage_offset() + offset))

    base.grad_fn.register_prehook(before_base)


def _first(value: Any) -> Any:
    """The first of a tuple, of tuples: a recurrent layer's output, or the rows of a `PackedSequence`."""
    while isinstance(value, tuple):
        value = value[0] if value else None
    return value


@contextlib.contextmanager
def without_graph(model: nn.Module) -> Iterator[None]:
    """No graph is built inside, as under `no_grad`, but the calls that the model makes under `no_grad` can be told."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        p.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for p in trainable:
            p.requires_grad_(True)


class WatchedFunctions(TorchFunctionMode):
    """Calls back after every call of some functions, whether by a module or by a function in someone's forward.

    As with `tapped`, what the model calls under `no_grad` is not seen, nor what a watched function calls itself.

    Args:
        functions: What to watch, and under which name.
        on_call: Called as (name, args, kwargs, output).

    >>> seen = []
    >>> with WatchedFunctions({torch.tanh: "tanh"}, lambda name, args, kwargs, output: seen.append((name, output))):
    ...     _ = nn.Tanh()(torch.zeros(1))
    >>> seen
    [('tanh', tensor([0.]))]
    """

    def __init__(
        self, functions: Mapping[Any, str], on_call: Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]
    ) -> None:
        super().__init__()
        self.functions = functions
        self.on_call = on_call
        self.with_grad = torch.is_grad_enabled()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func in self.functions and torch.is_grad_enabled() >= self.with_grad:
            self.on_call(self.functions[func], args, kwargs, output)
        return output


class WatchedRelu(WatchedFunctions):
    """Calls back with the output of every ReLU.

    >>> seen = []
    >>> with WatchedRelu(seen.append):
    ...     _ = torch.relu(torch.tensor([-1.0, 2.0]))
    >>> seen
    [tensor([0., 2.])]
    """

    FUNCTIONS = dict.fromkeys((F.relu, F.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_), "relu")

    def __init__(self, on_output: Callable[[Tensor], None]) -> None:
        super().__init__(self.FUNCTIONS, lambda _name, _args, _kwargs, output: on_output(output.detach()))
