"""Batch normalization by the average ℓ_p norm instead of the standard deviation (santurkar2018, section 3.3)."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor
from torch.types import Device

from wellcond.nn.batchnorm import BatchNormVariant, BatchStatistics, over_channels

RUNNING_SCALE: Final = {1: "running_abs", 2: "running_var", math.inf: "running_max"}
"""Name of the running statistic of each p. The names differ, so that a checkpoint of one p does not load as another."""


class LpBatchNorm(BatchNormVariant):
    """Batch normalization that divides by the average ℓ_p norm of the centered values, p = 1, 2 or ∞.

    Over batch and space, with μ the mean of each channel:

        y = γ (x − μ) / scale + β,    scale = (mean |x − μ|^p + ε)^{1/p},    for p = ∞:  max |x − μ| + ε

    p = 2 is `torch.nn.BatchNorm2d`. For the others the running statistic is `running_abs` (p = 1) or `running_max`
    (p = ∞) and `running_var` is None, so the state of a plain batch norm does not load. A maximum grows with the
    number of values it is taken over: with p = ∞ keep the batch size.

    Arguments that are not listed are those of torch's layers.

    Args:
        p: Which norm: 1, 2 or `math.inf`.

    Example:
        >>> x = torch.tensor([[-3.0], [-1.0], [4.0]])
        >>> LpBatchNorm1d(1, eps=0.0, p=math.inf, affine=False)(x).T
        tensor([[-0.7500, -0.2500, 1.0000]])
        >>> LpBatchNorm1d(1, eps=0.0, p=1, affine=False)(x).T  # mean |x| = 8/3
        tensor([[-1.1250, -0.3750, 1.5000]])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        p: float = 1,
    ) -> None:
        if p not in RUNNING_SCALE:
            raise ValueError(f"p={p}: it must be 1, 2 or math.inf.")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.p = p
        if p != 2:
            ones = None if self.running_var is None else torch.ones_like(self.running_var)
            self.register_buffer(RUNNING_SCALE[p], ones)
            self.running_var = None

    def batch_statistics(self, x: Tensor) -> BatchStatistics:
        if self.p == 2:
            return super().batch_statistics(x)
        mean = x.mean(over_channels(x))
        distance = (x - self._spread(mean, x)).abs()
        size = distance.mean(over_channels(x)) if self.p == 1 else distance.amax(over_channels(x))
        return BatchStatistics(mean, size + self.eps, {"running_mean": mean, RUNNING_SCALE[self.p]: size})

    def running_statistics(self) -> tuple[Tensor, Tensor]:
        if self.p == 2:
            return super().running_statistics()
        return self.running("running_mean"), self.running(RUNNING_SCALE[self.p]) + self.eps

    def reset_running_stats(self) -> None:
        for name, buffer in self._buffers.items():
            if buffer is not None:
                buffer.fill_(1 if name in RUNNING_SCALE.values() else 0)


class LpBatchNorm1d(LpBatchNorm):
    """`LpBatchNorm` of inputs (N, C) or (N, C, L)."""

    input_dims = (2, 3)


class LpBatchNorm2d(LpBatchNorm):
    """`LpBatchNorm` of inputs (N, C, H, W)."""

    input_dims = (4,)


class LpBatchNorm3d(LpBatchNorm):
    """`LpBatchNorm` of inputs (N, C, D, H, W)."""

    input_dims = (5,)
