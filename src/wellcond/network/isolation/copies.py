"""Copies of a model, to change and to train; and of its state, to stand in for the original and to see what changed."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Iterable, Iterator
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from wellcond.errors import Unsupported
from wellcond.network.calling import dense_parts, unwrapped

COPIED = (np.ndarray, random.Random, itertools.count, itertools.cycle)
NUMBERS = frozenset({int, float, bool, complex, str, bytes})
LARGE = 2**14
"""Tensors of more entries are compared one by one, smaller ones all at once."""
IMMUTABLE = NUMBERS | {type(None), type(...), type(NotImplemented), torch.dtype, torch.device, torch.Size, range, slice}


def copied(model: nn.Module) -> nn.Module:
    """A deep copy of the module inside `torch.compile` and (Distributed)DataParallel; tied parameters stay tied.

    Hooks on the gradients of parameters, such as `p.register_hook(lambda g: g.clamp(-1, 1))`, come along.
    """
    if not isinstance(model, nn.Module):
        raise Unsupported(f"the model is a {type(model).__name__}, not a torch.nn.Module.")
    model = unwrapped(model)
    for name, value in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(value):
            raise Unsupported(f"{name!r} has no shape yet (a lazy layer); run one forward pass first.")
    try:
        copies = copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        raise Unsupported(
            f"{type(model).__name__} cannot be copied: {error}. A tensor that a forward pass stored as an attribute "
            "must be detached; a lock, a file or a generator must be taken off the model."
        ) from error
    for own, other in zip(model.parameters(), copies.parameters(), strict=True):
        for hook in (own._backward_hooks or {}).values():
            other.register_hook(hook)  # type: ignore[no-untyped-call]
    return copies


class Copies:
    """Copies of tensors, and of tuples that hold some, which share their memory where the originals do."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._of: dict[int, Any] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        in_storage: dict[int, set[int]] = {}
        for tensor in _tensors(values):
            if where := _storage(tensor):
                in_storage.setdefault(where, set()).add(id(tensor))
        self._shared = {where for where, tensors in in_storage.items() if len(tensors) > 1}

    def of(self, value: Any) -> Any:
        """The copy of a value, always the same one; a value without tensors is returned itself."""
        if isinstance(value, tuple):
            items = [self.of(item) for item in value]
            return type(value)._make(items) if hasattr(value, "_make") else tuple(items)
        if isinstance(value, nn.Parameter) or not (isinstance(value, Tensor) or is_copied(value)):
            return value
        if id(value) not in self._of:
            self._of[id(value)] = self._copied(value)
        return self._of[id(value)]

    def _copied(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return copy.deepcopy(value)
        if value.requires_grad:
            return value
        where = _storage(value)
        if where not in self._shared:
            return value.clone()
        if where not in self._storages:
            self._storages[where] = value.untyped_storage().clone()  # type: ignore[no-untyped-call]
        empty = torch.empty(0, dtype=value.dtype, device=value.device)
        return empty.set_(self._storages[where], value.storage_offset(), value.shape, value.stride())


def is_copied(value: Any) -> bool:
    """Whether an object is replaced by a copy, as tensors are."""
    # NumPy imports its generators on first use, so a test by class would import them
    return isinstance(value, COPIED) or type(value).__module__.startswith("numpy.random")


def content(value: Any) -> Any:
    """A value that shows whether a copied object has changed."""
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.dtype != object else None
    if hasattr(value, "bit_generator"):
        return str(value.bit_generator.state)
    if hasattr(value, "get_state"):
        return str(value.get_state())
    return str(value.getstate()) if isinstance(value, random.Random) else repr(value)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from _tensors(value)


def _storage(tensor: Tensor) -> int:
    """Address of a tensor's memory; 0 if it has none of its own."""
    return tensor.untyped_storage().data_ptr() if type(tensor) is Tensor and tensor.layout is torch.strided else 0


class Fingerprint:
    """A state to compare with itself at another time: numbers by a copy of them, other objects by identity.

    Args:
        values: Values in the form of `Snapshot.values`.
        tensors: Tensors, which are copied: version counters do not notice writes to `.data`.
        is_passing: Whether it is compared at once and then dropped: large tensors are not copied then.
    """

    def __init__(self, values: list[Any], tensors: Iterable[Tensor], *, is_passing: bool = False) -> None:
        self._values = values
        self._kinds = []
        self._large: list[Tensor] = []
        parts: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for t in (part for tensor in tensors for part in dense_parts(tensor.detach())):
            self._kinds.append(t.shape)
            if t.numel() > LARGE:
                self._large.append(t if is_passing else t.clone())
            else:
                parts.setdefault((t.dtype, t.device), []).append(t.reshape(-1))
        self._contents = {kind: torch.cat(flat) for kind, flat in parts.items()}

    def is_same_as(self, other: Fingerprint) -> bool:
        """Whether nothing has changed between the two."""
        mine, its = self._contents, other._contents
        return (
            len(self._values) == len(other._values)
            and (all(map(is_, self._values, other._values)) or all(map(_is_same, self._values, other._values)))
            and self._kinds == other._kinds
            and mine.keys() == its.keys()
            and all(torch.equal(mine[kind], its[kind]) for kind in mine)
            and len(self._large) == len(other._large)
            and all(map(_is_equal, self._large, other._large))
        )


def _is_equal(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.device == second.device and torch.equal(first, second)


def _is_same(first: Any, second: Any) -> bool:
    return first is second or (type(first) is type(second) and type(first) in IMMUTABLE and bool(first == second))
