"""The calls of a layer that BNP preconditions, eager or inside a graph of `torch.compile`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from wellcond.optim.input_statistics import InputStatistics
from wellcond.optim.preconditioned_layer import PreconditionedLayer
from wellcond.optim.processes import SharedStatistics

NOT_IN_A_CUDA_GRAPH = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()
"""Tag for `torch.compile(mode="reduce-overhead")`: the operators must run in every step."""
_numbers = itertools.count()
_traced: WeakValueDictionary[str, LayerCalls] = WeakValueDictionary()


class LayerCalls:
    """Measures the input of each call of a module, and counts the call when the gradient of the output comes back.

    Inside `torch.compile` two operators do the same, which Dynamo sees as one node each: the first measures, and the
    second, in the backward pass, counts. Autograd saves the measured tensors in between.

    Args:
        name: Name of the module.
        module: The module.
        layer: The layer that it belongs to.
        measure: Returns the statistics of a call, from its input and output.
        shared: The processes that train together.
        follow: Called if the parameters of a layer were replaced; returns whether the optimizer holds the new ones.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        layer: PreconditionedLayer,
        measure: Callable[[Tensor, Tensor], InputStatistics],
        shared: SharedStatistics,
        follow: Callable[[PreconditionedLayer], bool],
    ) -> None:
        self.name, self.module, self.layer = name, module, layer
        self.measure, self.shared, self.follow = measure, shared, follow
        self.key = str(next(_numbers))
        # declared as written to, so that a compiler does not measure in the backward pass, which may run twice
        self.measured = torch.zeros((), dtype=torch.int64, device="cpu")
        _traced[self.key] = self

    def on_call(self, x: Tensor, output: Tensor) -> Callable[[Tensor], None] | None:
        """Measure a call; the function that is returned counts it."""
        layer = self.layer
        # torch.func calls modules with weights that are not their own
        if not layer.is_used_by(self.name) and not self.follow(layer):
            return None
        if x.numel() == 0 or not layer.collected.is_trained():
            return None
        return partial(self.count, next(_numbers), self.measure(x, output), self.shared.are_summed())

    def count(self, call: int, statistics: InputStatistics, are_summed: bool, _gradient: Tensor | None = None) -> None:
        """Count a call, in the backward pass that computed the gradient of its output."""
        is_new = self.layer.collected.add(call, statistics)
        if are_summed:
            self.shared.exchange_after_backward()
        elif is_new:
            self.shared.forget_exchange()

    def on_traced_call(self, x: Tensor, output: Tensor) -> Tensor:
        """Put both operators into the graph that is being traced."""
        weight: Any = self.module.weight
        moments, counts = torch.ops.wellcond.measure_input(
            self.measured, x.detach(), weight.detach(), output.shape, self.key
        )
        return Counted.apply(output, moments, counts, self.key)  # type: ignore[no-any-return, no-untyped-call]


class Counted(torch.autograd.Function):
    """The identity, whose backward pass counts a call. It returns a copy: a view could not be overwritten in place."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, moments: Tensor, counts: Tensor, key: str) -> Tensor:
        ctx.save_for_backward(moments, counts)
        ctx.key = key
        return output.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        torch.ops.wellcond.count_input(gradient, *ctx.saved_tensors, ctx.key)
        return gradient, None, None, None


@torch.library.custom_op("wellcond::measure_input", mutates_args=("measured",), tags=NOT_IN_A_CUDA_GRAPH)
def measure_input(
    measured: Tensor, x: Tensor, weight: Tensor, output_shape: Sequence[int], key: str
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the input of the module with this key, and the counts that belong to them."""
    calls = _traced.get(key)
    counted = None
    # torch.func calls modules with weights that are not their own
    if calls is not None and weight.data_ptr() == calls.module.weight.data_ptr():  # type: ignore[operator]
        counted = calls.on_call(x, torch.empty(output_shape, device="meta"))
    if counted is None:
        return _nothing(x, key)
    call, (mean, variance, *counts), are_summed = counted.args  # type: ignore[attr-defined]
    return torch.stack([mean, variance]), torch.tensor([call, are_summed, *counts], device="cpu")


@measure_input.register_fake
def measured_shapes(
    measured: Tensor, x: Tensor, weight: Tensor, output_shape: Sequence[int], key: str
) -> tuple[Tensor, Tensor]:
    """Tensors of the shapes that `measure_input` returns."""
    return _nothing(x, key)


def _nothing(x: Tensor, key: str) -> tuple[Tensor, Tensor]:
    """The result where there is no call to count: zero rows."""
    calls = _traced.get(key)
    columns, dtype = 0 if calls is None else calls.layer.columns, torch.promote_types(x.dtype, torch.float32)
    return x.new_zeros(2, columns, dtype=dtype), torch.zeros(5, dtype=torch.int64, device="cpu")


# the gradient is declared as written to, so that a compiler does not drop an operator without a result
@torch.library.custom_op("wellcond::count_input", mutates_args=("gradient",), tags=NOT_IN_A_CUDA_GRAPH)
def count_input(gradient: Tensor, moments: Tensor, counts: Tensor, key: str) -> None:
    """Count a call whose output has this gradient."""
    calls = _traced.get(key)
    call, are_summed, rows, examples, positions = counts.tolist()
    if calls is not None and rows:
        mean, variance = moments.clone()  # the compiler may reuse the memory
        calls.count(call, InputStatistics(mean, variance, rows, examples, positions), bool(are_summed))


@count_input.register_fake
def counted_nothing(gradient: Tensor, moments: Tensor, counts: Tensor, key: str) -> None:
    """`count_input` returns nothing."""
