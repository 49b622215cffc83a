"""Ghost batch normalization: a large batch is normalized as several small ones (Hoffer et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.types import Device

from wellcond.nn.batchnorm import BatchNormVariant, BatchStatistics, positions


class GhostBatchNorm(BatchNormVariant):
    """Batch normalization of every `ghost_size` consecutive examples by themselves.

    With μ_g and σ_g² the mean and variance over the examples and positions of ghost g, for its examples:

        y = γ (x − μ_g) / √(σ_g² + ε) + β

    A ragged last chunk is a ghost of its own; where it has a single value per channel, which has no variance, it joins
    the ghost before it. A batch of one ghost is normalized as by `torch.nn.BatchNorm2d`.

    Running statistics average, over the examples, their ghost's mean and unbiased variance, in one update per step: the
    running variance estimates that of the population, whatever the size of the ghosts. Evaluation has no ghosts.

    Arguments that are not listed are those of torch's layers.

    Args:
        ghost_size: Examples per ghost; the default is that of Summers and Dinneen (2020).

    Example:
        >>> x = torch.tensor([[1.0], [3.0], [10.0], [30.0], [5.0]])
        >>> GhostBatchNorm1d(1, eps=0.0, ghost_size=2)(x[:4]).T.detach()
        tensor([[-1., 1., -1., 1.]])
        >>> GhostBatchNorm1d(1, eps=0.0, ghost_size=2)(x).T.detach()  # the fifth joins the second ghost
        tensor([[-1.0000, 1.0000, -0.4629, 1.3887, -0.9258]])
    """

    cure_for_one_value = (
        "Use larger batches (drop_last=True leaves out a last batch of one) and a ghost_size of 2 or more"
    )

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
        ghost_size: int = 16,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        if ghost_size < 1:
            raise ValueError(f"ghost_size={ghost_size}: it must be at least 1.")
        self.ghost_size = ghost_size

    def values_per_example(self, x: Tensor) -> int:
        """Number of values that an example contributes to each statistic."""
        return positions(x)

    def values_per_group(self, x: Tensor) -> int:
        return min(x.shape[0], self.ghost_size) * self.values_per_example(x)

    def batch_statistics(self, x: Tensor) -> BatchStatistics:
        mean, var, unbiased = ghost_moments(*example_moments(x), self.ghost_size, self.values_per_example(x))
        observed = {"running_mean": mean.mean(0), "running_var": unbiased.mean(0)}
        return BatchStatistics(mean, (var + self.eps).sqrt(), observed)


def example_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (N, C) over the positions of each example: the only pass over all of x."""
    var, mean = torch.var_mean(x.reshape(*x.shape[:2], positions(x)), dim=2, correction=0)
    return mean, var


def pooled(mean: Tensor, var: Tensor, examples: int, channels: int = 1) -> tuple[Tensor, Tensor]:
    """Moments (N, C) → those of their group of consecutive examples times channels, (N, C)."""
    groups = (mean.shape[0] // examples, examples, mean.shape[1] // channels, channels)
    means = mean.reshape(groups)
    between, center = torch.var_mean(means, dim=(1, 3), correction=0, keepdim=True)
    # the variance of a union is the variance within its parts plus that between them
    spread = var.reshape(groups).mean((1, 3), keepdim=True) + between
    return center.expand_as(means).reshape_as(mean), spread.expand_as(means).reshape_as(mean)


def ghost_moments(
    mean: Tensor, var: Tensor, ghost_size: int, values_per_example: int, channels: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Moments (N, C) → mean, variance and unbiased variance (N, C) of the ghost they belong to."""
    examples = mean.shape[0]
    rest = examples % ghost_size
    if rest * values_per_example == 1 and examples > ghost_size:  # a single value has no variance
        rest += ghost_size
    full = examples - rest
    parts = []
    for rows, size in ((slice(full), ghost_size), (slice(full, examples), rest)):
        if mean[rows].shape[0] > 0:
            center, spread = pooled(mean[rows], var[rows], size, channels)
            values = size * values_per_example
            parts.append((center, spread, spread * (values / (values - 1))))
    center, spread, unbiased = (torch.cat(moment) for moment in zip(*parts, strict=True))
    return center, spread, unbiased


class GhostBatchNorm1d(GhostBatchNorm):
    """`GhostBatchNorm` of inputs (N, C) or (N, C, L)."""

    input_dims = (2, 3)


class GhostBatchNorm2d(GhostBatchNorm):
    """`GhostBatchNorm` of inputs (N, C, H, W)."""

    input_dims = (4,)


class GhostBatchNorm3d(GhostBatchNorm):
    """`GhostBatchNorm` of inputs (N, C, D, H, W)."""

    input_dims = (5,)
