"""Mean and variance of what a layer receives: taken from one call, merged over calls, micro-batches and processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from wellcond.network.layers import ConvRule, TransposedConvRule, patches, rule_for, with_batch

Means = Literal["channel", "kernel"]
"""Of a convolution: one mean an input channel (eqs. 21, 22), or one for every kernel entry (eqs. 19, 20)."""


class InputStatistics(NamedTuple):
    """Statistics of the columns of Ĥ, shape (columns,): features, input channels, or channels × kernel sites."""

    mean: Tensor
    variance: Tensor
    """Biased: the mean squared distance from `mean`."""
    rows: int
    """How many values each column has: examples, tokens or positions."""
    examples: int
    """N of lange2022: examples of a convolution, rows of a dense layer."""
    positions: int
    """Output positions of all examples together; rows of a dense layer."""


def measure_for(module: nn.Module, means: Means) -> Callable[[Tensor, Tensor], InputStatistics]:
    """The function of a layer's (input, output) that takes the statistics of one call, in float32 or better."""
    if not isinstance(rule_for(module), ConvRule):
        return _of_rows
    return partial(_of_channels if means == "channel" else _of_kernel_entries, module)


def merged(parts: Sequence[InputStatistics]) -> InputStatistics:
    """The statistics of all rows together: means weigh by rows, variances add the spread of the means.

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
    mean = sum((part.mean * (part.rows / rows) for part in parts), torch.zeros(()))
    variance = sum(((part.variance + (part.mean - mean) ** 2) * (part.rows / rows) for part in parts), torch.zeros(()))
    examples, positions = sum(part.examples for part in parts), sum(part.positions for part in parts)
    return InputStatistics(mean, variance, rows, examples, positions)


def gathered(
    parts: Sequence[InputStatistics | None], columns: Sequence[int], group: Any
) -> list[InputStatistics | None]:
    """What every process of a group has for each layer, in one exchange; processes without a part are left out."""
    present = next((part.mean for part in parts if part is not None), torch.zeros(()))

    def packed(part: InputStatistics | None, width: int) -> Tensor:
        if part is None:
            return torch.zeros(3 + 2 * width, dtype=torch.float64, device=present.device)
        counts = torch.tensor([part.rows, part.examples, part.positions], dtype=torch.float64, device=present.device)
        return torch.cat([counts, part.mean.double(), part.variance.double()])

    mine = torch.cat([packed(part, width) for part, width in zip(parts, columns, strict=True)])
    everyone = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(everyone, mine, group)

    found: list[list[InputStatistics]] = [[] for _ in columns]
    for flat in everyone:
        for layer, piece in zip(found, torch.split(flat, [3 + 2 * width for width in columns]), strict=True):
            rows, examples, positions = map(int, piece[:3].tolist())
            if rows:
                mean, variance = piece[3:].to(present.dtype).chunk(2)
                layer.append(InputStatistics(mean, variance, rows, examples, positions))
    return [merged(layer) if layer else None for layer in found]


def _of_rows(x: Tensor, output: Tensor) -> InputStatistics:
    rows = _precise(x)
    if rows.dim() != 2:
        rows = rows.reshape(-1, rows.shape[-1])
    count = rows.shape[0]
    return InputStatistics(*_column_moments(rows), count, count, count)


def _of_channels(module: nn.Module, x: Tensor, output: Tensor) -> InputStatistics:
    x, output = with_batch(module, _precise(x)), with_batch(module, output)
    positions = x.shape[0] * math.prod(output.shape[2:])
    return InputStatistics(*_column_moments(x), x.numel() // x.shape[1], x.shape[0], positions)


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
        # kernel site k carries input position t to an output position that may lie in the cropped border
        lands = patches(module, torch.ones_like(output[:1, :1], dtype=torch.float64))[0, 0]
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
    if x.device.type == "cpu" or (x.is_cuda and x.dim() == 2):
        # BatchNorm's own kernel: on one core 20 times as fast as `var_mean`; on a GPU it has one block a channel
        return torch.batch_norm_update_stats(x, None, None, 0.0)
    variance, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
    return mean, variance
