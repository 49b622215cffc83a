"""A whole data set on one device, and its shuffled, augmented batches as a function of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional

from wellcond.data.dataset import Dataset

Augmentation = Literal["crop", "flip", "rotation"]
MARGIN = 4
"""Pixels by which a crop shifts the image at most."""
MOST_DEGREES = 15.0
AT_ONCE = 2**26
"""Values that are augmented at once on a GPU, a third of an epoch of CIFAR: few large kernels, and bounded memory."""


class Draws(NamedTuple):
    """The random numbers of one epoch, one entry per place in it: all of them, whatever is used."""

    image: Tensor
    """(N,) which image."""
    shift: Tensor
    """(N, 2) rows and columns of the crop's corner in the padded image, 0 to 2 · MARGIN."""
    flip: Tensor
    """(N,) whether it is mirrored."""
    angle: Tensor
    """(N,) its rotation in radians, counterclockwise."""


class Batches:
    """Batches for training: `batches(step)` is always the same for the same seed, so that a run can be resumed.

    The whole set lies on the device, as the network is fed with it. Every epoch has its own order, drawn on the CPU, so
    that it is the same on every device. The last batch of an epoch is left out if it is smaller than the others. On a
    GPU many batches are augmented at once, and each is a view of them; on a CPU, whose caches are small, one by one.

    Args:
        dataset: The images and labels.
        size: Images per batch.
        seed: Fixes the order and the augmentation, on every device.
        device: Where the images lie.
        augment: Any of

            - "crop": the image is shifted by up to 4 pixels in either direction. What comes in is 0, which is the mean
              colour if inputs are standardised: He et al. subtract the mean first and pad then.
            - "flip": every other image, left to right.
            - "rotation": by up to 15 degrees, bilinear, 0 outside.
        count: How many images, from the first; None for all.
        flatten: Whether inputs are (n, C·H·W).
        standardize: As in `Dataset.tensors`.
        dtype: Of the inputs.
        channels_last: Whether inputs are laid out as (N, H, W, C) in memory.

    Attributes:
        per_epoch: Batches in an epoch.

    Raises:
        ValueError: A batch larger than the set, or an unknown augmentation.

    Example:
        >>> images = torch.arange(6, dtype=torch.uint8).reshape(6, 1, 1, 1)
        >>> six = Dataset(images, torch.arange(6), classes=tuple("abcdef"), name="six")
        >>> batches = Batches(six, 2, seed=0)
        >>> sorted(torch.cat([batches(step)[1] for step in range(batches.per_epoch)]).tolist())
        [0, 1, 2, 3, 4, 5]
    """

    def __init__(
        self,
        dataset: Dataset,
        size: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        augment: Sequence[Augmentation] = (),
        count: int | None = None,
        flatten: bool = False,
        standardize: bool = True,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        if unknown := set(augment) - set(get_args(Augmentation)):
            raise ValueError(f"augment takes {', '.join(get_args(Augmentation))}, not {', '.join(sorted(unknown))}")
        x, y = dataset.tensors(dtype, standardize=standardize, count=count)
        if not 1 <= size <= len(y):
            raise ValueError(f"size must lie in 1 to {len(y)}, the number of images, not {size}")
        self.x, self.y = x.to(device), y.to(device)
        if "crop" in augment:
            self.x = functional.pad(self.x, [MARGIN] * 4)
        self.size, self.seed, self.augment = size, seed, frozenset(augment)
        self.flatten, self.channels_last = flatten, channels_last
        self.per_epoch = len(y) // size
        at_once = 1 if self.x.device.type == "cpu" else AT_ONCE // (size * self.x[0].numel())
        self._batches_at_once = min(max(1, at_once), self.per_epoch)
        self._epoch: tuple[int, Draws] | None = None
        self._part: tuple[tuple[int, int], Tensor, Tensor] | None = None

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of a step, counted from 0: inputs and labels, not to be changed in place."""
        epoch, place = divmod(step, self.per_epoch)
        part, place = divmod(place, self._batches_at_once)
        if self._part is None or self._part[0] != (epoch, part):
            self._part = None  # frees the old one before the new one is made
            self._part = ((epoch, part), *self._make(epoch, part))
        chosen = slice(place * self.size, (place + 1) * self.size)
        return self._part[1][chosen], self._part[2][chosen]

    def _make(self, epoch: int, part: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels of a part of an epoch: `_batches_at_once` batches, or what the epoch has left."""
        if self._epoch is None or self._epoch[0] != epoch:
            draws = draw_epoch(len(self.y), self.seed, epoch)
            self._epoch = epoch, Draws(*(drawn.to(self.y.device) for drawn in draws))
        start = part * self._batches_at_once * self.size
        stop = min(start + self._batches_at_once * self.size, self.per_epoch * self.size)
        draws = Draws(*(drawn[start:stop] for drawn in self._epoch[1]))
        x = crop(self.x, draws) if "crop" in self.augment else self.x[draws.image]
        if "flip" in self.augment:
            x = torch.where(draws.flip[:, None, None, None], x.flip(3), x)
        if "rotation" in self.augment:
            x = rotate(x, draws.angle)
        if self.flatten:
            x = x.flatten(1)
        elif self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, self.y[draws.image]


def draw_epoch(count: int, seed: int, epoch: int) -> Draws:
    """The random numbers of an epoch, on the CPU: a function of its arguments alone."""
    generator = torch.Generator("cpu").manual_seed(seed * 1_000_003 + epoch)
    return Draws(
        torch.randperm(count, generator=generator, device="cpu"),
        torch.randint(0, 2 * MARGIN + 1, (count, 2), generator=generator, device="cpu"),
        torch.rand(count, generator=generator, device="cpu") < 0.5,
        torch.deg2rad((2 * torch.rand(count, generator=generator, device="cpu") - 1) * MOST_DEGREES),
    )


def crop(padded: Tensor, draws: Draws) -> Tensor:
    """The chosen images, each cut out of its padded (C, H + 2·MARGIN, W + 2·MARGIN) at its own corner."""
    side = 2 * MARGIN
    windows = padded.unfold(2, padded.shape[2] - side, 1).unfold(3, padded.shape[3] - side, 1)
    return windows[draws.image, :, draws.shift[:, 0], draws.shift[:, 1]]


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Every image turned about its centre by its angle, counterclockwise, with bilinear interpolation."""
    height, width = x.shape[2:]
    cos, sin = angle.cos(), angle.sin()
    zero = torch.zeros_like(cos)
    # Where an output pixel comes from; coordinates run from −1 to 1 along both sides, whatever their lengths.
    across, down = height / width, width / height
    matrix = torch.stack([torch.stack([cos, -sin * across, zero], 1), torch.stack([sin * down, cos, zero], 1)], 1)
    grid = functional.affine_grid(matrix, list(x.shape), align_corners=False)
    wide = torch.promote_types(x.dtype, torch.float32)
    return functional.grid_sample(x.to(wide), grid.to(wide), align_corners=False).to(x.dtype)
