"""The base class of the batch normalization variants; each defines the statistics that normalize a batch."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.errors import Unsupported


class BatchStatistics(NamedTuple):
    """Statistics that normalize a training batch, and those that update the running statistics.

    Attributes:
        center: Center, (C,), or (N, C) where examples differ.
        scale: Scale, of the same shape.
        observed: Value (C,) in this batch of each running statistic, by its name.
    """

    center: Tensor
    scale: Tensor
    observed: dict[str, Tensor]


class BatchNormVariant(_BatchNorm, ABC):
    """Batch normalization y = γ (x − center) / scale + β with other statistics than those of `torch.nn.BatchNorm2d`.

    Constructor, parameters, buffers, modes and shapes are those of torch's layers. Statistics are computed in float32
    or better, and the output has the input's dtype. Each process of a distributed run has its own statistics: do not
    pass a model with variants to `torch.nn.SyncBatchNorm.convert_sync_batchnorm`, which would replace them.
    """

    # must define

    @property
    @abstractmethod
    def input_dims(self) -> tuple[int, ...]:
        """Numbers of dimensions that an input (N, C, …) may have."""

    # may override

    cure_for_one_value: ClassVar[str] = "Use larger batches (drop_last=True leaves out a last batch of one)"

    def batch_statistics(self, x: Tensor) -> BatchStatistics:
        """The statistics of a batch (N, C, …) in float32 or better; here those of plain batch normalization."""
        var, mean = torch.var_mean(x, dim=over_channels(x), correction=0)
        values = x.shape[0] * positions(x)
        observed = {"running_mean": mean, "running_var": var * (values / (values - 1))}
        return BatchStatistics(mean, (var + self.eps).sqrt(), observed)

    def values_per_group(self, x: Tensor) -> int:
        """Number of values in the smallest set over which a statistic is taken."""
        return x.shape[0] * positions(x)

    def running_statistics(self) -> tuple[Tensor, Tensor]:
        """Center and scale (C,) of evaluation: μ and √(σ² + ε)."""
        return self.running("running_mean"), (self.running("running_var") + self.eps).sqrt()

    def evaluation_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Center and scale by which a batch is normalized in evaluation."""
        return self.running_statistics()

    # common to all

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        x = widened(input)
        if self.training or self.running_mean is None:
            self._check_values(input)
            center, scale, observed = self.batch_statistics(x)
            if self.track_running_stats and self.running_mean is not None:
                self._track(observed)
        else:
            center, scale = self.evaluation_statistics(x)
        y = (x - self._spread(center, x)) * self._spread(self._gain(scale), x)
        return (y if self.bias is None else y + self._spread(self.bias, x)).to(input.dtype)

    def inference_affine(self) -> tuple[Tensor, Tensor]:
        """Evaluation as one affine map per channel, output = scale · x + shift.

        Returns:
            Scale and shift (C,), in float32 or better.

        Raises:
            Unsupported: Evaluation depends on the batch.
        """
        center, scale = self.running_statistics()
        gain = self._gain(scale)
        shift = -center * gain
        return gain, shift if self.bias is None else shift + self.bias

    def running(self, name: str) -> Tensor:
        """A running statistic (C,) in float32 or better."""
        return widened(self._buffer(name))

    def steps(self) -> Tensor:
        """Number of batches in the running statistics; a tensor in float32 or better, to avoid synchronization."""
        return self._buffer("num_batches_tracked").to(self.running("running_mean").dtype)

    def averaging_factor(self) -> float | Tensor:
        """The weight of this batch in the running statistics: the momentum, or 1/steps where it is None."""
        return 1 / (self.steps() + 1) if self.momentum is None else self.momentum

    @torch.no_grad()
    def _track(self, observed: dict[str, Tensor]) -> None:
        factor = self.averaging_factor()
        for name, value in observed.items():
            running = self.running(name)
            self._buffer(name).copy_(running.lerp(value.to(running.dtype), factor))
        self._buffer("num_batches_tracked").add_(1)

    def _buffer(self, name: str) -> Tensor:
        buffer = self._buffers[name]
        if buffer is None:
            raise Unsupported(
                f"{self} keeps no running statistics: in evaluation too it normalizes by the batch. "
                "Build it with track_running_stats=True."
            )
        return buffer

    def extra_repr(self) -> str:
        named = inspect.signature(type(self)).parameters.values()
        own = [f"{p.name}={getattr(self, p.name, '…')}" for p in named if p.kind is p.KEYWORD_ONLY]
        return ", ".join([super().extra_repr(), *own])  # type: ignore[no-untyped-call]

    def _gain(self, scale: Tensor) -> Tensor:
        return scale.reciprocal() if self.weight is None else self.weight / scale

    def _spread(self, statistic: Tensor, x: Tensor) -> Tensor:
        """(C,) or (N, C) → (1 or N, C, 1, …), to be combined with x."""
        return statistic.reshape(-1, self.num_features, *[1] * (x.dim() - 2))

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() not in self.input_dims:
            expected = " or ".join(f"{dims}D" for dims in self.input_dims)
            raise Unsupported(f"{self} expects {expected} input, got {input.dim()}D input {tuple(input.shape)}.")
        if input.shape[1] != self.num_features:
            raise Unsupported(
                f"{self} normalizes {self.num_features} channels, the input {tuple(input.shape)} has {input.shape[1]} "
                "in its second dimension."
            )
        if not input.is_floating_point():
            raise Unsupported(f"{self} got {input.dtype} input; convert it with .float().")

    def _check_values(self, input: Tensor) -> None:
        if self.values_per_group(input) < 2:
            raise Unsupported(
                f"{self} expects more than 1 value per channel when training, got input size {tuple(input.shape)}. "
                f"{self.cure_for_one_value}, or evaluate by running statistics with .eval()."
            )


def widened(x: Tensor) -> Tensor:
    """The tensor in float32 or better."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def positions(x: Tensor) -> int:
    """Number of values that an example has in each channel."""
    return x.shape[2:].numel()


def over_channels(x: Tensor) -> tuple[int, ...]:
    """The dimensions of (N, C, …) that a statistic per channel is taken over."""
    return (0, *range(2, x.dim()))
