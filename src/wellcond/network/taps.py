"""Taps: every module hook of the library. They see inputs and outputs of layers, and the gradients that come back.

Nothing is stored here: a callback reduces each tensor as it comes, so that one pass over a very deep network needs no
more memory than its forward and backward. (Two things elsewhere are hooks of another kind: BNP's on the optimizer's
step, and that of `back_matching` on a node of the graph.)
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

OnCall = Callable[[str, nn.Module, Any, Any], Any]
"""Called as (name, module, first input, output) after each forward call of a tapped module."""
OnGradient = Callable[[str, nn.Module, Any, Tensor], None]
"""Called as (name, module, what `OnCall` returned, gradient of the output of that call) during the backward pass."""


class Watcher(Protocol):
    """Receives the calls of one module from `watched`."""

    def on_call(self, x: Any, output: Tensor) -> Callable[[Tensor], None] | None:
        """Called after a call, with its first input; returns a function to call with the gradient of the output."""

    def on_traced_call(self, x: Tensor, output: Tensor) -> Tensor:
        """The same inside a graph of `torch.compile`: returns the output, whose backward pass handles the gradient."""


OnEntry = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]
"""Called as (module, args, kwargs) before a forward call."""
OnExit = Callable[[nn.Module, Any], Any]
"""Called as (module, output) after a forward call; a return value other than None replaces the output."""


@contextlib.contextmanager
def tapped(
    modules: Mapping[str, nn.Module],
    on_call: OnCall,
    on_gradient: OnGradient | None = None,
    on_input_gradient: OnGradient | None = None,
) -> Iterator[None]:
    """Watch modules while the block runs; the hooks are removed in any case.

    Gradients come from a hook on the output *tensor*. Unlike a module's backward hook, it survives an in-place
    activation after the layer, and a module that is called twice reports each call. The output is the module's own,
    before other forward hooks change it.

    Calls that the model makes under `no_grad`, as of a momentum encoder or a target network, are not reported, unless
    the block was entered in that mode.
    """
    with_grad = torch.is_grad_enabled()

    def hook(name: str) -> Callable[..., None]:
        def after_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if torch.is_grad_enabled() < with_grad:
                return
            x = _first(args or kwargs.get("query", tuple(kwargs.values())))
            returned = on_call(name, module, x, output)
            tensor = _first(output)
            if on_gradient is not None and isinstance(tensor, Tensor) and tensor.requires_grad:
                _watch_gradient(tensor, lambda g: None if _closed else on_gradient(name, module, returned, g))
            if on_input_gradient is not None and isinstance(x, Tensor) and x.requires_grad:
                x.register_hook(lambda g: None if _closed else on_input_gradient(name, module, returned, g))  # type: ignore[no-untyped-call]

        return after_forward

    with contextlib.ExitStack() as stack:
        for name, module in modules.items():
            first = on_gradient is not None
            stack.callback(module.register_forward_hook(hook(name), with_kwargs=True, prepend=first).remove)
        yield


_closed = False


@contextlib.contextmanager
def closed() -> Iterator[None]:
    """Taps ignore backward passes inside: these are auxiliary, and not part of the measurement."""
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
    """Report calls as the caller sees them: arguments before all other hooks, and the output after them.

    With `within_hooks`, report them as `forward` sees them.
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

    Calls without a graph and calls in eval mode are not reported. A copy of the model, deep or pickled, is not watched.

    Returns:
        A function that removes the hooks.
    """
    hooks = [TrainingHook(module, watchers[name]) for name, module in modules.items()]
    handles = [
        module.register_forward_hook(hook, with_kwargs=True)
        for module, hook in zip(modules.values(), hooks, strict=True)
    ]

    def stop() -> None:
        for handle, hook in zip(handles, hooks, strict=True):
            handle.remove()
            hook.module = None  # a compiled graph continues to call it

    return stop


def tapped_from_outside(names: Mapping[nn.Module, str], on_call: OnCall) -> Callable[[], None]:
    """Watch modules for a while by one hook on all modules of the process, and none on these.

    So a model that is copied, pickled or compiled in the meantime is as it was. Calls without a graph, and those inside
    `torch.func`, are not reported.

    Args:
        names: The modules to watch, with their names.
        on_call: As for `tapped`; an input that is passed by name is None.

    Returns:
        A function that removes the hook.
    """

    def after_forward(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        name = names.get(module)
        if name is None or not torch.is_grad_enabled() or torch._C._functorch.maybe_current_level() is not None:
            return
        on_call(name, module, _first(args), output)

    # not with_kwargs, of which torch never removes the mark
    handle = register_module_forward_hook(after_forward)
    return handle.remove


@contextlib.contextmanager
def called_anywhere(on_call: Callable[[nn.Module, tuple[Any, ...]], None]) -> Iterator[None]:
    """Report the calls of all modules of the process, also of those that nobody names, with their arguments."""

    def after_forward(module: nn.Module, args: tuple[Any, ...], _output: Any) -> None:
        on_call(module, args)

    handle = register_module_forward_hook(after_forward)
    try:
        yield
    finally:
        handle.remove()


class TrainingHook:
    """Reports the calls of one module and changes no value; a copy of it, made with the model, does nothing."""

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

    def __reduce__(self) -> tuple[Any, ...]:  # deepcopy and pickle create a hook that does nothing
        return TrainingHook, ()


def _watch_gradient(output: Tensor, on_gradient: Callable[[Tensor], None]) -> None:
    """Call back with the gradient of an output, also if a later operation overwrites it in place.

    A linear layer returns a view of tokens, (N, T, d). Overwriting a view gives it a new history, and a hook on the old
    one is never called. The history of its base continues from the layer's operation.
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
    """The first element of nested tuples: a recurrent layer's output, or the rows of a `PackedSequence`."""
    while isinstance(value, tuple):
        value = value[0] if value else None
    return value


@contextlib.contextmanager
def without_graph(model: nn.Module) -> Iterator[None]:
    """Build no graph inside, but leave the grad mode on, so that the model's own `no_grad` stays visible."""
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
    """Calls back after every call of some functions, whether by a module or in the user's own forward.

    As with `tapped`, calls that the model makes under `no_grad` are not reported, nor calls inside a watched function.

    Args:
        functions: Functions to watch, with the name to report.
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
