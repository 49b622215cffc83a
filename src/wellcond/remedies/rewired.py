"""`Rewired`: a model in whose forward pass some function calls are replaced, for what its code calls itself."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

Replacement = Callable[..., Any]
"""Called in place of a function, with the function itself and its arguments."""


class Rewired(nn.Module):
    """A model in whose forward pass some function calls are replaced.

    Args:
        model: The model.
        functions: Names of the functions, as `record` writes them.
        replacement: What is called in their place.
        numbers: Which of their calls, counted from 0; None for all.
    """

    def __init__(
        self,
        model: nn.Module,
        functions: Collection[str],
        replacement: Replacement,
        numbers: Collection[int] | None = None,
    ) -> None:
        super().__init__()
        self.rewired = model
        self.training = model.training
        self._settings = frozenset(functions), replacement, numbers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _Replaced(*self._settings):
            return self.rewired(*args, **kwargs)


class _Replaced(TorchFunctionMode):
    def __init__(self, functions: Collection[str], replacement: Replacement, numbers: Collection[int] | None) -> None:
        super().__init__()
        self._functions, self._replacement, self._numbers = functions, replacement, numbers
        self._count = -1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "").strip("_") in self._functions:
            self._count += 1
            if self._numbers is None or self._count in self._numbers:
                return self._replacement(func, *args, **kwargs)
        return func(*args, **kwargs)


def own_name(name: str) -> str:
    """The name that a module or parameter has in the user's model, which is not rewired.

    Example:
        >>> own_name("rewired.fc1.weight"), own_name("rewired")
        ('fc1.weight', '')
    """
    return name.replace("rewired.", "").removesuffix("rewired")
