"""Batch Renormalization: a batch is corrected toward the running statistics, more and more (Ioffe 2017)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.types import Device

from wellcond.nn.batchnorm import BatchNormVariant, BatchStatistics


class BatchRenorm(BatchNormVariant):
    """Batch normalization whose training output approaches its evaluation output, for small or uneven batches.

    With μ_B, σ_B of the batch and μ, σ the running statistics before this step (σ² stands for variance + ε):

        y = γ ((x − μ_B)/σ_B · r + d) + β
        r = clip(σ_B/σ, 1/r_max, r_max),    d = clip((μ_B − μ)/σ, −d_max, d_max),    both without gradient

    Unclipped, this is (x − μ)/σ. The limits are 1 and 0 (plain batch normalization) until the first step of `r_ramp`
    and `d_ramp`, then rise linearly to `r_max` and `d_max` at the second, and stay there. Steps are counted by
    `num_batches_tracked`, which a checkpoint keeps and the state of a plain batch norm brings along. Ioffe's
    momentum is 0.01. Without running statistics r = 1 and d = 0.

    Arguments that are not listed are those of torch's layers.

    Args:
        r_max: Final limit of r, at least 1.
        d_max: Final limit of d, at least 0.
        r_ramp: First and last step of the rise of r's limit.
        d_ramp: First and last step of the rise of d's limit.

    Example:
        >>> norm = BatchRenorm1d(3)
        >>> _ = norm.num_batches_tracked.fill_(15_000)
        >>> r_max, d_max = norm.limits()
        >>> round(float(r_max), 4), round(float(d_max), 4)  # 1 + 2·10/35 and 5·10/20
        (1.5714, 2.5)

        With wide limits, a training batch is normalized as in evaluation:

        >>> wide = BatchRenorm1d(3, r_max=1e6, d_max=1e6, r_ramp=(0, 1), d_ramp=(0, 1))
        >>> _ = wide.num_batches_tracked.fill_(1)
        >>> x = torch.randn(4, 3)
        >>> in_evaluation = wide.eval()(x)
        >>> torch.allclose(wide.train()(x), in_evaluation, atol=1e-5)
        True
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
        r_max: float = 3.0,
        d_max: float = 5.0,
        r_ramp: tuple[int, int] = (5_000, 40_000),
        d_ramp: tuple[int, int] = (5_000, 25_000),
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        for name, limit, least in (("r_max", r_max, 1), ("d_max", d_max, 0)):
            if not limit >= least:
                raise ValueError(f"{name}={limit}: it must be at least {least}.")
        for name, (start, end) in (("r_ramp", r_ramp), ("d_ramp", d_ramp)):
            if not 0 <= start < end:
                raise ValueError(f"{name}=({start}, {end}): it must be two steps, 0 <= start < end.")
        self.r_max, self.d_max, self.r_ramp, self.d_ramp = r_max, d_max, r_ramp, d_ramp

    def batch_statistics(self, x: Tensor) -> BatchStatistics:
        mean, scale, observed = super().batch_statistics(x)
        if self.running_mean is None:
            return BatchStatistics(mean, scale, observed)
        r, d = self._correction(mean, scale)
        # (x − μ_B)/σ_B · r + d, written as one center and one scale
        return BatchStatistics(mean - d * scale / r, scale / r, observed)

    @torch.no_grad()
    def _correction(self, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        running_mean, running_scale = self.running_statistics()
        r_max, d_max = self.limits()
        r = (scale / running_scale).clamp(1 / r_max, r_max)
        d = ((mean - running_mean) / running_scale).clamp(-d_max, d_max)
        return r, d

    def limits(self) -> tuple[Tensor, Tensor]:
        """r_max and d_max of the next step, as tensors without dimensions."""
        risen_r, risen_d = (
            ((self.steps() - start) / (end - start)).clamp(0, 1) for start, end in (self.r_ramp, self.d_ramp)
        )
        return 1 + (self.r_max - 1) * risen_r, self.d_max * risen_d


class BatchRenorm1d(BatchRenorm):
    """`BatchRenorm` of inputs (N, C) or (N, C, L)."""

    input_dims = (2, 3)


class BatchRenorm2d(BatchRenorm):
    """`BatchRenorm` of inputs (N, C, H, W)."""

    input_dims = (4,)


class BatchRenorm3d(BatchRenorm):
    """`BatchRenorm` of inputs (N, C, D, H, W)."""

    input_dims = (5,)
