"""Attention whose mask hides everything that differs between places or examples, and shows what is always the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MASKED = -1e4
"""Numbers below this, in a mask that is added to logits, hide a place."""
ONE_VALUE = 1e-6
"""Difference of two values over the largest, below which they are the same."""


def shows_only_constants(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether what a call attends to is the same for all examples, while what its mask hides differs.

    At each place all examples that show it have one value there, as padding has with a place's embedding added.

    Args:
        kind: "mha" for the arguments of `multi_head_attention_forward`, "sdpa" for those of the kernel.
        args: Its arguments.
        kwargs: Its arguments by name.

    Returns:
        False, too, without a mask, and if fewer than two examples show a place.
    """
    both = _of_module(args, kwargs) if kind == "mha" else _of_kernel(args, kwargs)
    if both is None:
        return False
    values, is_open = both
    if values.shape[:2] != is_open.shape or int(is_open.sum()) < 2 or bool(is_open.all()):
        return False
    if not bool(values.isfinite().all()) or not bool((is_open.sum(0) > 1).any()):
        return False
    limit = ONE_VALUE * float(values.abs().max())
    return _spread(values, is_open) <= limit < _spread(values, ~is_open)


def _spread(values: Tensor, places: Tensor) -> float:
    """Largest distance of some values (N, S, E) from the mean of those at the same place."""
    chosen = places[..., None].to(values)
    means = (values * chosen).sum(0) / chosen.sum(0).clamp_min(1)
    return float(((values - means) * chosen).abs().max())


def _of_module(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Values (N, S, E), and the places that are shown (N, S)."""
    mask = kwargs.get("key_padding_mask")
    if len(args) < 3 or not isinstance(mask, Tensor) or mask.dim() != 2 or args[2].dim() != 3:
        return None
    return args[2].detach().transpose(0, 1), ~mask if mask.dtype == torch.bool else mask > MASKED


def _of_kernel(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
    value = args[2] if len(args) > 2 else kwargs.get("value")
    if not isinstance(mask, Tensor) or not isinstance(value, Tensor) or value.dim() != 4:
        return None
    is_open = mask if mask.dtype == torch.bool else mask > MASKED
    n, _, places = value.shape[:3]
    if is_open.dim() != 4 or is_open.shape[-1] != places:
        return None
    is_open = is_open.expand(n, *is_open.shape[1:]).flatten(1, 2).any(1)
    return value.detach().transpose(1, 2).flatten(2), is_open
