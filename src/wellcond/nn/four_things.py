"""Batch normalization with the four improvements of Summers and Dinneen (2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.types import Device

from wellcond.errors import Unsupported
from wellcond.nn.batchnorm import BatchStatistics, widened
from wellcond.nn.ghost import GhostBatchNorm, example_moments, ghost_moments, pooled


class FourThingsBatchNorm(GhostBatchNorm):
    """Batch normalization with ghosts, groups of channels, the example's own moments, and a decay of γ − 1 and β.

    *Training* normalizes groups of `ghost_size` consecutive examples times `channels_per_group` channels: 16 × 1
    for large batches; for small ones 1 or 2 examples × C/32 channels, which works with a batch of one. A ragged last
    chunk is treated as in `GhostBatchNorm2d`.

    *Running statistics* are moments of the whole batch, with decay 1 − momentum = 0.99:

        M₁ ← 0.99 M₁ + 0.01 E[x],    M₂ ← 0.99 M₂ + 0.01 E[x²]

    They are kept as `running_mean` = M₁ and `running_var` = M₂ − M₁², so the state of a plain batch norm loads too.

    *Evaluation* mixes in the moments E_i of each example i, over its positions and the channels of the group:

        m = (1 − α) M₁ + α E_i[x],    s = (1 − α) M₂ + α E_i[x²],    y = γ (x − m) / √(s − m² + ε) + β

    with M₁ and M₂ averaged over the group's channels. α = 0 is the usual evaluation; α > 0 is refused where an example
    has one value per group, as (N, C) inputs have without channel groups.

    *Weight decay* is not part of the layer but of the loss: see `affine_penalty`.

    Arguments that are not listed are those of torch's layers.

    Args:
        ghost_size: Examples per group.
        channels_per_group: Channels per group; must divide `num_features`.
        alpha: α, between 0 and 1. Choose it on validation data, after training if you like: it is a plain attribute.

    Example:
        >>> norm = FourThingsBatchNorm1d(1, eps=0.0, alpha=1.0).eval()  # each example by itself
        >>> norm(torch.tensor([[[1.0, 3.0]], [[10.0, 30.0]]])).detach()
        tensor([[[-1., 1.]],
                [[-1., 1.]]])
        >>> norm.alpha = 0.0
        >>> norm(torch.tensor([[[1.0, 3.0]]])).detach()
        tensor([[[1., 3.]]])
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.01,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device = None,
        dtype: torch.dtype | None = None,
        *,
        ghost_size: int = 16,
        channels_per_group: int = 1,
        alpha: float = 0.0,
    ) -> None:
        if channels_per_group < 1 or num_features % channels_per_group:
            raise ValueError(f"channels_per_group={channels_per_group}: it must divide num_features={num_features}.")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha={alpha}: it must be between 0 and 1.")
        if alpha > 0 and not track_running_stats:
            raise ValueError(f"alpha={alpha}: without running statistics (track_running_stats=False) it must be 0.")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, ghost_size=ghost_size)
        self.channels_per_group = channels_per_group
        self.alpha = alpha

    def values_per_example(self, x: Tensor) -> int:
        return super().values_per_example(x) * self.channels_per_group

    def batch_statistics(self, x: Tensor) -> BatchStatistics:
        mean, var = example_moments(x)
        center, spread, _ = ghost_moments(
            mean, var, self.ghost_size, self.values_per_example(x), self.channels_per_group
        )
        return BatchStatistics(center, (spread + self.eps).sqrt(), self._observed(mean, var))

    @torch.no_grad()
    def _observed(self, mean: Tensor, var: Tensor) -> dict[str, Tensor]:
        if self.running_mean is None:
            return {}
        batch_mean, batch_var = (moment[0] for moment in pooled(mean, var, mean.shape[0]))
        # with V = M₂ − M₁² and weight f:  V ← (1 − f) V + f (var + (1 − f)(mean − M₁)²)
        moved = (1 - self.averaging_factor()) * (batch_mean - self.running("running_mean")) ** 2
        return {"running_mean": batch_mean, "running_var": batch_var + moved}

    def evaluation_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.alpha == 0:
            return self.running_statistics()
        if self.values_per_example(x) == 1:
            raise Unsupported(
                f"{self} got input size {tuple(x.shape)}, where an example has one value per group and so no moments "
                "of its own to mix in. Set alpha=0, or channels_per_group to more than 1."
            )
        mean, var = self._running_moments()
        own_mean, own_var = pooled(*example_moments(x), 1, self.channels_per_group)
        a = self.alpha
        m = (1 - a) * mean + a * own_mean
        # s − m², with E[x²] = variance + E[x]² on both sides
        v = (1 - a) * var + a * own_var + a * (1 - a) * (mean - own_mean) ** 2
        return m, (v + self.eps).sqrt()

    def running_statistics(self) -> tuple[Tensor, Tensor]:
        mean, var = self._running_moments()
        return mean[0], (var[0] + self.eps).sqrt()

    def inference_affine(self) -> tuple[Tensor, Tensor]:
        if self.alpha > 0:
            raise Unsupported(
                f"{self} normalizes each example by moments of its own in evaluation. Set alpha=0 for one affine map."
            )
        return super().inference_affine()

    def _running_moments(self) -> tuple[Tensor, Tensor]:
        """M₁ and M₂ − M₁², (1, C), of the groups of channels."""
        mean, var = self.running("running_mean"), self.running("running_var")
        return pooled(mean.unsqueeze(0), var.unsqueeze(0), 1, self.channels_per_group)


