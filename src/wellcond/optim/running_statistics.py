"""Running statistics of all layers in flat vectors, so that a step of BNP takes few operations at any depth.

The steps themselves are in `algorithm`.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wellcond.errors import Unsupported
from wellcond.optim.algorithm import update_moments_, variance_of, write_scales_
from wellcond.optim.c_kernels import Kernels, c_kernels
from wellcond.optim.input_statistics import InputStatistics, is_capturing
from wellcond.optim.preconditioned_layer import PreconditionedLayer

NOT_WARM = """\
a step on batches of these sizes is captured in a CUDA graph before it was ever run, so its constants are not on the
device. Run a few steps on batches of the same sizes first, on a side stream, as torch.cuda.graph asks for anyway."""
NO_TRITON = """\
Triton does not work here, so BNP preconditions with plain operations: the same numbers, in more time on a GPU. It
failed with {error}. To silence this warning: BNP(…, fused=False)."""
MOST_CONSTANTS = 8
"""Number of batch sizes whose constants stay on the device."""


class Columns(NamedTuple):
    """The columns of Ĥ of all layers on one device.

    Attributes:
        moments: Running μ and σ², (2, columns).
        scale: 1/(q² σ̃²), (columns,).
        group: Index of the group that each column belongs to, counted over all layers.
        starts: First column of every group, followed by the number of columns.
        layers: (groups, columns of a group, entries of a weight's row that share a column) of every layer.
        of_layers: Running μ and the scale of every layer: its part of the vectors above.
        largest: Number of columns of the largest group.
    """

    moments: Tensor
    scale: Tensor
    group: Tensor
    starts: Tensor
    layers: tuple[tuple[int, int, int], ...]
    of_layers: tuple[tuple[Tensor, Tensor], ...]
    largest: int


class Constants(NamedTuple):
    """Constants that steps on batches of equal size share, on the device.

    Attributes:
        weight: 1 − ρ of every column; 0 in layers without a batch, whose statistics do not change.
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
    """Gradients of one layer that are stored row by row.

    Attributes:
        layer: Index of the layer.
        weight: G_w.
        bias: G_b, if there is one.
    """

    layer: int
    weight: Tensor
    bias: Tensor | None


class RunningStatistics:
    """Running μ and σ² of the inputs of all layers on one device, and the scales that follow from them.

    Every layer has its slice of flat vectors over all columns. Only the maximum of σ² is taken over the columns of
    one layer, or of one group of a grouped convolution.

    Args:
        layers: Layers of one device and dtype; their `mean` and `variance` are views into the vectors here.
        fused: Whether to use fused kernels; None: if they are available.
    """

    def __init__(self, layers: Sequence[PreconditionedLayer], fused: bool | None = None) -> None:
        self.layers, self._fused = layers, fused
        self._lengths = [layer.columns for layer in layers]
        dtype = torch.promote_types(layers[0].weight.dtype, torch.float32)
        start = torch.tensor([[0.0], [1.0]], dtype=dtype, device="cpu").repeat(1, sum(self._lengths))
        self._place(start, layers[0].weight.device)

    def _place(self, moments: Tensor, device: torch.device) -> None:
        """Allocate everything on a device: the moments, the layer of every column, and space for the scales."""
        moments = moments.to(device)
        self._mean, self._variance = moments
        for layer, mean, variance in zip(self.layers, *(torch.split(m, self._lengths) for m in moments), strict=True):
            layer.mean, layer.variance = mean, variance
        sizes = [layer.columns // layer.groups for layer in self.layers for _ in range(layer.groups)]
        counts = torch.tensor(sizes, device=device)
        group = torch.arange(len(sizes), device=device).repeat_interleave(counts)
        starts = torch.tensor([0, *itertools.accumulate(sizes)], dtype=torch.int32, device=device)
        shapes = tuple((layer.groups, layer.columns // layer.groups, layer.repeats) for layer in self.layers)
        scale = torch.empty_like(self._mean)
        of_layers = tuple(zip(*(torch.split(vector, self._lengths) for vector in (self._mean, scale)), strict=True))
        self._columns = Columns(moments, scale, group, starts, shapes, of_layers, max(sizes))
        self._zeros = moments.new_zeros(len(sizes))
        self._by_group = [
            (layer.variance.view(layer.groups, -1), part.view(layer.groups, -1))
            for layer, (_, part) in zip(self.layers, of_layers, strict=True)
        ]
        self._batch = torch.empty_like(moments)  # μ_H and σ_H²
        self._flat_batch = self._batch.view(-1)
        self._constants: dict[Any, Constants] = {}
        self._captured: list[Constants] = []  # memory that captured graphs read must not be freed
        is_fused = self._fused is not False
        self._triton = triton_update(device) if is_fused and device.type == "cuda" else None
        self._c = c_kernels(moments.dtype, bool(self._fused)) if is_fused and device.type == "cpu" else None
        # the column of each entry of the rows of all weights, an input channel's; None if every entry is a column
        columns = torch.tensor(self._lengths, device=device)
        repeats = torch.tensor([layer.repeats for layer in self.layers], device=device).repeat_interleave(columns)
        entries = torch.arange(len(repeats), device=device).repeat_interleave(repeats)
        self._column = entries if len(entries) > len(repeats) else None
        # μ and 1/(q² σ̃²) of each entry, and of each layer
        self._means, self._scales = self._mean, self._columns.scale
        if self._column is not None:
            self._means, self._scales = moments.new_empty(2, len(entries))
        self._views = [
            (mean.view(layer.row_shape), scale.view(layer.row_shape))
            for layer, mean, scale in zip(
                self.layers,
                *(torch.split(e, [la.groups * la.fan_in for la in self.layers]) for e in (self._means, self._scales)),
                strict=True,
            )
        ]

    def precondition(
        self,
        batches: Sequence[InputStatistics | None],
        rho: float,
        eps1: float,
        eps2: float,
        skipped: Tensor | None = None,
    ) -> None:
        """All steps, for the layers that have a batch; the others keep their statistics and their gradients.

        Args:
            batches: Statistics of each layer's inputs.
            rho: ρ.
            eps1: ε₁.
            eps2: ε₂.
            skipped: A number that is not 0 if the optimizer is going to skip this step: the statistics stay.
        """
        if all(batch is None for batch in batches):
            return
        self._follow(next(batch.mean for batch in batches if batch is not None))
        used = {index: batch for index, batch in enumerate(batches) if batch is not None}
        rows = {}
        if self._triton is not None or self._c is not None:
            rows = {index: pair for index in used if (pair := self.layers[index].gradient_rows())}
        if self._c is not None:
            for index, batch in used.items():
                self._step_in_c(self._c, index, batch, rows.get(index), (1 - rho, self.layers[index].q2, eps1, eps2))
        else:
            self._join(batches)
            constants = self._constants_of(batches, rho, eps1, eps2)
            if self._triton is not None:
                gradients = [Rows(index, *pair) for index, pair in rows.items()]
                self._triton(self._columns, self._batch, constants, gradients, skipped)
            else:
                weight = constants.weight if None in batches else 1 - rho
                update_moments_(self._columns.moments, self._batch, weight, skipped)
                write_scales_(
                    self._columns.scale, self._variance, eps1, constants.q2, constants.q2_eps2,
                    group=self._columns.group, zeros=self._zeros, by_group=self._by_group,
                )  # fmt: skip
        if len(rows) == len(used):
            return
        if self._column is not None:
            torch.index_select(self._mean, 0, self._column, out=self._means)
            torch.index_select(self._columns.scale, 0, self._column, out=self._scales)
        for index in used:
            if index not in rows:
                self.layers[index].precondition_gradients(*self._views[index])

    def _follow(self, like: Tensor) -> None:
        """Move to the device of the batch statistics, if the model has moved."""
        moments = self._columns.moments
        if like.device != moments.device or like.dtype.itemsize > moments.dtype.itemsize:
            self._place(moments.to(torch.promote_types(like.dtype, moments.dtype)), like.device)

    def _step_in_c(self, kernels: Kernels, index: int, batch: InputStatistics, gradients: Any, settings: Any) -> None:
        layer, dtype = self.layers[index], self._mean.dtype
        moments = batch.mean, _variance(layer, batch)
        if batch.mean.dtype != dtype:
            moments = moments[0].to(dtype), moments[1].to(dtype)
        sizes = (*self._columns.layers[index], layer.outputs)
        scale = self._columns.of_layers[index][1]
        kernels.step((layer.mean, layer.variance), moments, scale, gradients, sizes, settings)

    def _join(self, batches: Sequence[InputStatistics | None]) -> None:
        """Step 1: write μ_H and σ_H² of all columns; for layers without a batch, their running ones."""
        paired = list(zip(self.layers, batches, strict=True))
        means = [layer.mean if batch is None else batch.mean for layer, batch in paired]
        variances = [_variance(layer, batch) for layer, batch in paired]
        torch.cat(means + variances, out=self._flat_batch)

    def _constants_of(
        self, batches: Sequence[InputStatistics | None], rho: float, eps1: float, eps2: float
    ) -> Constants:
        q2 = [layer.q2 for layer in self.layers]
        weights = [0.0 if batch is None else 1 - rho for batch in batches]
        key = (eps1, eps2, *q2, *weights)
        constants, capturing = self._constants.get(key), is_capturing(self._mean)
        if constants is None:
            if capturing:
                raise Unsupported(NOT_WARM)
            rows = [row for layer, *row in zip(self.layers, q2, weights, strict=True) for _ in range(layer.groups)]
            of_groups = self._mean.new_tensor([[*row, eps1, eps2] for row in rows])
            of_layers = torch.split(of_groups, [layer.groups for layer in self.layers])
            of_columns = of_groups.index_select(0, self._columns.group).T.contiguous()
            constants = Constants(of_columns[1], of_columns[0], of_columns[0] * eps2, of_groups, of_layers)
            while len(self._constants) >= MOST_CONSTANTS:
                del self._constants[next(iter(self._constants))]
            self._constants[key] = constants
        if capturing:
            self._captured.append(constants)
        return constants


def _variance(layer: PreconditionedLayer, batch: InputStatistics | None) -> Tensor:
    return layer.variance if batch is None else variance_of(batch, layer.mean)


@functools.cache
def triton_update(device: torch.device) -> Any:
    """`update` of `triton_kernels`; None if they cannot be compiled for this device."""
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        triton = importlib.import_module("wellcond.optim.triton_kernels").update
        ones, starts = torch.ones(2, 1, device=device), torch.tensor([0, 1], dtype=torch.int32, device=device)
        columns = Columns(ones, ones[1], starts[:1], starts, ((1, 1, 1),), ((ones[0], ones[1]),), 1)
        settings = ones.new_ones(1, 4)
        constants = Constants(ones, ones, ones, settings, (settings,))
        triton(columns, ones.clone(), constants, [Rows(0, ones[:1].clone(), ones[0].clone())], None)
    except Exception as error:  # no compiler, no driver, a device that is too old: Triton has no common exception
        warnings.warn(NO_TRITON.format(error=f"{type(error).__name__}: {error}"), stacklevel=2)
        return None
    return triton
