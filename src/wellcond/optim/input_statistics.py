"""Mean and variance of a layer's inputs: for one call, for all calls that led to a gradient, for several processes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from wellcond.errors import Unsupported
from wellcond.network.layers import ConvRule, TransposedConvRule, patches, rule_for, with_batch
from wellcond.optim.c_kernels import column_moments

NOT_CAPTURED = """\
the backward pass was captured in a CUDA graph, and the optimizer's step was not: the statistics of the layers' inputs
are inside the graph. Capture both together:

    with torch.cuda.graph(graph):
        loss(model(x), y).backward()
        optimizer.step()"""

Means = Literal["channel", "kernel"]
"""Means of a convolution: one per input channel (eqs. 21, 22), or one per kernel entry (eqs. 19, 20)."""
IN_CACHE = 2**17
"""Number of values that fit into a core's cache and are processed at once."""

Moments = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Computes mean and variance of dimension 1 over all others."""


class InputStatistics(NamedTuple):
    """Statistics of the columns of Ĥ, shape (columns,): features, input channels, or channels × kernel sites.

    Attributes:
        mean: Mean of each column.
        variance: Biased variance of each column: the mean squared distance from `mean`.
        rows: Number of values in each column: examples, tokens or positions.
        examples: N of lange2022: examples of a convolution, rows of a dense layer.
        positions: Output positions of all examples together; rows of a dense layer.
    """

    mean: Tensor
    variance: Tensor
    rows: int
    examples: int
    positions: int


def measure_for(
    module: nn.Module, means: Means, fused: bool | None = None
) -> Callable[[Tensor, Tensor], InputStatistics]:
    """The function of a layer's (input, output) that returns the statistics of one call, in float32 or better.

    Args:
        module: The layer.
        means: Kind of statistics of a convolution.
        fused: Whether to use a compiled kernel; None: if it is available.
    """
    moments = _column_moments if fused is False else partial(_moments_in_one_sweep, bool(fused))
    if not isinstance(rule_for(module), ConvRule):
        return partial(_of_rows, moments)
    return partial(_of_channels, moments, module) if means == "channel" else partial(_of_kernel_entries, module)


def merged(parts: Sequence[InputStatistics]) -> InputStatistics:
    """The statistics of all rows together: means are weighted by rows, and their spread adds to the variances.

    Example:
        >>> def of(values):
        ...     x = torch.tensor(values)[:, None]
        ...     return InputStatistics(x.mean(0), x.var(0, correction=0), len(x), len(x), len(x))
        >>> whole = merged([of([1.0, 3.0]), of([5.0])])
        >>> whole.mean.item(), whole.rows
        (3.0, 3)
        >>> round(whole.variance.item(), 4)
        2.6667
    """
    if len(parts) == 1:
        return parts[0]
    rows = sum(part.rows for part in parts)
    zero = torch.zeros_like(parts[0].mean)
    mean = sum((part.mean * (part.rows / rows) for part in parts), zero)
    variance = sum(((part.variance + (part.mean - mean) ** 2) * (part.rows / rows) for part in parts), zero)
    examples, positions = sum(part.examples for part in parts), sum(part.positions for part in parts)
    return InputStatistics(mean, variance, rows, examples, positions)


class StatisticsCollector:
    """Collects the statistics of all calls that led to the gradient now in `.grad` of a layer.

    A call counts once, when the gradient of its output comes back in a backward pass that accumulates the layer's own
    gradient: not when it is only evaluated, recomputed by checkpointing, or differentiated with respect to the input.
    Statistics are dropped with the gradient they belong to, as after a step that GradScaler skipped.

    Args:
        anchor: Returns the parameter whose gradient shows that a backward pass has reached the layer; None if all of
            its parameters are frozen.
    """

    def __init__(self, anchor: Callable[[], nn.Parameter | None]) -> None:
        self._find_anchor = anchor
        self._counted: set[int] = set()
        # statistics of all counted calls, merged: any number of micro-batches takes the memory of one
        self._statistics: InputStatistics | None = None
        # statistics of the last call that torch.autograd.grad() differentiated: its result may be put into `.grad`
        self._differentiated: InputStatistics | None = None
        self._anchor: Tensor | None = None
        self._kind: tuple[torch.device, torch.dtype, int] | None = None
        self._accumulator: Any = None
        self._backward = -1
        self._accumulates = self._is_autograd_grad = False
        self._expected_version = 0
        self._is_captured = False

    def is_trained(self) -> bool:
        """Before a call: whether the layer has trainable parameters. Layers may be unfrozen or moved at any time."""
        anchor = self._find_anchor()
        if anchor is None:
            return False
        # autograd creates a new accumulator for a moved parameter, and one per stream, unless the old one is held
        kind = anchor.device, anchor.dtype, _stream(anchor)
        if anchor is not self._anchor or kind != self._kind:
            self._accumulator = None
            self._anchor, self._kind, self._accumulator = anchor, kind, _accumulator(anchor)
        return True

    def add(self, call: int, statistics: InputStatistics) -> bool:
        """Add the statistics of a call, when the gradient of its output has come back; returns whether they count."""
        backward = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            captured = _is_captured(backward, statistics.mean.is_cuda)
            if (
                captured is not self._is_captured
            ):  # statistics from before the capture do not belong to the captured graph
                self._is_captured = captured
                self._clear()
            self._begin_backward()
        if self._accumulates and call not in self._counted:  # two losses may send two gradients through one call
            self._counted.add(call)
            self._statistics = statistics if self._statistics is None else merged([self._statistics, statistics])
            return True
        if self._is_autograd_grad:
            self._differentiated = statistics
        return False

    def statistics(self) -> InputStatistics | None:
        """The statistics that belong to the gradient in `.grad`."""
        return self._differentiated if self._statistics is None else self._statistics

    def take(self) -> InputStatistics | None:
        """The same, after which the collector starts over with the next gradient.

        Raises:
            Unsupported: The backward pass was captured in a CUDA graph, and the optimizer's step is not.
        """
        taken = self.statistics()
        if taken is not None and self._is_captured and not is_capturing(taken.mean):
            raise Unsupported(NOT_CAPTURED)
        self._clear()
        return taken

    def _begin_backward(self) -> None:
        """Determine whether the current backward pass writes `.grad`, and whether it adds to an earlier gradient."""
        self._accumulates = self._is_autograd_grad = False
        try:
            self._accumulates = bool(torch._C._will_engine_execute_node(self._accumulator))
        except RuntimeError:  # torch.autograd.grad() returns this gradient and does not write `.grad`
            self._is_autograd_grad = True
        if not self._accumulates or self._anchor is None:
            return
        gradient = self._anchor.grad
        if gradient is None:
            self._clear()
            self._expected_version = 0
            return
        version = gradient._version
        if self._counted and version != self._expected_version and not self._is_captured and not gradient.any():
            self._clear()  # it was zeroed since the last backward pass
        self._expected_version = version + 1  # accumulation writes once

    def _clear(self) -> None:
        self._counted.clear()
        self._statistics = self._differentiated = None


def is_capturing(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured on the current stream of this tensor's device."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


@functools.lru_cache(maxsize=1)
def _is_captured(backward: int, on_gpu: bool) -> bool:
    """Whether a backward pass is captured; cached per pass, since the query costs as much as a kernel."""
    return on_gpu and torch.cuda.is_current_stream_capturing()


def _stream(tensor: Tensor) -> int:
    return torch._C._cuda_getCurrentRawStream(tensor.get_device()) if tensor.is_cuda else 0


def _accumulator(parameter: nn.Parameter) -> Any:
    """The node that writes `.grad`; works inside an operator too, where autograd is switched off."""
    included, nothing = torch._C._dispatch_tls_local_include_set(), torch._C.DispatchKeySet.from_raw_repr(0)
    with torch._C._ForceDispatchKeyGuard(included, nothing):
        return get_gradient_edge(parameter).node


def _of_rows(moments: Moments, x: Tensor, output: Tensor) -> InputStatistics:
    rows = _precise(x)
    if rows.dim() != 2:  # for a small layer, a redundant view costs as much as its statistics
        rows = rows.reshape(-1, rows.shape[-1])
    count = rows.shape[0]
    return InputStatistics(*moments(rows), count, count, count)


def _of_channels(moments: Moments, module: nn.Module, x: Tensor, output: Tensor) -> InputStatistics:
    x, output = with_batch(module, _precise(x)), with_batch(module, output)
    positions = x.shape[0] * math.prod(output.shape[2:])
    return InputStatistics(*moments(x), x.numel() // x.shape[1], x.shape[0], positions)


def _of_kernel_entries(module: nn.Module, x: Tensor, output: Tensor) -> InputStatistics:
    """Mean and variance of every column of the im2col matrix, without forming it.

    Summing over examples commutes with taking patches, so the patches of two summed maps are enough. In float64,
    since the variance is a difference of moments.
    """
    x, output = with_batch(module, _precise(x)), with_batch(module, output)
    positions = x.shape[0] * math.prod(output.shape[2:])
    first = x.sum(0, keepdim=True, dtype=torch.float64)
    second = torch.linalg.vector_norm(x, dim=0, keepdim=True, dtype=torch.float64).square()
    if isinstance(rule_for(module), TransposedConvRule):
        # kernel site k maps input position t to an output position, which may lie in the cropped border
        lands = patches(module, first.new_ones(1, 1, *output.shape[2:]))[0, 0]
        mean, square = (torch.einsum("ct,kt->ck", total[0].flatten(1), lands) / positions for total in (first, second))
    else:
        mean, square = (patches(module, total)[0].sum(-1) / positions for total in (first, second))
    variance = (square - mean**2).clamp(min=0)
    return InputStatistics(mean.flatten().to(x.dtype), variance.flatten().to(x.dtype), positions, x.shape[0], positions)


def _precise(x: Tensor) -> Tensor:
    x = x.detach()
    if x.is_nested:
        x = x.values()
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _column_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of dimension 1 over all others."""
    is_cpu = x.is_cpu
    if is_cpu and x.dim() > 2 and x.is_contiguous():
        return _channel_moments(x)
    if is_cpu or (x.is_cuda and x.dim() == 2):
        # BatchNorm's kernel: on one core 20 times faster than `var_mean`; on a GPU it has one block per channel
        return torch.batch_norm_update_stats(x, None, None, 0.0)
    variance, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
    return mean, variance


def _channel_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same for (N, channels, *space) on a CPU, a few times faster than BatchNorm's kernel.

    The backward pass of BatchNorm sums (x − m)·g over each channel: with m = 0 and g = x, the squares.
    """
    examples, channels = x.shape[:2]
    count = x.numel() // channels
    mean = x.flatten(2).sum(2).sum(0) / count
    center, zeros, ones = mean.view(-1, *(x.dim() - 2) * [1]), torch.zeros_like(mean), torch.ones_like(mean)
    squares = torch.zeros_like(mean)
    for part in torch.split(x, max(1, IN_CACHE * examples // x.numel())):
        centered = part - center
        squares += torch.ops.aten.native_batch_norm_backward(
            centered, centered, None, None, None, zeros, ones, True, 0.0, [False, True, False]
        )[1]
    return mean, squares / count


def _moments_in_one_sweep(is_asked_for: bool, x: Tensor) -> tuple[Tensor, Tensor]:
    return column_moments(x, is_asked_for) or _column_moments(x)
