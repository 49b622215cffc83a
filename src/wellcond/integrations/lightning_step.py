"""The training step of a Lightning module, run outside of its trainer: nothing is logged, and no optimizer steps."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.integrations.plan import swapped
from wellcond.network.calling import arguments_of
from wellcond.network.taps import bracketed
from wellcond.problem.training_step import Step


def training_step(
    trainer: Any,
    optimizers: Sequence[Any],
    schedulers: Sequence[Any],
    hooks: Sequence[Any] = (),
    owner: Any = None,
    parts: Sequence[str] = (),
) -> Step:
    """The module's training step as a function of a module and a batch, without its logging.

    With manual optimization the loss is the sum of those that are passed to `manual_backward`.

    Args:
        trainer: What `self.trainer` is.
        optimizers: What `self.optimizers()` returns.
        schedulers: What `self.lr_schedulers()` returns.
        hooks: A datamodule and the module, whose hooks change a batch that comes from a loader.
        owner: The module, whose step may also be called with something in the place of the module's own call.
        parts: Names of the modules that the step calls instead of the module itself, as in `called_parts`.
    """

    def nothing(*_: Any, **__: Any) -> None: ...

    def step(called: Any, batch: Any) -> Any:
        module = called if owner is None or isinstance(called, nn.Module) else owner
        losses: list[Tensor] = []
        idle = [[_Idle(each) for each in several] for several in (optimizers, schedulers)]
        covers: dict[str, Any] = {"log": nothing, "log_dict": nothing}
        if not module.automatic_optimization:
            covers |= dict.fromkeys(("toggle_optimizer", "untoggle_optimizer", "clip_gradients"), nothing)
            covers["manual_backward"] = lambda loss, *_, **__: losses.append(loss)
            covers["optimizers"] = lambda *_, **__: idle[0][0] if len(idle[0]) == 1 else idle[0]
            covers["lr_schedulers"] = lambda: idle[1][0] if len(idle[1]) == 1 else idle[1] or None
        with detached(module), swapped(module, **covers):
            module.trainer = trainer
            for each in hooks:
                batch = each.on_after_batch_transfer(each.on_before_batch_transfer(batch, 0), 0)
            most = arguments_of(module.training_step).most
            run = module.training_step if module is called else _WithOwnCall(module, called, parts).training_step
            returned = run(batch) if most == 1 else run(batch, 0)
        if losses:
            return sum(losses)
        return returned["loss"] if isinstance(returned, Mapping) else returned

    return step


@contextlib.contextmanager
def detached(module: Any) -> Iterator[None]:
    """A module without its trainer, which is neither copied nor restored along with it."""
    trainer = module._trainer
    module.trainer = None
    try:
        yield
    finally:
        module.trainer = trainer


class _WithOwnCall:
    """A module in its own methods, where `self(inputs)` is another function, and whose parameters are out of reach.

    Args:
        module: The module.
        called: That function.
        parts: Names of modules that are called one after the other in place of the module itself: `self.net(inputs)`.
    """

    def __init__(self, module: nn.Module, called: Any, parts: Sequence[str] = ()) -> None:
        self._module, self._called = module, called
        self._parts, self._left = frozenset(parts), list(parts)
        self._outputs: Any = None
        self._passed_on = object()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._call_part, name) if name in self._parts else self._own(name)

    def _call_part(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """The first part gets the inputs, the last one returns the outputs; what is between is only passed on."""
        if not self._left:  # a part without parameters, after the outputs
            return self._own(name)(*args, **kwargs)
        is_first = self._outputs is None
        if self._left.pop(0) != name or not (is_first or args == (self._passed_on,)):
            raise AttributeError(f"a step taken apart calls {name} of the model out of turn")
        if is_first:
            self._outputs = self._called(*args, **kwargs)
        return self._passed_on if self._left else self._outputs

    def _own(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, MethodType) and value.__self__ is self._module:
            if hasattr(nn.Module, name):
                raise AttributeError(f"a step taken apart asks for {name} of the model")
            return MethodType(value.__func__, self)
        if isinstance(value, nn.Parameter) or (isinstance(value, nn.Module) and any(True for _ in value.parameters())):
            raise AttributeError(f"a step taken apart asks for {name} of the model")
        return value


def called_parts(module: nn.Module, run: Callable[[], Any]) -> tuple[str, ...]:
    """Names of the modules that a step calls one after the other, each with the outputs of the one before.

    Most steps call `self.net(inputs)`, or `self.head(self.encoder(inputs))`, and not `self(inputs)`.

    Args:
        module: The Lightning module.
        run: Runs its step.

    Returns:
        Empty if the step calls the module itself, or parts of it in any other way.
    """
    names = {part: name for name, part in module.named_modules()}
    calls: list[tuple[str, bool, bool]] = []
    inside, last = 0, None

    def entered(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal inside
        if not inside:
            follows = not kwargs and len(args) == 1 and args[0] is last
            calls.append((names[part], not calls or follows, any(True for _ in part.parameters())))
        inside += 1

    def left(_part: nn.Module, output: Any) -> None:
        nonlocal inside, last
        inside -= 1
        last = last if inside else output

    with torch.no_grad(), bracketed(names, entered, left):
        run()
    while calls and not calls[-1][2]:  # a loss or a metric
        calls.pop()
    is_chain = all(name and "." not in name and follows for name, follows, _ in calls)
    return tuple(name for name, _, _ in calls) if is_chain else ()


def forward_of(module: nn.Module, parts: Sequence[str]) -> MethodType:
    """A `forward` of the module that calls these parts of it one after the other; that of a copy calls its own."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        outputs = getattr(self, parts[0])(*args, **kwargs)
        for name in parts[1:]:
            outputs = getattr(self, name)(outputs)
        return outputs

    own = inspect.signature(getattr(module, parts[0]).forward)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = own.replace(parameters=[itself, *own.parameters.values()])  # type: ignore[attr-defined]
    return MethodType(forward, module)


class _Idle:
    """An optimizer or a schedule whose steps do nothing; a closure is called, for its loss."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def step(self, closure: Any = None, **_: Any) -> Any:
        return closure() if callable(closure) else None

    def zero_grad(self, *_: Any, **__: Any) -> None: ...

    def toggle_model(self, *_: Any, **__: Any) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()
