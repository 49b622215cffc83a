"""Indices and probabilities that a CUDA kernel would refuse by ending the process, checked before the kernel runs.

A CPU raises an error for a label that is out of range. A GPU trips an assert on the device instead, after which nothing
can be computed in the process.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_SWITCH = {"off": False}


@contextlib.contextmanager
def unguarded() -> Iterator[None]:
    """Inside, `guarded` does nothing: the data have been checked, and a check waits for the device."""
    before, _SWITCH["off"] = _SWITCH["off"], True
    try:
        yield
    finally:
        _SWITCH["off"] = before


def guarded() -> contextlib.AbstractContextManager[Any]:
    """Around a call of a model or a loss on a GPU: what would trip an assert there raises an `IndexError` instead."""
    return contextlib.nullcontext() if _SWITCH["off"] else Guarded()


class Guarded(TorchFunctionMode):
    """Checks the calls of `CHECKS`, on any device."""

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        check = CHECKS.get(func)
        if check is not None:
            with torch._C.DisableTorchFunction():
                check(*args, **kwargs)
        return func(*args, **kwargs)


def _check_range(what: str, index: Any, low: int, size: int, ignored: int | None = None) -> None:
    """Raise if an integer tensor has values below `low` or from `size` on."""
    if not isinstance(index, Tensor) or index.dtype in (torch.bool, torch.uint8) or index.is_floating_point():
        return
    if not index.numel() or index.is_sparse or index.device.type == "meta":
        return
    if ignored is not None:
        index = torch.where(index == ignored, index.new_tensor(max(low, 0)), index)
    least, most = torch.stack(torch.aminmax(index)).tolist()
    if least < low or most >= size:
        raise IndexError(f"{what} are {least} to {most}, but must be from {low} to {size - 1}")


def _check_shares(what: str, values: Any) -> None:
    """Raise if numbers are below 0 or above 1; NaN is left to others, which name its origin."""
    if isinstance(values, Tensor) and values.is_floating_point() and values.numel():
        least, most = torch.stack(torch.aminmax(values.detach())).tolist()
        if least < 0 or most > 1:
            raise RuntimeError(f"{what} are {least:.4g} to {most:.4g}, but must be between 0 and 1")


def _embedding(input: Tensor, weight: Tensor, *_: Any, **__: Any) -> None:
    _check_range(f"indices of an embedding with {len(weight)} rows", input, 0, len(weight))


def _classes(input: Tensor, target: Tensor, *_: Any, ignore_index: int = -100, **__: Any) -> None:
    if isinstance(input, Tensor) and input.dim():
        count = input.shape[1] if input.dim() > 1 else input.shape[0]
        _check_range(f"labels of a loss with {count} classes", target, 0, count, ignore_index)


def _binary(input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
    _check_shares("outputs of a loss of probabilities", input)
    _check_shares("targets of a loss of probabilities", target)


def _one_hot(tensor: Tensor, num_classes: int = -1) -> None:
    if num_classes > 0:
        _check_range(f"labels of one_hot with {num_classes} classes", tensor, 0, num_classes)


def _along(input: Tensor, dim: Any, index: Any = None, *_: Any, **__: Any) -> None:
    if isinstance(dim, int) and input.dim():
        _check_range(f"indices of a dimension of {input.shape[dim]}", index, 0, input.shape[dim])


def _take_along(input: Tensor, indices: Tensor, dim: int | None = None) -> None:
    size = input.numel() if dim is None else input.shape[dim]
    _check_range(f"indices of a dimension of {size}", indices, -size, size)


def _item(tensor: Tensor, index: Any) -> None:
    """Integer tensors in square brackets, before an ellipsis or a mask, which take other numbers of dimensions."""
    dim = 0
    for part in index if isinstance(index, tuple) else (index,):
        if part is None:
            continue
        is_mask = isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)
        if part is Ellipsis or is_mask or dim >= tensor.dim():
            return
        _check_range(f"indices of a dimension of {tensor.shape[dim]}", part, -tensor.shape[dim], tensor.shape[dim])
        dim += 1


def _drawn(input: Tensor, *_: Any, **__: Any) -> None:
    least, total = torch.stack([input.detach().min(), input.detach().sum()]).tolist()
    if not least >= 0 or not total < float("inf"):
        raise RuntimeError(f"probabilities to draw from are NaN, infinite or negative: the least is {least:.4g}")


def _set_item(tensor: Tensor, index: Any, _value: Any) -> None:
    _item(tensor, index)


Check = Callable[..., None]
CHECKS: dict[Any, Check] = {
    F.embedding: _embedding,
    F.embedding_bag: _embedding,
    F.cross_entropy: _classes,
    F.nll_loss: _classes,
    F.binary_cross_entropy: _binary,
    F.one_hot: _one_hot,
    Tensor.__getitem__: _item,
    Tensor.__setitem__: _set_item,
    torch.take_along_dim: _take_along,
    Tensor.take_along_dim: _take_along,
    torch.multinomial: _drawn,
    Tensor.multinomial: _drawn,
    torch.bernoulli: functools.partial(_check_shares, "probabilities of bernoulli"),
    **dict.fromkeys((torch.gather, Tensor.gather, torch.index_select, Tensor.index_select), _along),
    **dict.fromkeys((torch.scatter, Tensor.scatter, Tensor.scatter_, Tensor.scatter_add, Tensor.scatter_add_), _along),
}
"""What is checked before each of these functions. A function that checks its arguments on the host is not listed."""
