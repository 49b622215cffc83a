"""Trainable tensors that a model uses and that are not among its parameters: in lists, dicts or closures, or plain."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from wellcond.network.graph import leaves_of
from wellcond.network.isolation.snapshot import OF_EVERY_MODULE

LEVELS = 4
"""Depth to which the attributes of a module are searched."""
MOST_ITEMS = 1000
"""Longest container whose items are searched."""


class Stray(NamedTuple):
    """A trainable tensor that is not a parameter of the model.

    Attributes:
        path: Where the model holds it, as a registered one would be called: `layers.0.weight`; "" if it is not found.
        shape: Its shape.
    """

    path: str
    shape: tuple[int, ...]

    @property
    def owner(self) -> str:
        """The layer or tensor, without the name of a layer's own parameter."""
        owner, _, name = self.path.rpartition(".")
        return owner if owner and name in ("weight", "bias") else self.path


def strays_in(ends: Iterable[Tensor], model: nn.Module, known: Iterable[Tensor]) -> tuple[Stray, ...]:
    """Trainable tensors in the graph of some results that are neither parameters of the model nor known otherwise.

    Example:
        >>> import torch
        >>> model = nn.Linear(2, 2)
        >>> model.others = [nn.Linear(2, 2, bias=False)]
        >>> strays_in([model.others[0](model(torch.ones(1, 2)))], model, ())
        (Stray(path='others.0.weight', shape=(2, 2)),)
    """
    ids = {id(p) for p in (*model.parameters(), *known)}
    leaves = {id(t): t for t in leaves_of(t.grad_fn for t in ends) if id(t) not in ids}
    paths = dict(unregistered(model)) if leaves else {}
    return tuple(sorted(Stray(paths.get(each, ""), tuple(t.shape)) for each, t in leaves.items()))


def unregistered(model: nn.Module) -> Iterator[tuple[int, str]]:
    """(id, path) of every trainable tensor that the modules of a model hold without registering it."""
    own = {id(p) for p in model.parameters()}
    seen = set(map(id, model.modules()))
    for name, module in model.named_modules():
        waiting = [(value, _joined(name, key), 0) for key, value in vars(module).items() if key not in OF_EVERY_MODULE]
        waiting += [(value, _joined(name, key), 1) for key, value in _used_by(type(module).forward)]
        for value, path, depth in waiting:
            if isinstance(value, Tensor):
                yield from ((id(leaf), path) for leaf in _leaves_behind(value) if id(leaf) not in own)
            elif id(value) not in seen and depth < LEVELS:
                seen.add(id(value))
                waiting += [(inner, _joined(path, key), depth + 1) for key, inner in _held_by(value)]


def _leaves_behind(tensor: Tensor) -> list[Tensor]:
    """The tensor itself if it is a trainable leaf; the leaves that it was computed from, if it is not."""
    return [tensor] if tensor.is_leaf and tensor.requires_grad else leaves_of([tensor.grad_fn])


def _held_by(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        return list(value.named_parameters())
    if isinstance(value, dict):
        return [(str(key), item) for key, item in value.items()] if len(value) < MOST_ITEMS else []
    if isinstance(value, (list, tuple, set)):
        return [(str(k), item) for k, item in enumerate(value)] if len(value) < MOST_ITEMS else []
    if isinstance(value, (types.FunctionType, types.MethodType)):
        return _used_by(value)
    return list(getattr(value, "__dict__", {}).items()) if not isinstance(value, (type, types.ModuleType)) else []


def _used_by(function: Any) -> list[tuple[str, Any]]:
    """What a function uses from outside, by name: its closure, and the modules and tensors among its globals."""
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType):
        return []
    used = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            used.append((name, cell.cell_contents))
    from_outside = [(name, function.__globals__.get(name)) for name in function.__code__.co_names]
    return used + [(name, value) for name, value in from_outside if isinstance(value, (nn.Module, Tensor))]


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path and key else path or key
