"""The training step of a Lightning module, run outside of its trainer: nothing is logged, and no optimizer steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MethodType
from typing import Any

from torch import Tensor, nn

from wellcond.integrations.plan import swapped
from wellcond.network.calling import arguments_of
from wellcond.problem.training_step import Step


def training_step(
    trainer: Any, optimizers: Sequence[Any], schedulers: Sequence[Any], hooks: Sequence[Any] = (), owner: Any = None
) -> Step:
    """The module's training step as a function of a module and a batch, without its logging.

    With manual optimization the loss is the sum of those that are passed to `manual_backward`.

    Args:
        trainer: What `self.trainer` is.
        optimizers: What `self.optimizers()` returns.
        schedulers: What `self.lr_schedulers()` returns.
        hooks: A datamodule and the module, whose hooks change a batch that comes from a loader.
        owner: The module, whose step may also be called with something in the place of the module's own call.
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
            run = module.training_step if module is called else _WithOwnCall(module, called).training_step
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
    """

    def __init__(self, module: nn.Module, called: Any) -> None:
        self._module, self._called = module, called

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, MethodType) and value.__self__ is self._module:
            if hasattr(nn.Module, name):
                raise AttributeError(f"a step taken apart asks for {name} of the model")
            return MethodType(value.__func__, self)
        if isinstance(value, nn.Parameter) or (isinstance(value, nn.Module) and any(True for _ in value.parameters())):
            raise AttributeError(f"a step taken apart asks for {name} of the model")
        return value


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
