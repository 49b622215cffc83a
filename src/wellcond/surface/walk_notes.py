"""What a reader of a walk must know: where it failed, and where β is not to be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

ROUNDINGS = 10
"""A change of the gradient below so many rounding errors of its norm is not told from none."""


def failures(lengths: Tensor, losses: Tensor, changes: Tensor, culprits: Sequence[str]) -> Iterator[str]:
    """Where the gradient, and where the loss, is not finite; the reason is that of the first such place."""
    no_loss = losses.isnan()
    why = "the gradient is NaN or inf although the loss is finite."
    for failed, reason in ((~no_loss & ~changes.isfinite(), why), (no_loss, "".join(culprits[:1]))):
        places = failed.nonzero().flatten().tolist()
        if places:
            first = float(lengths[places[0]])
            if len(places) == 1:
                where = f"at step length {first:g}"
            elif places == list(range(places[0], len(lengths))):
                where = f"from step length {first:g} on"
            else:
                where = f"at {len(places)} of {len(lengths)} step lengths, first at step length {first:g}"
            yield f"{where}, {reason}"


def caveats(
    lengths: Tensor, changes: Tensor, distances: Tensor, gradient_norm: float, length: float, dtype: torch.dtype
) -> Iterator[str]:
    """Why β is missing, or not to be trusted. length: ‖d‖."""
    if length == 0:
        zero = "gradient" if gradient_norm == 0 else "direction"
        yield f"the {zero} is zero, so that the walk does not leave θ: β is undefined."
        return
    kind = str(dtype).removeprefix("torch.")
    if (stuck := lengths[distances == 0]).numel():
        yield (
            f"up to step length {float(stuck.max()):g}, θ − a·d rounds to θ in {kind}: "
            "take a larger lr, or measure model.double()."
        )
    ratios = (changes / distances).nan_to_num(-1.0, posinf=-1.0)
    top = int(ratios.argmax())
    if 0 < float(changes[top]) < ROUNDINGS * torch.finfo(dtype).eps * gradient_norm:
        yield (
            f"β comes from step length {float(lengths[top]):g}, where the gradient changes by little more than {kind} "
            "rounds: it may be rounding, not curvature. Take a larger lr, or measure model.double()."
        )
