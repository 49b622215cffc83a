"""Images in one folder per class, as in ImageNet: decoded when they are needed."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from wellcond.errors import CorruptData, DataNotFound, MissingExtra, TooLarge
from wellcond_papers.data.dataset import Dataset
from wellcond_papers.data.locate import data_root

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

ENDINGS = {".jpeg", ".jpg", ".png", ".webp", ".bmp"}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's training images, by channel, pixels in [0, 1]."""
SHORTER_SIDE = 8 / 7
"""The shorter side of an image before it is cropped, in sides of the crop: 256 for 224."""
CENTER = (0.5, 0.5)
MOST_BYTES = 16 << 30
STREAMED = 500
"""Images that `ImageFolder.stream` decodes at once."""


class ImageFolder(Dataset):
    """Labeled images on disk: all that a `Dataset` has, but no more images are decoded than are asked for.

    An image becomes RGB, its shorter side is resized to 8/7 of `size` (256 for 224, bilinear), and a square of `size`
    is cut out. Images are in a fixed, shuffled order, so that the first ones are of all classes.

    Args:
        root: Holds one folder per class, named after it; images may lie deeper in it.
        size: Height and width of the images.
        name: The name of the data set; None for the name of the folder.

    Attributes:
        paths: The files.
        size: Height and width of the images.

    Raises:
        DataNotFound: There is no such folder, or no image in it.
        ValueError: size is less than 1.
    """

    def __init__(self, root: str | os.PathLike[str], size: int = 224, name: str | None = None) -> None:
        folders = sorted(path for path in Path(root).iterdir() if path.is_dir()) if Path(root).is_dir() else []
        images = [(path, k) for k, folder in enumerate(folders) for path in _files_of_images(folder)]
        if not images:
            raise DataNotFound(f"{root} has no images. It needs one folder per class: {root}/<class>/<image>.jpeg.")
        order = torch.randperm(len(images), generator=torch.Generator("cpu").manual_seed(0), device="cpu").tolist()
        self.paths = [images[k][0] for k in order]
        self.size = _checked(size)
        # The base class is frozen, and would require the images.
        vars(self).update(
            labels=torch.tensor([images[k][1] for k in order], device="cpu"),
            classes=tuple(folder.name for folder in folders),
            name=name or Path(root).name,
            peak=255,
        )

    def __repr__(self) -> str:
        return f"ImageFolder({self.name}: {len(self)} images of 3x{self.size}x{self.size}, {len(self.classes)} classes)"

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """An image, (3, size, size) uint8, and its label: what a `DataLoader` asks for."""
        return _square(self.paths[index], self.size, CENTER), int(self.labels[index])

    @property
    def images(self) -> Tensor:
        """All images, (N, 3, size, size) uint8, decoded again each time.

        Raises:
            TooLarge: They take more than 16 GiB.
        """
        return self.first_images(len(self))

    @cached_property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel over ImageNet's training images, whatever these images are."""
        return torch.tensor(MEAN, dtype=torch.float64), torch.tensor(STD, dtype=torch.float64)

    def decoded(self, chosen: Sequence[int], places: Sequence[Sequence[float]] | None = None) -> Tensor:
        """The chosen images, (n, 3, size, size) uint8, decoded by several threads.

        Args:
            chosen: Their numbers.
            places: Where each square is cut out, down and across, from 0 at one edge to 1 at the other; None for the
                center.

        Raises:
            CorruptData: A file is no image.
            MissingExtra: Pillow is not installed.
        """
        squares = ((self.paths[k], self.size, CENTER if places is None else places[n]) for n, k in enumerate(chosen))
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return torch.stack(list(threads.map(lambda square: _square(*square), squares)))

    def first_images(self, count: int) -> Tensor:
        """The first `count` images, uint8; no more than 16 GiB of them."""
        needed = count * 3 * self.size**2
        if needed > MOST_BYTES:
            raise TooLarge(f"{count} images of {self!r} take {needed / 2**30:.0f} GiB; ask for fewer, or for batches.")
        return self.decoded(range(count))

    def stream(self, device: torch.device, count: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs, standardized, and labels in batches of at most 500, decoded as they are asked for.

        Args:
            device: The device that they are put on.
            count: The number of images, from the first; None for all.
        """
        places = torch.arange(len(self) if count is None else count, device="cpu")
        for chosen in torch.split(places, STREAMED):
            yield self.inputs(self.decoded(chosen.tolist()).to(device)), self.labels[chosen].to(device)

    def resized(self, size: int) -> ImageFolder:
        """The same images at another size; nothing is decoded."""
        other = copy.copy(self)
        other.size = _checked(size)
        return other

    def with_channels(self, channels: int) -> ImageFolder:
        """The same images, if 3 channels are asked for."""
        if channels != 3:
            raise ValueError(f"images of 3 channels cannot be given {channels}")
        return self


def imagenet(root: str | os.PathLike[str] | None = None, *, train: bool = True, size: int = 224) -> ImageFolder:
    """ImageNet (ILSVRC 2012): 1 281 167 training or 50 000 validation images, in one folder per class.

    Args:
        root: The folders are in `root/imagenet/train` and `root/imagenet/val`; None means $WELLCOND_DATA, else
            `./data`.
        train: Whether to use the training or the validation images.
        size: Height and width of the images.

    Raises:
        DataNotFound: The folders are not there; it says what to fetch from where.
    """
    part = "train" if train else "val"
    folder = data_root(root) / "imagenet" / part
    try:
        return ImageFolder(folder, size, f"ImageNet {part}")
    except DataNotFound as error:
        raise DataNotFound(
            f"the images of ImageNet ({part}) were not found.\n"
            f"  looked in: {folder}\n"
            f"  fetch:     ILSVRC2012_img_{part}.tar from https://image-net.org/download (with an account there)\n"
            f"             and unpack it into one folder per class: {folder}/n01440764/*.JPEG, ..."
        ) from error


def _checked(size: int) -> int:
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    return size


def _files_of_images(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in ENDINGS)


def _in_8_bits(image: Picture) -> Picture:
    """The image with 8 bits: from 16 bits, Pillow itself would keep the darkest 256 values and make the rest white."""
    if not image.mode.startswith("I"):
        return image
    from PIL import Image

    return Image.fromarray((np.asarray(image) // 257).astype(np.uint8))


def _square(path: Path, size: int, place: Sequence[float]) -> Tensor:
    """A square of an image, (3, size, size) uint8."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingExtra("Pillow", "images") from error
    try:
        with Image.open(path) as image:
            shorter = round(size * SHORTER_SIDE)
            scale = shorter / min(image.size)
            width, height = (max(shorter, round(side * scale)) for side in image.size)
            resized = _in_8_bits(image).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError) as error:
        raise CorruptData(f"{path}: expected an image, found something else ({error}).") from error
    top, left = round(place[0] * (height - size)), round(place[1] * (width - size))
    pixels = np.asarray(resized.crop((left, top, left + size, top + size)))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous()
