"""Normalization layers, of torch and of others."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.overrides import TorchFunctionMode

from wellcond.network.calling import are_close, tensors_in
from wellcond.network.isolation.snapshot import OF_EVERY_MODULE, Snapshot
from wellcond.network.taps import bracketed

OVER_CHANNELS = (_NormBase, nn.GroupNorm, nn.LocalResponseNorm)
"""Their outputs are (n, channels, …)."""


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalization layer: one of torch's, or one with "norm" in its name and parameters.

    A block that contains a norm is not one itself.

    Example:
        >>> is_norm(nn.LayerNorm(3)), is_norm(nn.LocalResponseNorm(2)), is_norm(nn.Linear(3, 3))
        (True, True, False)
    """
    if isinstance(module, (*OVER_CHANNELS, nn.LayerNorm, nn.RMSNorm)):
        return True
    has_the_name = "norm" in type(module).__name__.lower() and not any(True for _ in module.children())
    return has_the_name and any(True for _ in module.parameters())


def unit_dim(norm: nn.Module, output: Tensor) -> int:
    """The dimension of a norm's output that counts units: the first of those that it scales, as (d,) of a LayerNorm."""
    if isinstance(norm, OVER_CHANNELS) or type(norm).__name__.endswith(("1d", "2d", "3d")):
        return 1
    scale = next(iter(norm.parameters()), None)
    shape: tuple[int, ...] = tuple(getattr(norm, "normalized_shape", () if scale is None else scale.shape))
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return max(output.dim() - max(len(shape), 1), 0)


# norms that are not torch's, recognized by their behavior

Found = tuple[list[nn.Module], list[nn.Module]]
DROPOUTS = {F.dropout, F.alpha_dropout, F.feature_alpha_dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout}


def may_keep_statistics(model: nn.Module) -> list[nn.Module]:
    """Modules, not torch's, that read their mode and hold numbers, themselves or inside: they may be BatchNorms."""
    own = {module for module in model.modules() if not _is_torchs(type(module))}
    holders = {module for module in own if _holds_numbers(module)}
    readers = {module for module in own if reads_mode(type(module))}  # type: ignore[arg-type]
    return [m for m in model.modules() if m in readers and not holders.isdisjoint(m.modules())]


class OwnNorms:
    """The norms of a model that are not torch's, found in one pass if there are candidates."""

    def __init__(self) -> None:
        self._searched: tuple[list[nn.Module], Found] | None = None

    def of(self, model: nn.Module, run: Callable[[Collection[nn.Module]], Any]) -> Found:
        """The result of `find_own_norms`, which is called again if a module has been replaced.

        Args:
            model: The model.
            run: A pass of the model in evaluation mode, with the state of these modules replaced by copies.
        """
        modules = list(model.modules())
        if self._searched is None or self._searched[0] != modules:
            candidates = may_keep_statistics(model)
            norms = find_own_norms(candidates, lambda: run(candidates)) if candidates else ([], [])
            self._searched = modules, norms
        return self._searched[1]


def names_of_norms(model: nn.Module, own: Found) -> tuple[list[str], list[str]]:
    """Names of the layers with batch and running statistics, and of the unsteady ones."""
    norms, unsteady = own

    def has_both(module: nn.Module) -> bool:
        return module in norms or isinstance(module, _BatchNorm) or getattr(module, "track_running_stats", False)

    names = [name for name, module in model.named_modules() if has_both(module)]
    return names, [name for name, module in model.named_modules() if module in unsteady]


