"""Indices and probabilities that a CUDA kernel would refuse by ending the process, checked before the kernel runs.

A CPU raises an error for a label that is out of range. A GPU trips an assert on the device instead, after which nothing
can be computed in the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

_INDICES = {"are_known": False}


@contextlib.contextmanager
def known_indices() -> Iterator[None]:
    """Inside, `guarded` leaves indices alone: the data have been checked, and a check waits for the device.

    Probabilities are checked all the same: they are NaN where a run diverges.
    """
    before, _INDICES["are_known"] = _INDICES["are_known"], True
    try:
        yield
    finally:
        _INDICES["are_known"] = before


def guarded() -> Guarded:
    """Around a call of a model or a loss on a GPU: what would trip an assert there raises an error instead."""
    return Guarded(OF_PROBABILITIES if _INDICES["are_known"] else CHECKS)


def is_inside_vmap() -> bool:
    """Whether `torch.vmap`, or another transform of torch.func, is under way: values cannot be read there."""
    return torch._C._functorch.peek_interpreter_stack() is not None


Check = Callable[..., None]


class Guarded(TorchFunctionMode):
    """Checks calls, on any device; but not inside of `torch.vmap`, where values cannot be read.

    Args:
        checks: What is checked before which function; None: `CHECKS`.
    """

    def __init__(self, checks: Mapping[Any, Check] | None = None) -> None:
        super().__init__()
        self._checks = CHECKS if checks is None else checks

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        check = self._checks.get(func)
        if check is not None and not is_inside_vmap():
            with torch._C.DisableTorchFunction():
                check(*args, **kwargs)
        return func(*args, **kwargs)


def _check_range(what: str, index: Any, low: int, size: int, ignored: int | None = None) -> None:
    """Raise if an integer tensor has values below `low` or from `size` on."""
    if not isinstance(index, Tensor) or index.dtype == torch.bool or index.is_floating_point():
        return
    if not index.numel() or index.is_sparse or index.device.type == "meta":
        return
    if ignored is not None:
        index = torch.where(index == ignored, index.new_tensor(max(low, 0)), index)
    least, most = torch.stack(torch.aminmax(index)).tolist()
    if least < low or most >= size:
        raise IndexError(f"{what} are {least} to {most}, but must be from {low} to {size - 1}")


def _check_shares(what: str, values: Any) -> None:
    """Raise if numbers are below 0, above 1 or NaN."""
    if isinstance(values, Tensor) and values.is_floating_point() and values.numel():
        least, most = torch.stack(torch.aminmax(values.detach())).tolist()
        if not (least >= 0 and most <= 1):
            raise RuntimeError(f"{what} are {least:.4g} to {most:.4g}, but must be between 0 and 1")


# what is checked, with the arguments of each function


def _embedding(input: Tensor, weight: Tensor, *_: Any, **__: Any) -> None:
    _check_range(f"indices of an embedding with {len(weight)} rows", input, 0, len(weight))


def _classes(input: Tensor, target: Tensor, *_: Any, ignore_index: int = -100, **__: Any) -> None:
    if isinstance(input, Tensor) and input.dim():
        count = input.shape[1] if input.dim() > 1 else input.shape[0]
        _check_range(f"labels of a loss with {count} classes", target, 0, count, ignore_index)


def _margin(input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
    _check_range(f"labels of a loss with {input.shape[-1]} classes", target, 0, input.shape[-1])


def _binary(input: Tensor, target: Tensor, *_: Any, **__: Any) -> None:
    _check_shares("outputs of a loss of probabilities", input)
    _check_shares("targets of a loss of probabilities", target)


def _one_hot(tensor: Tensor, num_classes: int = -1) -> None:
    if tensor.numel():
        count = num_classes if num_classes > 0 else max(int(tensor.max()) + 1, 1)
        _check_range(f"labels of one_hot with {count} classes", tensor, 0, count)


def _along(input: Tensor, dim: Any, index: Any = None, *_: Any, **__: Any) -> None:
    if isinstance(dim, int) and input.dim():
        _check_range(f"indices of a dimension of {input.shape[dim]}", index, 0, input.shape[dim])


def _take(input: Tensor, index: Tensor) -> None:
    _check_range(f"indices of {input.numel()} entries", index, -input.numel(), input.numel())


def _item(tensor: Tensor, index: Any) -> None:
    """Integer tensors in square brackets, among slices, masks and an ellipsis."""
    parts = index if isinstance(index, tuple) else (index,)
    widths = list(map(_width, parts))
    dim = 0
    for part, width in zip(parts, widths, strict=True):
        if part is Ellipsis:
            width = tensor.dim() - sum(widths)
        elif width == 1 and dim < tensor.dim() and not _is_mask(part):
            size = tensor.shape[dim]
            _check_range(f"indices of a dimension of {size}", part, -size, size)
        dim += width


def _width(part: Any) -> int:
    """How many dimensions a part of an index takes; an ellipsis takes those that are left."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    return part.dim() if _is_mask(part) else 1


def _is_mask(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8)


def _set_item(tensor: Tensor, index: Any, _value: Any) -> None:
    _item(tensor, index)


def _put(input: Tensor, indices: Any, *_: Any, **__: Any) -> None:
    _item(input, tuple(indices))


def _drawn(input: Tensor, *_: Any, **__: Any) -> None:
    if not input.numel():
        return
    least, total = torch.stack([input.detach().min(), input.detach().sum()]).tolist()
    if not least >= 0 or not total < float("inf"):
        raise RuntimeError(f"probabilities to draw from are NaN, infinite or negative: the least is {least:.4g}")


def _coin(input: Tensor, p: Any = None, **_: Any) -> None:
    _check_shares("probabilities of bernoulli", input if p is None else p)


def _coin_in_place(_tensor: Tensor, p: Any = 0.5, **_: Any) -> None:
    _check_shares("probabilities of bernoulli", p)


ALONG = ("gather", "index_select", "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill")
"""Functions (tensor, dim, index, …), which are methods too, and methods in place."""
OF_PROBABILITIES: dict[Any, Check] = {
    F.binary_cross_entropy: _binary,
    **dict.fromkeys((torch.multinomial, Tensor.multinomial), _drawn),
    **dict.fromkeys((torch.bernoulli, Tensor.bernoulli), _coin),
    Tensor.bernoulli_: _coin_in_place,
}
"""What depends on the weights, and not on the data alone."""
CHECKS: dict[Any, Check] = OF_PROBABILITIES | {
    F.embedding: _embedding,
    F.embedding_bag: _embedding,
    F.cross_entropy: _classes,
    F.nll_loss: _classes,
    F.multi_margin_loss: _margin,
    F.one_hot: _one_hot,
    Tensor.__getitem__: _item,
    Tensor.__setitem__: _set_item,
    **dict.fromkeys((torch.take, Tensor.take), _take),
    **dict.fromkeys((torch.index_put, Tensor.index_put, Tensor.index_put_), _put),
    **{
        function: _along
        for name in ALONG
        for function in (getattr(torch, name), getattr(Tensor, name), getattr(Tensor, f"{name}_", None))
        if function is not None
    },
}
"""What is checked before each of these functions.

A function that checks its arguments on the host is not listed, nor `take_along_dim`, which takes indices modulo the
size.
"""
