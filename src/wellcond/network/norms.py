"""Normalisation layers, of torch and of others."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

OVER_CHANNELS = (_NormBase, nn.GroupNorm, nn.LocalResponseNorm)
"""Their outputs are (n, channels, …)."""


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation layer: one of torch's, or by its name one that scales its input.

    A block that holds a norm is not one itself.

    Example:
        >>> is_norm(nn.LayerNorm(3)), is_norm(nn.LocalResponseNorm(2)), is_norm(nn.Linear(3, 3))
        (True, True, False)
    """
    if isinstance(module, (*OVER_CHANNELS, nn.LayerNorm, nn.RMSNorm)):
        return True
    has_the_name = "norm" in type(module).__name__.lower() and not any(True for _ in module.children())
    return has_the_name and any(True for _ in module.parameters())


def unit_dim(norm: nn.Module, output: Tensor) -> int:
    """The dimension of a norm's output that counts units: what it scales, (d,) or (channels, *space) of a LayerNorm."""
    if isinstance(norm, OVER_CHANNELS) or type(norm).__name__.endswith(("1d", "2d", "3d")):
        return 1
    scale = next(iter(norm.parameters()), None)
    shape: tuple[int, ...] = tuple(getattr(norm, "normalized_shape", () if scale is None else scale.shape))
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return max(output.dim() - max(len(shape), 1), 0)
