"""Whether a network that draws images pixel after pixel sees the pixel that it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.calling import tensors_in
from wellcond.network.taps import bracketed


@dataclass(frozen=True)
class Pixels:
    """Outputs for each pixel of an image that depend on pixels above and to the left alone, as if drawn one by one.

    Attributes:
        sees_itself: Whether they depend on the pixel itself, which they are asked for.
        layer: First module whose output at a pixel depends on it; "" if the outputs do not.
    """

    sees_itself: bool
    layer: str = ""


def pixels(subject: Subject) -> Pixels | None:
    """Differentiate outputs at a few pixels with respect to the image.

    Returns:
        None unless the targets are the pixels of images with one channel, and no output depends on a later pixel but
        every one on earlier ones. Autoencoders and filters see both sides; colors of one pixel may be drawn in turn.
    """
    image, outputs, target = subject.inputs, subject.outputs, subject.targets
    if not isinstance(image, Tensor) or not isinstance(target, Tensor) or outputs is None:
        return None
    if image.dim() != 4 or image.shape[1] != 1 or not image.is_floating_point() or not _is_same_image(image, target):
        return None
    if outputs.dim() != 4 or len(outputs) != len(image) or outputs.shape[2:] != image.shape[2:]:
        return None
    leaf = image.detach().clone().requires_grad_()
    names = {module: name for name, module in subject.problem.model.named_modules() if name}
    seen: list[tuple[str, Tensor]] = []

    def leave(module: nn.Module, output: Any) -> None:
        tensor = next(iter(tensors_in(output)), None)
        if tensor is not None and tensor.requires_grad and tensor.dim() == 4 and tensor.shape[2:] == image.shape[2:]:
            seen.append((names[module], tensor))

    with torch.enable_grad(), bracketed(names, lambda *_: None, leave):
        now = subject.outputs_in(subject.problem.forward(0, leaf))
    if now is None or not now.requires_grad:
        return None
    height, width = image.shape[2:]
    places = dict.fromkeys((row, column) for row in (height // 2, height - 1) for column in (width // 3, width // 2))
    subject.problem.count_backward()
    for row, column in places:
        influence = _influence(now, leaf, row, column)
        at = row * width + column
        if bool(influence[at + 1 :].any()) or not bool(influence[: row * width].any()):
            return None
    row, column = height // 2, width // 2
    sees_itself = [name for name, t in seen if bool(_influence(t, leaf, row, column)[row * width + column])]
    return Pixels(bool(_influence(now, leaf, row, column)[row * width + column]), next(iter(sees_itself), ""))


def _is_same_image(image: Tensor, target: Tensor) -> bool:
    """Whether each target is a pixel, or its number among levels of gray: they rise together."""
    if target.numel() != image.numel() or target.shape[-2:] != image.shape[-2:]:
        return False
    in_order = target.flatten()[image.flatten().argsort(stable=True)]
    return bool((in_order.diff() >= 0).all()) and bool(in_order[0] != in_order[-1])


def _influence(of: Tensor, leaf: Tensor, row: int, column: int) -> Tensor:
    """(pixels,), the size of the gradient of what is at one pixel, from the first to the last pixel of an image."""
    at = of[:, :, row, column]
    weights = torch.randn(at.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(at)
    (gradient,) = torch.autograd.grad((weights * at).sum(), [leaf], retain_graph=True, allow_unused=True)
    return leaf.new_zeros(leaf[0, 0].numel()) if gradient is None else gradient.abs().sum((0, 1)).flatten()
