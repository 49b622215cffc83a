"""Calling a model, whatever is around it and its inputs; the tensors in what it returns; and which layer failed."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils._pytree import tree_leaves, tree_map

from wellcond.errors import Unsupported
from wellcond.network.whole import in_shards, is_sharded, tensors_of


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and (Distributed)DataParallel."""
    model = _uncompiled(model)
    while isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        model = _uncompiled(model.module)
    return model


def _uncompiled(model: nn.Module) -> nn.Module:
    while isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
        model = inner
    return model


def group_of(model: nn.Module) -> Any:
    """The process group over which a model is trained; None if one process trains it, and holds all of it.

    Raises:
        Unsupported: Its parameters are on a part of the processes, or in one flat tensor.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    world = distributed.get_world_size()
    model = _uncompiled(model)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.process_group if world > 1 else None
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise Unsupported(
            "FullyShardedDataParallel keeps all parameters in one flat tensor, in which there are no layers. Shard the "
            "model by torch.distributed.fsdp.fully_shard(model) instead."
        )
    sharded: list[Any] = list(filter(is_sharded, tensors_of(in_shards(model))))
    if not sharded:
        return None
    largest = max(tensor.device_mesh.size() for tensor in sharded)
    if largest < world:
        raise Unsupported(
            f"the model is sharded over {largest} of {world} processes; a model on a part of them, as in a pipeline, "
            "cannot be measured."
        )
    return distributed.group.WORLD


def call(model: nn.Module, inputs: Any) -> Any:
    """`model(inputs)` for a tensor, `model(*inputs)` for a tuple or list, `model(**inputs)` for a mapping.

    A tuple of several is passed as it is to a `forward` that takes one argument.
    """
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) and not _is_one(model, inputs) else model(inputs)


def _is_one(model: nn.Module, inputs: Sequence[Any]) -> bool:
    """Whether several inputs are the only argument of a model; torch's own modules take a tensor."""
    is_torchs = type(model).__module__.startswith("torch.")
    return len(inputs) > 1 and not is_torchs and "forward" not in vars(model) and _takes_one(type(model).forward)


