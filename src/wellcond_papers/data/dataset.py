"""Labeled images in memory, and the input tensors made from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labeled images, stored as the bytes of the file.

    Attributes:
        images: (N, C, H, W) uint8.
        labels: (N,) int64, the index of each image's class in `classes`.
        classes: The names of the classes.
        name: The name of the data set.
        peak: The pixel value that means 1.0.

    Raises:
        ValueError: Images or labels of another shape or dtype, or a label without a class.

    Example:
        >>> images = torch.tensor([0, 255], dtype=torch.uint8).reshape(2, 1, 1, 1)
        >>> two = Dataset(images, torch.tensor([0, 1]), classes=("black", "white"), name="pixels")
        >>> two
        Dataset(pixels: 2 images of 1x1x1, 2 classes)
        >>> x, y = two.tensors()
        >>> x.flatten().tolist()
        [-1.0, 1.0]
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    name: str
    peak: int = 255

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4 or len(images) == 0:
            raise ValueError(
                f"images must be non-empty (N, C, H, W) uint8, not {tuple(images.shape)} of {images.dtype}"
            )
        if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
            raise ValueError(f"labels must be ({len(images)},) int64, not {tuple(labels.shape)} of {labels.dtype}")
        if labels.min() < 0 or labels.max() >= len(self.classes):
            raise ValueError(f"labels must lie in 0 to {len(self.classes) - 1}, not {labels.min()} to {labels.max()}")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.images.shape[1:]))
        return f"Dataset({self.name}: {len(self)} images of {size}, {len(self.classes)} classes)"

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel over all images, (C,) float64 each, pixels in [0, 1].

        Exact up to float64 rounding: they come from the histogram of the bytes, not from float copies of the images.
        """
        histogram = torch.stack([torch.bincount(c.reshape(-1), minlength=256) for c in self.images.unbind(1)])
        share = histogram.double() / histogram.sum(1, keepdim=True)
        level = torch.arange(256, dtype=torch.float64, device="cpu") / self.peak
        mean = share @ level
        variance = (share * (level - mean[:, None]) ** 2).sum(1)
        return mean, variance.sqrt()

    def resized(self, size: int) -> Dataset:
        """The images with sides of another length, as bytes.

        Smaller: with f = ⌊side/size⌋, a center crop to (f·size, f·size) drops the border, and each f×f block becomes
        its mean, rounded. Larger: bilinear interpolation, rounded.

        Raises:
            ValueError: size is less than 1.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        shorter = min(self.images.shape[2:])
        images = _enlarged(self.images, size) if size > shorter else _shrunk(self.images, size, shorter // size)
        return replace(self, images=images)

    def with_channels(self, channels: int) -> Dataset:
        """The images with this many channels: gray ones are repeated.

        Raises:
            ValueError: `channels` is less than 1; or the images have several channels, and not this number.
        """
        if channels < 1 or self.images.shape[1] not in (1, channels):
            raise ValueError(f"images of {self.images.shape[1]} channels cannot be given {channels}")
        if self.images.shape[1] == channels:
            return self
        return replace(self, images=self.images.repeat(1, channels, 1, 1))

    def tensors(
        self,
        dtype: torch.dtype = torch.float32,
        *,
        flatten: bool = False,
        standardize: bool = True,
        count: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The images as inputs, with pixels scaled to [0, 1], and the labels.

        Args:
            dtype: The dtype of the inputs.
            flatten: Whether the inputs are (n, C·H·W) instead of (n, C, H, W).
            standardize: Whether to give every channel mean 0 and standard deviation 1 over *all* images of this set,
                whatever `count` is; a constant channel becomes 0.
            count: The number of images, from the first; None for all.

        Returns:
            The inputs, and the labels (n,) int64.
        """
        count = len(self) if count is None else count
        if not 1 <= count <= len(self):
            raise ValueError(f"count must lie in 1 to {len(self)}, the number of images, not {count}")
        x = self.inputs(self.first_images(count), dtype, standardize=standardize)
        return (x.flatten(1) if flatten else x), self.labels[:count].clone()

    def first_images(self, count: int) -> Tensor:
        """The first `count` images, uint8."""
        return self.images[:count]

    def inputs(self, images: Tensor, dtype: torch.dtype = torch.float32, *, standardize: bool = True) -> Tensor:
        """Some of the images as inputs, on the device that they are on.

        Args:
            images: (n, C, H, W) uint8.
            dtype: As in `tensors`.
            standardize: As in `tensors`.
        """
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating-point type, not {dtype}")
        # Half precision is reached by one rounding at the end, not by rounding at every step.
        x = images.to(torch.promote_types(dtype, torch.float32)).div_(self.peak)
        if standardize:
            mean, std = (moment.to(x.device) for moment in self.moments)
            std = torch.where(std > 0, std, 1.0)
            x.sub_(mean.to(x.dtype)[:, None, None]).div_(std.to(x.dtype)[:, None, None])
        return x.to(dtype)

    def batches(
        self,
        size: int,
        *,
        count: int | None = None,
        flatten: bool = False,
        dtype: torch.dtype = torch.float32,
        standardize: bool = True,
    ) -> list[tuple[Tensor, Tensor]]:
        """The tensors cut into batches, in file order; the last may be smaller.

        Args:
            size: Images per batch.
            count: As in `tensors`.
            flatten: As in `tensors`.
            dtype: As in `tensors`.
            standardize: As in `tensors`.

        Returns:
            Pairs of inputs and labels.

        Example:
            >>> images = torch.zeros(5, 1, 2, 2, dtype=torch.uint8)
            >>> blank = Dataset(images, torch.zeros(5, dtype=torch.int64), classes=("blank",), name="blank")
            >>> [len(y) for x, y in blank.batches(2)]
            [2, 2, 1]
        """
        if size < 1:
            raise ValueError(f"size must be at least 1, not {size}")
        x, y = self.tensors(dtype=dtype, flatten=flatten, standardize=standardize, count=count)
        return list(zip(torch.split(x, size), torch.split(y, size), strict=True))


def _shrunk(images: Tensor, size: int, factor: int) -> Tensor:
    height, width = images.shape[2:]
    crop = factor * size
    top, left = (height - crop) // 2, (width - crop) // 2
    center = images[..., top : top + crop, left : left + crop]
    blocks = center.reshape(*images.shape[:2], size, factor, size, factor)
    # Integers until the one division: the mean of a block is exact before it is rounded.
    total = blocks.sum((3, 5), dtype=torch.int32)
    return torch.div(total + factor**2 // 2, factor**2, rounding_mode="floor").to(torch.uint8)


def _enlarged(images: Tensor, size: int) -> Tensor:
    parts = [
        functional.interpolate(part.float(), (size, size), mode="bilinear").round_().to(torch.uint8)
        for part in torch.split(images, 1000)  # floats of all of them at once could be large
    ]
    return torch.cat(parts)
