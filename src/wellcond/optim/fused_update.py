"""The steps of `running_statistics` in few kernels: Triton's on a GPU, or what `torch.compile` makes of the formulas."""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

NO_TRITON = """\
Triton does not work here, so BNP preconditions with plain operations: the same numbers, in more time on a GPU. It
failed with {error}. To be without this warning: BNP(…, fused=False)."""


class Columns(NamedTuple):
    """The columns of Ĥ of all layers on one device.

    Attributes:
        moments: Running μ and σ², (2, columns).
        scale: 1/(q² σ̃²), (columns,).
        group: The group that each column belongs to, counted over all layers.
        starts: The first column of every group, and behind them the number of columns.
        layers: (groups, columns of a group, entries of a weight's row that share a column) of every layer.
    """

    moments: Tensor
    scale: Tensor
    group: Tensor
    starts: Tensor
    layers: tuple[tuple[int, int, int], ...]


class Constants(NamedTuple):
    """What steps on batches of equal size have in common, on the device.

    Attributes:
        weight: 1 − ρ of every column; 0 in layers without a batch, whose statistics stay.
        q2: q² of every column.
        q2_eps2: q² ε₂ of every column.
        of_groups: q², 1 − ρ, ε₁ and ε₂ of every group, as (groups, 4).
        of_layers: The same for the groups of each layer.
    """

    weight: Tensor
    q2: Tensor
    q2_eps2: Tensor
    of_groups: Tensor
    of_layers: tuple[Tensor, ...]


class Rows(NamedTuple):
    """Gradients that are stored row by row, of the layer with an index: G_w, and G_b if there is one."""

    layer: int
    weight: Tensor
    bias: Tensor | None


def update(columns: Columns, batch: Tensor, constants: Constants, rows: Sequence[Rows], skipped: Tensor | None) -> None:
    """All steps of Algorithms 2 and 3, as formulas, for a compiler to make loops of.

    Args:
        columns: Statistics and scales; written.
        batch: μ_H and σ_H², (2, columns).
        constants: Those of the step.
        rows: Gradients; written.
        skipped: A number that is not 0 if the optimizer is going to skip the step: the statistics stay.
    """
    moments = torch.lerp(columns.moments, batch, constants.weight)
    if skipped is not None:
        moments = torch.where(skipped == 0, moments, columns.moments)
    mean, variance = moments
    lengths = [groups * size for groups, size, _ in columns.layers]
    of_layers = zip(torch.split(variance, lengths), columns.layers, strict=True)
    largest = torch.cat([piece.view(groups, size).amax(1) for piece, (groups, size, _) in of_layers])
    eps1 = constants.of_groups[0, 2]
    scale = 1 / (constants.q2_eps2 + (variance + eps1 * largest[columns.group]) * constants.q2)
    columns.moments.copy_(moments)
    columns.scale.copy_(scale)
    means, scales = torch.split(mean, lengths), torch.split(scale, lengths)
    for layer, gradient, bias in rows:
        groups, size, repeats = columns.layers[layer]
        m, s = (
            vector[layer].view(groups, 1, size, 1).expand(-1, -1, -1, repeats).reshape(groups, 1, -1)
            for vector in (means, scales)
        )
        weight = gradient.view(groups, -1, size * repeats)
        if bias is None:
            weight.mul_(s)
            continue
        of_rows, q2 = bias.view(groups, -1, 1), constants.of_layers[layer][:, 0].view(-1, 1, 1)
        preconditioned = (weight - of_rows * m) * s
        of_rows.copy_(of_rows / q2 - (preconditioned * m).sum(2, keepdim=True))
        weight.copy_(preconditioned)


class TritonUpdate:
    """The same in two kernels; the second is launched once per layer."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __call__(
        self, columns: Columns, batch: Tensor, constants: Constants, rows: Sequence[Rows], skipped: Tensor | None
    ) -> None:
        moments, scale, _, starts, layers = columns
        self._kernels.take_up[(len(starts) - 1,)](
            moments, batch, starts, constants.of_groups, moments if skipped is None else skipped, scale, len(scale),
            CAN_SKIP=skipped is not None, BLOCK=min(4096, _power_of_two(max(size for _, size, _ in layers))),
            num_warps=16,
        )  # fmt: skip
        means, scales = (torch.split(vector, [g * size for g, size, _ in layers]) for vector in (moments[0], scale))
        for layer, weight, bias in rows:
            groups, size, repeats = layers[layer]
            outputs = weight.numel() // (groups * size * repeats)
            self._kernels.precondition_row[(groups * outputs,)](
                weight, weight if bias is None else bias, means[layer], scales[layer], constants.of_layers[layer],
                outputs, size * repeats, repeats,
                HAS_BIAS=bias is not None, BLOCK=min(1024, _power_of_two(size * repeats)),
            )  # fmt: skip


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


@functools.cache
def triton_update(device: torch.device) -> TritonUpdate | None:
    """The update with Triton's kernels, if they can be compiled for a device."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        triton = TritonUpdate(importlib.import_module("wellcond.optim.triton_kernels"))
        one = torch.ones(2, 1, device=device)
        columns = Columns(
            one, one[0].clone(), one[0], torch.tensor([0, 1], dtype=torch.int32, device=device), ((1, 1, 1),)
        )
        triton(
            columns,
            one,
            Constants(one, one, one, one.new_ones(1, 4), (one.new_ones(1, 4),)),
            [Rows(0, one[:1].clone(), one[0].clone())],
            None,
        )
    except Exception as error:  # no compiler, no driver, a device that is too old: Triton has no common exception
        warnings.warn(NO_TRITON.format(error=f"{type(error).__name__}: {error}"), stacklevel=2)
        return None
    return triton


@functools.cache
def compiled_update() -> Any:
    """The update as `torch.compile` makes it, at its first call."""
    return torch.compile(update, dynamic=False)