@functools.cache
def _takes_one(forward: Callable[..., Any]) -> bool:
    """Whether a `forward` takes one argument, next to the module itself."""
    _, *known = inspect.signature(forward).parameters.values()
    return len(known) == 1 and known[0].kind in (known[0].POSITIONAL_ONLY, known[0].POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Arguments:
    """The parameters of a function.

    Attributes:
        required: Number of positional arguments that it requires.
        most: Number of positional arguments that it accepts; None for any number.
        names: Names of the arguments that it accepts by name; None for any.
    """

    required: int
    most: int | None
    names: frozenset[str] | None

    def takes(self, count: int) -> bool:
        """Whether it requires exactly this number of arguments, or accepts any number."""
        return self.required == count or self.most is None


def arguments_of(function: Callable[..., Any]) -> Arguments:
    """The parameters of a function, or of a module's `forward`; if Python cannot tell, one or more of any name."""
    try:
        known = inspect.signature(function.forward if isinstance(function, nn.Module) else function).parameters.values()
    except (TypeError, ValueError):
        return Arguments(1, None, None)
    places = [p for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = frozenset(p.name for p in known if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))
    return Arguments(
        sum(p.default is p.empty for p in places),
        None if any(p.kind is p.VAR_POSITIONAL for p in known) else len(places),
        None if any(p.kind is p.VAR_KEYWORD for p in known) else names,
    )


def why_unfit(model: nn.Module, inputs: Any) -> str:
    """What is wrong with the number or the names of a model's arguments; empty if nothing is wrong."""
    if not isinstance(inputs, (Mapping, tuple, list)) or (not isinstance(inputs, Mapping) and _is_one(model, inputs)):
        return ""
    known = arguments_of(model)
    if isinstance(inputs, Mapping):
        unknown = [] if known.names is None else [str(name) for name in inputs if name not in known.names]
        call_text, wrong = f"{type(model).__name__}({', '.join(map(str, inputs))})", bool(unknown)
    else:
        call_text = f"{type(model).__name__} with {len(inputs)} inputs"
        wrong = len(inputs) < known.required or (known.most is not None and len(inputs) > known.most)
    takes = f"takes {known.most}" if known.names is None else f"takes {', '.join(sorted(known.names))}"
    return f"would be passed to {call_text}, but its forward {takes}." if wrong else ""


def to_device(tree: Any, device: torch.device) -> Any:
    """A nest on a device: its tensors, and other objects that can be moved, such as a tokenizer's encoding."""

    def moved(leaf: Any) -> Any:
        leaf = leaf.to(device) if hasattr(leaf, "to") else leaf
        # autograd cannot differentiate through tensors created in inference mode, but through a copy
        return leaf.clone() if isinstance(leaf, Tensor) and leaf.is_inference() else leaf

    return tree_map(moved, tree)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a tensor, a nest of containers, or an output object and its attributes, in their order."""
    tensors: list[Tensor] = []
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            tensors.append(value)
        elif id(value) not in seen:
            seen.add(id(value))
            value = value.to_tuple() if hasattr(value, "to_tuple") else value
            leaves = tree_leaves(value)
            if len(leaves) == 1 and leaves[0] is value:
                is_output = not isinstance(value, (nn.Module, type))
                leaves = list(getattr(value, "__dict__", {}).values()) if is_output else []
            waiting += reversed(leaves)
    return tensors


def dense_parts(tensor: Tensor) -> list[Tensor]:
    """The dense tensors that hold a tensor's numbers: itself, or the indices and values of a sparse one."""
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    ends, places = ("crow", "col") if tensor.layout in (torch.sparse_csr, torch.sparse_bsr) else ("ccol", "row")
    return [getattr(tensor, f"{ends}_indices")(), getattr(tensor, f"{places}_indices")(), tensor.values()]


def is_equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors, dense or sparse, have one shape and layout and the same numbers.

    Example:
        >>> eye = torch.eye(2)
        >>> is_equal(eye.to_sparse(), eye.to_sparse()), is_equal(eye.to_sparse(), 2 * eye.to_sparse())
        (True, False)
    """
    return (
        first.shape == second.shape
        and first.layout == second.layout
        and all(map(torch.equal, dense_parts(first), dense_parts(second)))
    )


def are_close(first: list[Tensor], second: list[Tensor]) -> bool:
    """Whether two passes gave the same tensors, up to the rounding of kernels that add in varying order."""
    return len(first) == len(second) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )


def logits_of(outputs: Any) -> Tensor | None:
    """The tensor among a model's outputs that a loss depends on: the output itself, or its `.logits`."""
    logits = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    return logits if isinstance(logits, Tensor) else None


def failing_layer(model: nn.Module, error: BaseException) -> str:
    """Name of the innermost module that an exception was raised in; "" if it is the model itself, or none."""
    names = {id(module): name for name, module in model.named_modules()}
    owners = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((names[id(owner)] for owner in reversed(owners) if id(owner) in names), "")


def why_call_failed(model: nn.Module, index: int, inputs: Any, error: Exception) -> str:
    """One sentence that names the layer that failed on a batch."""
    name = failing_layer(model, error)
    where = (
        f"layer {name!r} ({type(model.get_submodule(name)).__name__})" if name else f"{type(model).__name__}.forward"
    )
    dtypes = [t.dtype for t in tensors_in(inputs) if t.is_floating_point()]
    of_model = next((p.dtype for p in model.parameters()), None)
    mixed = next((dtype for dtype in dtypes if of_model is not None and dtype != of_model), None)
    hint = f" The inputs are {dtype_name(mixed)} and the model is {dtype_name(of_model)}: convert one." if mixed else ""
    return f"batch {index} does not go through {where}: {one_line(error)}.{hint}"


def dtype_name(dtype: torch.dtype | None) -> str:
    """`float32`, not `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def one_line(error: Exception) -> str:
    """The message of an exception on one line, without its final period."""
    return " ".join(str(error).split()).rstrip(".")
