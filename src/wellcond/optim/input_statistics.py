"""Mean and variance of what a layer receives: taken from one call, merged over calls, micro-batches and processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from wellcond.layers import ConvRule, TransposedConvRule, patches, rule_for, with_batch

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


def statistics_of(module: nn.Module, x: Tensor, output: Tensor, means: Means) -> InputStatistics:
    """The statistics of one call, in float32 or better."""
    x = x.detach()
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    if not isinstance(rule_for(module), ConvRule):
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        count = rows.shape[0]
        return InputStatistics(*_column_moments(rows), count, count, count)
    x, output = with_batch(module, x), with_batch(module, output)
    examples, positions = x.shape[0], x.shape[0] * math.prod(output.shape[2:])
    if means == "channel":
        return InputStatistics(*_column_moments(x), x.numel() // x.shape[1], examples, positions)
    return InputStatistics(*_kernel_moments(module, x, output), positions, examples, positions)


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
) -> list[list[InputStatistics]]:
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
    return found


def _column_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of dimension 1 over all others."""
    if x.device.type in ("cpu", "cuda"):  # BatchNorm's own kernel, on one core 20 times as fast as `var_mean`
        return torch.batch_norm_update_stats(x, None, None, 0.0)
    variance, mean = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
    return mean, variance


def _kernel_moments(module: nn.Module, x: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of every column of the im2col matrix, without forming it.

    Summing over examples commutes with taking patches, so the patches of two summed maps are enough. In float64,
    since the variance is a difference of moments.
    """
    first = x.sum(0, keepdim=True, dtype=torch.float64)
    second = torch.linalg.vector_norm(x, dim=0, keepdim=True, dtype=torch.float64).square()
    rows = x.shape[0] * math.prod(output.shape[2:])
    if isinstance(rule_for(module), TransposedConvRule):
        # kernel site k carries input position t to an output position that may lie in the cropped border
        lands = patches(module, torch.ones_like(output[:1, :1], dtype=torch.float64))[0, 0]
        mean, square = (torch.einsum("ct,kt->ck", map_[0].flatten(1), lands) / rows for map_ in (first, second))
    else:
        mean, square = (patches(module, map_)[0].sum(-1) / rows for map_ in (first, second))
    variance = (square - mean**2).clamp(min=0)
    return mean.flatten().to(x.dtype), variance.flatten().to(x.dtype)
