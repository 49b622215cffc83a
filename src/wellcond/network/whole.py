"""A sharded model as one process would hold it: a plain copy with whole parameters, and what it is sharded over.

FSDP2 (`fully_shard`) and tensor parallelism (`parallelize_module`) keep parameters as DTensors, of which each process
holds a part. Second derivatives do not go through either. A copy with whole parameters has neither.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.errors import Unsupported

STATE = "__composable_api_state_key"
"""How the names of the attributes begin in which `fully_shard` keeps what it needs."""
FLAGS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
"""Attributes with settings of hooks, by the numbers of the hooks."""


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, of which this process holds a part or a replica."""
    module = sys.modules.get("torch.distributed.tensor")  # a model without one must not import it
    return module is not None and isinstance(tensor, module.DTensor)


def holds_shards(model: nn.Module) -> bool:
    """Whether parameters or buffers of a model are sharded."""
    return any(map(is_sharded, tensors_of(model)))


def fsdp_modules(model: nn.Module) -> list[Any]:
    """The modules of a model that `fully_shard` was called with."""
    return [module for module in model.modules() if hasattr(module, "_get_fsdp_state")]


def in_shards(model: nn.Module) -> nn.Module:
    """The model, with its parameters in shards: after a forward pass alone, FSDP2 leaves the outermost ones whole."""
    for module in fsdp_modules(model):
        module.reshard()
    return model


def syncs_norms(model: nn.Module) -> bool:
    """Whether a forward pass in training mode waits for the other processes, to share batch statistics."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())


class LocalBatchNorm(_BatchNorm):
    """What a `SyncBatchNorm` is in one process."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass


def whole_tensor(tensor: Any) -> Tensor:
    """All of a sharded tensor, on the device that computes: its shard may be offloaded. Every process calls it."""
    computing = tensor.detach().to(tensor.device_mesh.device_type)
    whole: Tensor = computing.full_tensor()
    return whole.clone() if whole.data_ptr() == tensor.to_local().data_ptr() else whole


def whole_model(model: nn.Module) -> nn.Module:
    """A plain copy of a sharded model, with whole parameters. Every process calls it.

    Raises:
        Unsupported: It cannot be copied.
    """
    modules = list(model.modules())
    memo: dict[int, Any] = {id(module): object.__new__(_plain_class(module)) for module in modules}
    values = (value for module in modules for value in vars(module).values())
    memo |= {id(value): value for value in values if isinstance(value, distributed.ProcessGroup)}  # of SyncBatchNorm
    for tensor in tensors_of(model):
        if is_sharded(tensor) and id(tensor) not in memo:
            whole = whole_tensor(tensor)
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = nn.Parameter(whole, tensor.requires_grad) if is_parameter else whole
    try:
        for module in modules:
            memo[id(module)].__dict__.update(copy.deepcopy(_without_hooks(module), memo))
    except (RuntimeError, TypeError) as error:
        raise Unsupported(f"{type(model).__name__} cannot be copied: {error}") from error
    plain: nn.Module = memo[id(model)]
    return plain


@torch.no_grad()
def refresh(plain: nn.Module, model: nn.Module) -> None:
    """Give a copy of `whole_model` the present weights and buffers. Every process calls it."""
    for own, other in zip(tensors_of(plain), tensors_of(in_shards(model)), strict=True):
        own.copy_(whole_tensor(other) if is_sharded(other) else other)


def state_of_shards(model: nn.Module) -> tuple[int, float]:
    """Changes with the weights and buffers of which this process holds parts."""
    tensors: list[Any] = [tensor.detach() for tensor in tensors_of(in_shards(model))]
    parts = [tensor.to_local() if is_sharded(tensor) else tensor for tensor in tensors]
    return sum(part._version for part in parts), float(sum(part.double().sum() for part in parts if part.numel()))


def data_share(model: nn.Module) -> tuple[int, ...]:
    """Which part of the data this process reads: processes of one tensor-parallel group read the same.

    Returns:
        The place of this process among those that read different data; () if all read the same.
    """
    for module in fsdp_modules(model):
        state = module._get_fsdp_state()
        several = getattr(state, "_fsdp_param_groups", None)
        groups = [getattr(state, "_fsdp_param_group", None)] if several is None else several  # older torch has one
        for group in filter(None, groups):
            return tuple(group.mesh_info.mesh.get_coordinate() or ())
    return () if holds_shards(model) else (distributed.get_rank(),)


def memo_of(model: nn.Module, plain: nn.Module, states: Iterable[Any]) -> dict[int, Any]:
    """Whole tensors by the `id` of sharded ones, for a deep copy of an optimizer. Every process calls it.

    Args:
        model: The sharded model.
        plain: Its plain copy.
        states: Other tensors, of an optimizer's state; what is not sharded is left out.
    """
    memo: dict[int, Any] = {id(other): own for own, other in zip(plain.parameters(), model.parameters(), strict=True)}
    return memo | {id(tensor): whole_tensor(tensor) for tensor in states if is_sharded(tensor)}


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """The parameters and buffers of a model."""
    return chain(model.parameters(), model.buffers())


def _plain_class(module: nn.Module) -> type:
    """The class of a module before `fully_shard` put its own in front, or one that does not wait for others."""
    if isinstance(module, nn.SyncBatchNorm):
        return LocalBatchNorm
    is_own = type(module).__mro__[1].__module__.startswith("torch.distributed")
    return type(module).__bases__[1] if is_own and len(type(module).__bases__) > 1 else type(module)


def _without_hooks(module: nn.Module) -> dict[str, Any]:
    """The attributes of a module, without the state and the hooks that shard it."""
    attributes = {name: value for name, value in vars(module).items() if not name.startswith(STATE)}
    gone = set()
    for name, hooks in attributes.items():
        if name.endswith("_hooks") and hooks:
            gone |= {key for key, hook in hooks.items() if _shards(hook)}
            attributes[name] = type(hooks)((key, hook) for key, hook in hooks.items() if not _shards(hook))
    for name in FLAGS:
        attributes[name] = type(attributes[name])((k, v) for k, v in attributes[name].items() if k not in gone)
    return attributes


def _shards(hook: Any) -> bool:
    """Whether a hook is one of `fully_shard` or `parallelize_module`."""
    return str(getattr(hook, "__module__", "")).startswith("torch.distributed")
