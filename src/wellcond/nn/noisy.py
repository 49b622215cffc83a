"""Batch normalization followed by noise whose distribution changes at every step (santurkar2018, A.2.1)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.types import Device

from wellcond.nn.batchnorm import BatchNormVariant, widened


class NoisyBatchNorm(BatchNormVariant):
    """Batch normalization with added covariate shift: during training every activation is moved and stretched.

    With a the output of plain batch normalization, γ and β included (Algorithm 1 of santurkar2018):

        per unit and step      μ ~ U(−n_μ, n_μ),        σ ~ U(1, n_σ)
        per value              m ~ U(μ − r_μ, μ + r_μ), s ~ N(σ, r_σ)     r_σ is a standard deviation
        output                 s · a + m

    A value is one example at one position: height and width are part of the batch. The noise comes from torch's global
    generator, so `torch.manual_seed` fixes it. Evaluation is plain batch normalization, without noise.
    `Problem(…, dropout=seed)` measures it with fixed noise.

    Arguments that are not listed are those of torch's layers.

    Args:
        n_mu: Largest shift of a unit's mean, n_μ ≥ 0.
        n_sigma: Largest factor by which a unit is stretched, n_σ ≥ 1.
        r_mu: Largest shift of a unit's values around its mean, r_μ ≥ 0.
        r_sigma: Standard deviation of their stretching, r_σ ≥ 0.

    Example:
        Without stretching and with no spread inside a unit, only the mean of each unit moves, by less than n_μ:

        >>> norm = NoisyBatchNorm1d(3, n_mu=0.5, n_sigma=1.0, r_mu=0.0, r_sigma=0.0)
        >>> plain = torch.nn.BatchNorm1d(3)
        >>> x = torch.randn(8, 3)
        >>> moved = norm(x) - plain(x)
        >>> bool(moved.abs().max() < 0.5), torch.allclose(moved, moved[:1].expand(8, 3), atol=1e-6)
        (True, True)
        >>> torch.allclose(norm.eval()(x), plain.eval()(x))
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
        n_mu: float = 0.5,
        n_sigma: float = 1.25,
        r_mu: float = 0.1,
        r_sigma: float = 0.1,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        least = {"n_mu": (n_mu, 0), "n_sigma": (n_sigma, 1), "r_mu": (r_mu, 0), "r_sigma": (r_sigma, 0)}
        for name, (value, bound) in least.items():
            if not value >= bound:
                raise ValueError(f"{name}={value}: it must be at least {bound}.")
        self.n_mu, self.n_sigma, self.r_mu, self.r_sigma = n_mu, n_sigma, r_mu, r_sigma

    def forward(self, input: Tensor) -> Tensor:
        output = super().forward(input)
        if not self.training:
            return output
        a = widened(output)
        unit = a.new_empty(1, self.num_features, *[1] * (a.dim() - 2))
        mu = _centered_uniform(unit, self.n_mu)
        sigma = 1 + torch.rand_like(unit) * (self.n_sigma - 1)
        m = mu + _centered_uniform(a, self.r_mu)
        s = sigma + torch.randn_like(a) * self.r_sigma
        return (s * a + m).to(output.dtype)


def _centered_uniform(like: Tensor, reach: float) -> Tensor:
    """Draws from U(−reach, reach), shaped like a tensor."""
    return (2 * torch.rand_like(like) - 1) * reach


class NoisyBatchNorm1d(NoisyBatchNorm):
    """`NoisyBatchNorm` of inputs (N, C) or (N, C, L)."""

    input_dims = (2, 3)


class NoisyBatchNorm2d(NoisyBatchNorm):
    """`NoisyBatchNorm` of inputs (N, C, H, W)."""

    input_dims = (4,)


class NoisyBatchNorm3d(NoisyBatchNorm):
    """`NoisyBatchNorm` of inputs (N, C, D, H, W)."""

    input_dims = (5,)
