"""The steps of `running_statistics` with the kernels of `triton_kernels`, on a GPU."""

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
        of_layers: Running μ and the scale of every layer: its part of the vectors above.
        largest: The columns of the largest group.
    """

    moments: Tensor
    scale: Tensor
    group: Tensor
    starts: Tensor
    layers: tuple[tuple[int, int, int], ...]
    of_layers: tuple[tuple[Tensor, Tensor], ...]
    largest: int


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


class TritonUpdate:
    """Steps 2 and 3 for all layers in one kernel, steps 4 and 5 in one per layer."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __call__(
        self, columns: Columns, batch: Tensor, constants: Constants, rows: Sequence[Rows], skipped: Tensor | None
    ) -> None:
        """Update statistics and write over gradients.

        Args:
            columns: Statistics and scales; written.
            batch: μ_H and σ_H², (2, columns).
            constants: Those of the step.
            rows: Gradients; written.
            skipped: A number that is not 0 if the optimizer is going to skip the step: the statistics stay.
        """
        moments, scale, _, starts, layers, of_layers, largest = columns
        self._kernels.take_up[(len(starts) - 1,)](
            moments, batch, starts, constants.of_groups, moments if skipped is None else skipped, scale, len(scale),
            CAN_SKIP=skipped is not None, BLOCK=min(4096, _power_of_two(largest)),
            num_warps=16,
        )  # fmt: skip
        for layer, weight, bias in rows:
            groups, size, repeats = layers[layer]
            outputs = weight.numel() // (groups * size * repeats)
            self._kernels.precondition_row[(groups * outputs,)](
                weight, weight if bias is None else bias, *of_layers[layer], constants.of_layers[layer],
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
        ones, starts = torch.ones(2, 1, device=device), torch.tensor([0, 1], dtype=torch.int32, device=device)
        columns = Columns(ones, ones[1], starts[:1], starts, ((1, 1, 1),), ((ones[0], ones[1]),), 1)
        settings = ones.new_ones(1, 4)
        constants = Constants(ones, ones, ones, settings, (settings,))
        triton(columns, ones.clone(), constants, [Rows(0, ones[:1].clone(), ones[0].clone())], None)
    except Exception as error:  # no compiler, no driver, a device that is too old: Triton has no common exception
        warnings.warn(NO_TRITON.format(error=f"{type(error).__name__}: {error}"), stacklevel=2)
        return None
    return triton
