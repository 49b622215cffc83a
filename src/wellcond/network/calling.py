"""Calling a model: on a tensor, a tuple or a dict, through its wrappers, and saying which layer refused."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and (Distributed)DataParallel."""
    while True:
        if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def call(model: nn.Module, inputs: Any) -> Any:
    """`model(inputs)` for a tensor, `model(*inputs)` for a tuple or list, `model(**inputs)` for a mapping."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def to_device(tree: Any, device: torch.device) -> Any:
    """Tensors, and what else can be moved such as a tokenizer's encoding, on a device."""

    def moved(leaf: Any) -> Any:
        leaf = leaf.to(device) if hasattr(leaf, "to") else leaf
        # what was made in inference mode cannot be differentiated through, but a copy of it can
        return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf

    return tree_map(moved, tree)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a tensor, a nest of containers, or an output object and its attributes, in their order."""
    found: list[Tensor] = []
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            found.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            value = value.to_tuple() if hasattr(value, "to_tuple") else value
            leaves = tree_leaves(value)
            if len(leaves) == 1 and leaves[0] is value:
                is_output = not isinstance(value, (nn.Module, type))
                leaves = list(getattr(value, "__dict__", {}).values()) if is_output else []
            waiting += reversed(leaves)
    return found


def logits_of(outputs: Any) -> Tensor | None:
    """The one tensor among a model's outputs that a loss curves in: the output itself, or its `.logits`."""
    found = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    return found if isinstance(found, Tensor) else None


def why_call_failed(model: nn.Module, index: int, inputs: Any, error: Exception) -> str:
    """One sentence naming the layer through which a batch did not go."""
    names = {id(module): name for name, module in model.named_modules()}
    owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    inside = [module for module in owners if id(module) in names]
    name = names[id(inside[-1])] if inside else ""
    where = f"layer {name!r} ({type(inside[-1]).__name__})" if name else f"{type(model).__name__}.forward"
    given = [t.dtype for t in tensors_in(inputs) if t.is_floating_point()]
    wanted = next((p.dtype for p in model.parameters()), None)
    mixed = next((dtype for dtype in given if wanted is not None and dtype != wanted), None)
    hint = f" The inputs are {dtype_name(mixed)} and the model is {dtype_name(wanted)}: convert one." if mixed else ""
    return f"batch {index} does not go through {where}: {one_line(error)}.{hint}"


def dtype_name(dtype: torch.dtype | None) -> str:
    """`float32`, not `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def one_line(error: Exception) -> str:
    """What an exception says, on one line and without its full stop."""
    return " ".join(str(error).split()).rstrip(".")
