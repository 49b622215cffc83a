"""The state of a model or a loss other than its parameters: recorded, replaced by copies, restored, and compared.

A pass may count in plain Python, append to a list or write to a tensor in a dict. A snapshot covers all of that:
modules and their hooks, simple objects, builtin containers, and the closures, defaults and named globals of the user's
functions. Other objects (files, locks, loggers, optimizers, code of packages) are not touched.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import types
from argparse import Namespace
from collections import UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.network.isolation.copies import IMMUTABLE, NUMBERS, Copies, content, is_copied

OF_EVERY_MODULE = frozenset(vars(nn.Module()))
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
SIMPLE = (types.SimpleNamespace, Namespace, UserDict, UserList)
CONTAINERS = (dict, list, set, deque, bytearray)
DEEPEST = 12
"""Depth of nesting that is searched."""
MOST = 10_000
"""Longest container whose items are searched; of a longer one, only the container itself is restored."""


class Snapshot:
    """The state of some modules and callables at one moment.

    Attributes:
        values: All values except tensors: to compare by value if numbers, and by identity if not.
        tensors: All tensors except parameters.
        parameters: All parameters.
        generators: Generators of torch, which advance.
    """

    def __init__(self, roots: Iterable[Any], *, known: Iterable[nn.Module] = (), code: bool = False) -> None:
        """Record everything that can be reached.

        Args:
            roots: Modules, callables, containers and classes.
            known: Modules that are left out.
            code: Whether to record everything that functions use. If not, only modules and callables: a list in a
                closure may be there to record what a measurement does.
        """
        self._code = code
        self.values: list[Any] = []
        self.tensors: list[Tensor] = []
        self.parameters: list[nn.Parameter] = []
        self.generators: list[torch.Generator] = []
        self._seen = set(map(id, known))
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._sequences: list[tuple[Any, list[Any]]] = []
        self._sets: list[tuple[set[Any], set[Any]]] = []
        self._attributes: list[tuple[Any, str, Any]] = []
        self._lent: list[tuple[Callable[[Any], None], Any]] = []
        for root in roots:
            self._look_at(root, 0)

    # replace by copies, and restore

    def lend(self) -> None:
        """Replace tensors by copies; those that shared memory still do."""
        copies = Copies(value for _, value in self._lent)
        for place, value in self._lent:
            place(copies.of(value))

    def put_back(self) -> None:
        """Restore everything: the same objects with the same contents."""
        for owner, name, value in self._attributes:
            if getattr(owner, name, None) is not value:
                (setattr if isinstance(owner, type) else object.__setattr__)(owner, name, value)
        for live, before in self._dicts:
            if live or before:
                _put_back(live, before)
        for sequence, items in self._sequences:
            if len(sequence) != len(items) or not all(map(is_, sequence, items)):
                sequence.clear()
                sequence.extend(items)
        for live_set, members in self._sets:
            if live_set != members:
                live_set.clear()
                live_set.update(members)

    # record

    def _look_at(self, value: Any, depth: int) -> bool:
        """Record a value and its contents; True if its holder has to hold a copy instead."""
        kind = type(value)
        if kind in IMMUTABLE:
            self.values.append(value)
            return False
        if isinstance(value, Tensor):
            self.values.append(Tensor)
            if isinstance(value, nn.Parameter):
                self.parameters.append(value)
                return False
            self.tensors.append(value)
            return not value.requires_grad  # a tensor with a graph is computed on every pass
        if kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_make")):
            self.values.append(len(value))
            return depth < DEEPEST and max([self._look_at(item, depth + 1) for item in value], default=False)
        self.values.append(value)
        if is_copied(value):
            self.values.append(content(value))
            return True
        if isinstance(value, torch.Generator):
            self.generators.append(value)
        elif id(value) not in self._seen and depth < DEEPEST:
            self._seen.add(id(value))
            self._look_into(value, depth + 1)
        return False

    def _look_into(self, value: Any, depth: int) -> None:
        if isinstance(value, torch.jit.ScriptModule):  # a loss; its attributes are not in a dict
            self.tensors += [*value.parameters(), *value.buffers()]
        elif isinstance(value, nn.Module):
            self._look_at_module(value)
            for module in value.modules():
                if id(module) not in self._seen:
                    self._seen.add(id(module))
                    self._look_at_module(module)
        elif isinstance(value, CONTAINERS):
            self._look_into_container(value, depth)
        elif isinstance(value, type):
            self._seen.discard(id(value))
            self._look_at_class(value, depth)
        elif isinstance(value, types.FunctionType):
            self._look_into_function(value, depth)
        elif isinstance(value, types.MethodType):
            self._look_at(value.__self__, depth)
            self._look_at(value.__func__, depth)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._look_at(part, depth)
        elif _is_simple(value):
            if hasattr(value, "__dict__"):
                self._look_into_container(vars(value), depth)
            for name in _slots(type(value)):  # type: ignore[arg-type]
                if hasattr(value, name):
                    self._remember_attribute(value, name, getattr(value, name), depth)
            self._look_at_class(type(value), depth)

    def _look_into_container(self, value: Any, depth: int) -> None:
        items: Iterable[tuple[Any, Any]]
        if isinstance(value, dict):
            self._dicts.append((value, dict(value)))
            items = self._dicts[-1][1].items()
            self.values.extend(value)
        elif isinstance(value, set):
            self._sets.append((value, set(value)))
            self.values.extend(value)
            return
        else:
            self._sequences.append((value, list(value)))
            items = enumerate(self._sequences[-1][1])
        if len(value) > MOST:
            return
        for key, item in items:
            if self._look_at(item, depth):
                self._lent.append((functools.partial(value.__setitem__, key), item))

    def _look_at_module(self, module: nn.Module) -> None:
        attributes = vars(module)
        before = dict(attributes)
        self._dicts.append((attributes, before))
        self.values.append(module)
        for name, value in before.items():
            if name in OF_EVERY_MODULE:
                continue
            if type(value) in IMMUTABLE:
                self.values.append(value)
            elif self._look_at(value, 0):
                # not by __setattr__, which does more for a recurrent layer
                self._lent.append((functools.partial(attributes.__setitem__, name), value))
        self.parameters.extend(p for p in attributes["_parameters"].values() if p is not None)
        self._look_into_container(attributes["_buffers"], 0)
        self._dicts.append((attributes["_modules"], dict(attributes["_modules"])))
        self.values.extend(attributes["_modules"].values())
        of_buffers = attributes["_non_persistent_buffers_set"]
        self._sets.append((of_buffers, set(of_buffers)))
        for kind in HOOKS:
            self.values.extend(attributes[kind].values())
        self._look_at_class(type(module), 0)

    def _look_at_class(self, kind: type, depth: int) -> None:
        for cls in kind.__mro__:
            if id(cls) in self._seen:
                return
            self._seen.add(id(cls))
            if _is_installed(cls.__module__):
                continue
            for name, value in list(vars(cls).items()):
                if isinstance(value, types.FunctionType):
                    if self._code:
                        self._look_at(value, depth)
                elif not name.startswith("__") and isinstance(value, (*NUMBERS, *CONTAINERS, Tensor, tuple)):
                    self._remember_attribute(cls, name, value, depth)

    def _look_into_function(self, function: types.FunctionType, depth: int) -> None:
        if _is_installed(function.__module__):
            return
        used = [function.__globals__.get(name) for name in _names(function.__code__)]
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # a cell that is still empty
                used.append(cell.cell_contents)
        used += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values()]
        for value in used:
            if not isinstance(value, (types.ModuleType, type)) and (self._code or callable(value)):
                self._look_at(value, depth)

    def _remember_attribute(self, owner: Any, name: str, value: Any, depth: int) -> None:
        self._attributes.append((owner, name, value))
        if self._look_at(value, depth):
            put = setattr if isinstance(owner, type) else object.__setattr__
            self._lent.append((functools.partial(put, owner, name), value))


@contextlib.contextmanager
def kept(snapshot: Snapshot) -> Iterator[None]:
    """Inside, the state in a snapshot is replaced by copies and may be changed; afterwards it is restored."""
    states = [(generator, generator.get_state()) for generator in snapshot.generators]
    try:
        snapshot.lend()
        yield
    finally:
        snapshot.put_back()
        for generator, state in states:
            generator.set_state(state)


def _put_back(live: dict[Any, Any], before: dict[Any, Any]) -> None:
    for key, value in before.items():
        if live.get(key, live) is not value:
            live[key] = value
    if len(live) > len(before):
        for key in live.keys() - before.keys():
            del live[key]
    if not all(map(is_, live, before)):  # the order counts too
        live.clear()
        live.update(before)


def _is_simple(value: Any) -> bool:
    """Whether an object is probably nothing but its attributes."""
    if isinstance(value, SIMPLE):
        return True
    if isinstance(value, (type, types.ModuleType, Tensor)):
        return False
    root = type(value).__module__.partition(".")[0]
    return root not in sys.stdlib_module_names and root not in ("torch", "numpy", "wellcond", "builtins")


@functools.cache
def _slots(kind: Any) -> tuple[str, ...]:
    slots = (vars(cls).get("__slots__", ()) for cls in kind.__mro__)
    names = itertools.chain.from_iterable([each] if isinstance(each, str) else each for each in slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@functools.cache
def _is_installed(module: str | None) -> bool:
    """Whether code belongs to Python, to a package or to this library, rather than to the user."""
    root = (module or "builtins").partition(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return True
    where = getattr(sys.modules.get(root), "__file__", None) or ""
    return root in ("torch", "wellcond") or "site-packages" in where or "dist-packages" in where


@functools.cache
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The names that code and the functions in it use."""
    inner = [name for const in code.co_consts if isinstance(const, types.CodeType) for name in _names(const)]
    return tuple(dict.fromkeys([*code.co_names, *inner]))
