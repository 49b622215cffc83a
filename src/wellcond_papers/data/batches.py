"""A whole data set on one device, and its shuffled, augmented batches as a function of the step."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional

from wellcond_papers.data.dataset import Dataset
from wellcond_papers.data.image_folder import ImageFolder

Augmentation = Literal["crop", "flip", "rotation"]
MARGIN = 4
"""Pixels by which a crop shifts the image at most."""
MOST_DEGREES = 15.0
ALL = slice(None)
AT_ONCE = 2**26
"""Values that are augmented at once on a GPU, a third of an epoch of CIFAR: few large kernels, and bounded memory."""


class Draws(NamedTuple):
    """The random numbers of one epoch, one entry per place in it: all of them, whatever is used."""

    image: Tensor
    """(N,) index of the image."""
    shift: Tensor
    """(N, 2) rows and columns of the crop's corner in the padded image, 0 to 2 · MARGIN."""
    flip: Tensor
    """(N,) whether it is mirrored."""
    angle: Tensor
    """(N,) its rotation in radians, counterclockwise."""


class Batches:
    """Batches for training: `batches(step)` is always the same for the same seed, so that a run can be resumed.

    The whole set is stored on the device, ready as input. Every epoch has its own order, drawn on the CPU, so
    that it is the same on every device. The last batch of an epoch is left out if it is smaller than the others. On a
    GPU many batches are augmented at once, and each is a view of them; on a CPU, whose caches are small, one by one.

    The images of an `ImageFolder` stay on disk: while one batch is used, the next is decoded. A crop is then one of 9×9
    places in the image.

    Args:
        dataset: The images and labels.
        size: Images per batch.
        seed: Fixes the order and the augmentation, on every device.
        device: The device that holds the images.
        augment: Any of

            - "crop": the image is shifted by up to 4 pixels in either direction. The margin is 0, the mean color
              if inputs are standardized: He et al. subtract the mean before they pad.
            - "flip": every other image, left to right.
            - "rotation": by up to 15 degrees, bilinear, 0 outside.
        count: The number of images, from the first; None for all.
        flatten: Whether inputs are (n, C·H·W).
        standardize: As in `Dataset.tensors`.
        dtype: The dtype of the inputs.
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
        total = len(dataset) if count is None else count
        if not 1 <= total <= len(dataset):
            raise ValueError(f"count must lie in 1 to {len(dataset)}, the number of images, not {count}")
        if not 1 <= size <= total:
            raise ValueError(f"size must lie in 1 to {total}, the number of images, not {size}")
        self.size, self.seed, self.augment = size, seed, frozenset(augment)
        self.flatten, self.channels_last = flatten, channels_last
        self.per_epoch = total // size
        self._described = (
            f"{dataset!r}, {size}, seed={seed}, augment={sorted(self.augment)}, count={total}, flatten={flatten}, "
            f"standardize={standardize}, dtype={dtype}"
        )
        self.y = dataset.labels[:total].to(device)
        is_cropped = "crop" in self.augment
        self._images: InMemory | OnDisk
        if isinstance(dataset, ImageFolder):
            self._images = OnDisk(dataset, is_cropped, self.y.device, dtype, standardize)
            self._batches_at_once = 1
        else:
            x, _ = dataset.tensors(dtype, standardize=standardize, count=count)
            self._images = InMemory(x.to(device), is_cropped)
            on_gpu = max(1, AT_ONCE // (size * x[0].numel()))
            self._batches_at_once = 1 if self.y.device.type == "cpu" else min(on_gpu, self.per_epoch)
        self._part: tuple[tuple[int, int], Tensor, Tensor] | None = None

    def __repr__(self) -> str:
        """Everything that determines the batches; a checkpoint compares it."""
        return f"Batches({self._described})"

    def __call__(self, step: int, share: slice = ALL) -> tuple[Tensor, Tensor]:
        """The batch of a step, or a share of it: inputs and labels, not to be changed in place.

        Args:
            step: The number of the step, counted from 0.
            share: Which of the batch's images; of those on disk no others are decoded.
        """
        epoch, place = divmod(step, self.per_epoch)
        if isinstance(self._images, OnDisk):
            draws = self._draws(epoch, place, share)
            batch = self._augmented(self._images.cut(draws), draws)
            self._images.decode_ahead(self._draws(*divmod(step + 1, self.per_epoch), share))
            return batch
        part, place = divmod(place, self._batches_at_once)
        if self._part is None or self._part[0] != (epoch, part):
            self._part = None  # frees the old one before the new one is made
            draws = Draws(*(drawn.to(self.y.device) for drawn in self._draws(epoch, part)))
            self._part = ((epoch, part), *self._augmented(self._images.cut(draws), draws))
        chosen = slice(place * self.size, (place + 1) * self.size)
        return self._part[1][chosen][share], self._part[2][chosen][share]

    def _draws(self, epoch: int, part: int, share: slice = ALL) -> Draws:
        """The random numbers of a part of an epoch: of `_batches_at_once` batches, or what the epoch has left."""
        start = part * self._batches_at_once * self.size
        stop = min(start + self._batches_at_once * self.size, self.per_epoch * self.size)
        return Draws(*(drawn[start:stop][share] for drawn in draw_epoch(len(self.y), self.seed, epoch)))

    def _augmented(self, x: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        draws = Draws(*(drawn.to(self.y.device) for drawn in draws))
        if "flip" in self.augment:
            x = torch.where(draws.flip[:, None, None, None], x.flip(3), x)
        if "rotation" in self.augment:
            x = rotate(x, draws.angle)
        if self.flatten:
            x = x.flatten(1)
        elif self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, self.y[draws.image]


@lru_cache(4)
def draw_epoch(count: int, seed: int, epoch: int) -> Draws:
    """The random numbers of an epoch, on the CPU: a function of its arguments alone."""
    generator = torch.Generator("cpu").manual_seed(seed * 1_000_003 + epoch)
    return Draws(
        torch.randperm(count, generator=generator, device="cpu"),
        torch.randint(0, 2 * MARGIN + 1, (count, 2), generator=generator, device="cpu"),
        torch.rand(count, generator=generator, device="cpu") < 0.5,
        torch.deg2rad((2 * torch.rand(count, generator=generator, device="cpu") - 1) * MOST_DEGREES),
    )


class InMemory:
    """All images, as inputs, on their device; with margins of zeros if they are to be cropped."""

    def __init__(self, x: Tensor, is_cropped: bool) -> None:
        self.x = functional.pad(x, [MARGIN] * 4) if is_cropped else x
        self.is_cropped = is_cropped

    def cut(self, draws: Draws) -> Tensor:
        """The drawn images, each cut out at its own corner."""
        if not self.is_cropped:
            return self.x[draws.image]
        height, width = self.x.shape[2] - 2 * MARGIN, self.x.shape[3] - 2 * MARGIN
        windows = self.x.unfold(2, height, 1).unfold(3, width, 1)  # (N, C, top, left, H, W), a view
        return windows[draws.image, :, draws.shift[:, 0], draws.shift[:, 1]]


class OnDisk:
    """The images of a folder; those of the next batch are decoded in the background."""

    def __init__(
        self, folder: ImageFolder, is_cropped: bool, device: torch.device, dtype: torch.dtype, standardize: bool
    ) -> None:
        self.folder, self.is_cropped, self.device = folder, is_cropped, device
        self.dtype, self.standardize = dtype, standardize
        self._thread = ThreadPoolExecutor(1)
        self._ahead: tuple[Tensor, Future[Tensor]] | None = None

    def cut(self, draws: Draws) -> Tensor:
        """The drawn images as inputs, on the device."""
        if self._ahead is not None and torch.equal(self._ahead[0], draws.image):
            images = self._ahead[1].result()
        else:
            images = self._decoded(draws)
        return self.folder.inputs(images.to(self.device), self.dtype, standardize=self.standardize)

    def decode_ahead(self, draws: Draws) -> None:
        """Start on the images that will be asked for next."""
        if self._ahead is None or not torch.equal(self._ahead[0], draws.image):
            self._ahead = draws.image, self._thread.submit(self._decoded, draws)

    def _decoded(self, draws: Draws) -> Tensor:
        places = (draws.shift / (2 * MARGIN)).tolist() if self.is_cropped else None
        return self.folder.decoded(draws.image.tolist(), places)


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Every image turned about its center by its angle, counterclockwise, with bilinear interpolation."""
    height, width = x.shape[2:]
    cos, sin = angle.cos(), angle.sin()
    zero = torch.zeros_like(cos)
    # Where an output pixel comes from; coordinates run from −1 to 1 along both sides, whatever their lengths.
    across, down = height / width, width / height
    matrix = torch.stack([torch.stack([cos, -sin * across, zero], 1), torch.stack([sin * down, cos, zero], 1)], 1)
    grid = functional.affine_grid(matrix, list(x.shape), align_corners=False)
    wide = torch.promote_types(x.dtype, torch.float32)
    return functional.grid_sample(x.to(wide), grid.to(wide), align_corners=False).to(x.dtype)