def affine_penalty(model: nn.Module) -> Tensor:
    """½ Σ (‖γ − 1‖² + ‖β‖²) over the four-things layers of a model: the decay that keeps them near the identity.

    Add it to the loss, times the decay rate; with gradient accumulation, to each micro-batch's loss before that is
    divided by their number. Keep γ and β out of the optimizer's own weight decay, which would pull γ to 0.

    Args:
        model: A model with `FourThingsBatchNorm` layers.

    Returns:
        The penalty, a scalar with a gradient.

    Raises:
        Unsupported: The model has no such layer with γ and β.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), FourThingsBatchNorm2d(4))
        >>> affine = [p for m in model.modules() if isinstance(m, FourThingsBatchNorm2d) for p in m.parameters()]
        >>> others = [p for p in model.parameters() if all(p is not q for q in affine)]
        >>> optimizer = torch.optim.SGD([{"params": others, "weight_decay": 1e-4}, {"params": affine}], lr=0.1)
        >>> with torch.no_grad():
        ...     _ = model[1].weight.fill_(3.0)
        >>> penalty = affine_penalty(model)  # ½ · 4 · (3 − 1)²
        >>> penalty.item()
        8.0
        >>> (1e-4 * penalty).backward()  # in training: (loss + 1e-4 * affine_penalty(model)).backward()
        >>> model[1].weight.grad
        tensor([0.0002, 0.0002, 0.0002, 0.0002])
    """
    layers = [m for m in model.modules() if isinstance(m, FourThingsBatchNorm) and m.affine]
    if not layers:
        raise Unsupported(
            f"{type(model).__name__} has no FourThingsBatchNorm layer with affine=True, so there is nothing to decay. "
            "Leave the penalty out, or put such layers into the model."
        )
    squares = [((widened(m.weight) - 1) ** 2).sum() + (widened(m.bias) ** 2).sum() for m in layers]
    return torch.stack(squares).sum() / 2


class FourThingsBatchNorm1d(FourThingsBatchNorm):
    """`FourThingsBatchNorm` of inputs (N, C) or (N, C, L)."""

    input_dims = (2, 3)


class FourThingsBatchNorm2d(FourThingsBatchNorm):
    """`FourThingsBatchNorm` of inputs (N, C, H, W)."""

    input_dims = (4,)


class FourThingsBatchNorm3d(FourThingsBatchNorm):
    """`FourThingsBatchNorm` of inputs (N, C, D, H, W)."""

    input_dims = (5,)