def find_own_norms(candidates: Collection[nn.Module], run: Callable[[], Any]) -> Found:
    """Modules that normalize by the batch in training: they write to their statistics, and their outputs differ.

    Each is called again, also in training mode, on its inputs of one pass in evaluation mode.

    Args:
        candidates: Result of `may_keep_statistics`.
        run: A pass of the model in evaluation mode, with its state replaced by copies.

    Returns:
        The norms; and modules that also write and differ, but return other outputs on every pass.
    """
    norms: list[nn.Module] = []
    unsteady: list[nn.Module] = []
    examined: set[nn.Module] = set()
    arguments: list[tuple[Any, Any]] = []

    def on_entry(_module: nn.Module, args: Any, kwargs: Any) -> None:
        arguments.append((args, kwargs))

    def on_exit(module: nn.Module, _output: Any) -> None:
        args, kwargs = arguments.pop()
        if module in examined:
            return
        examined.add(module)
        written: list[set[str]] = []
        outputs: list[list[Tensor]] = []
        for module.training in (False, True, True):
            before = _statistics(module)
            with dropout_off_in([module]):
                outputs.append(tensors_in(module.forward(*args, **kwargs)))
            written.append({name for name, now in _statistics(module).items() if now != before.get(name)})
        module.training = False
        in_evaluation, first, second = outputs
        if written[1] - written[0] and not are_close(first, in_evaluation):
            is_steady = len(first) == len(in_evaluation) and are_close(first, second)
            (norms if is_steady else unsteady).append(module)

    with torch.no_grad(), bracketed(candidates, on_entry, on_exit, within_hooks=True):
        run()
    return norms, unsteady


@contextlib.contextmanager
def dropout_off_in(modules: Collection[nn.Module]) -> Iterator[None]:
    """Turn off dropout functions that these modules call themselves, since they are in training mode."""
    with _DropoutOff(set(map(id, modules))) if modules else contextlib.nullcontext():
        yield


class _DropoutOff(TorchFunctionMode):
    def __init__(self, modules: set[int]) -> None:
        super().__init__()
        self._modules = modules

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in DROPOUTS and self._is_called_by_one():
            return args[0] if args else kwargs["input"]
        return function(*args, **(kwargs or {}))

    def _is_called_by_one(self) -> bool:
        """Whether the innermost module that is running is one of them."""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, nn.Module):
                return id(owner) in self._modules
            frame = frame.f_back
        return False


def _is_torchs(kind: Any) -> bool:
    return str(kind.__module__).startswith("torch.")


def _holds_numbers(module: nn.Module) -> bool:
    """Whether a module holds floating-point tensors that it does not train, as statistics are."""
    if isinstance(module, _NormBase):
        return False
    return any(_numbers_in(value) for value in _held(module).values())


@functools.cache
def reads_mode(kind: Any) -> bool:
    """Whether a class's own code, or a function that it calls, names `training`."""
    methods = [f for cls in kind.__mro__ if not _is_torchs(cls) for f in vars(cls).values()]
    functions = [f for f in methods if isinstance(f, types.FunctionType)]
    called = [f.__globals__.get(name) for f in functions for name in f.__code__.co_names]
    functions += [f for f in called if isinstance(f, types.FunctionType) and not _is_torchs(f)]
    return any("training" in _words(f.__code__) for f in functions)


def _words(code: types.CodeType) -> set[Any]:
    inner = [word for const in code.co_consts if isinstance(const, types.CodeType) for word in _words(const)]
    return {*code.co_names, *(c for c in code.co_consts if isinstance(c, str)), *inner}


def _statistics(module: nn.Module) -> dict[str, Any]:
    """Numbers that a module and its children hold, and how often they were written to, by name."""
    statistics: dict[str, Any] = {}
    for name, inner in module.named_modules():
        for key, value in _held(inner).items():
            if numbers := _numbers_in(value):
                statistics[f"{name}.{key}"] = [(t._version, t.detach().cpu().numpy().tobytes()) for t in numbers]
    return statistics


def _held(module: nn.Module) -> dict[str, Any]:
    own = {key: value for key, value in vars(module).items() if key not in OF_EVERY_MODULE}
    return {**module._parameters, **module._buffers, **own}


def _numbers_in(value: Any) -> list[Tensor]:
    held = Snapshot([value])
    return [t for t in (*held.parameters, *held.tensors) if t.is_floating_point() and not t.requires_grad]
