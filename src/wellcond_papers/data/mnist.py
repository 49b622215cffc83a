"""MNIST and Fashion-MNIST from their four idx files."""

from __future__ import annotations

import contextlib
import gzip
import io
import math
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from wellcond.errors import CorruptData
from wellcond_papers.data.dataset import Dataset
from wellcond_papers.data.locate import PUBLISHED, data_root, locate

SIDE = 28
DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTE = 0x08
MOST_ITEMS = 1_000_000
"""The largest set of this kind, EMNIST, has 814 255: a file that promises more would only fill the memory."""


def mnist(root: str | os.PathLike[str] | None = None, *, train: bool = True, size: int | None = None) -> Dataset:
    """Read MNIST: 60 000 training or 10 000 test images, (N, 1, 28, 28).

    Args:
        root: The idx files are in `root`, `root/MNIST/raw` or `root/raw`, gzipped or not; None means $WELLCOND_DATA,
            else `./data`.
        train: Whether to read the training or the test images.
        size: Shrinks the images to (size, size), as `Dataset.resized` does. 12 (a crop to 24, then means of 2×2) gives
            the inputs of huang2020's figures I to IV.

    Returns:
        The images and labels, in file order.

    Raises:
        DataNotFound: The files are in none of these folders.
        CorruptData: A file does not hold what its format promises.
        ValueError: size is not in 1 to 28.

    Example:
        >>> mnist("data", size=12)  # doctest: +SKIP
        Dataset(MNIST train: 60000 images of 1x12x12, 10 classes)
    """
    if size is not None and not 1 <= size <= SIDE:
        raise ValueError(f"size must lie in 1 to {SIDE} (the side of an MNIST image), not {size}")
    folder = data_root(root)
    dataset = _read("mnist", folder, [folder, folder / "MNIST" / "raw", folder / "raw"], DIGITS, train)
    return dataset if size is None else dataset.resized(size)


def fashion_mnist(root: str | os.PathLike[str] | None = None, *, train: bool = True) -> Dataset:
    """Read Fashion-MNIST: 60 000 training or 10 000 test images, (N, 1, 28, 28).

    Args:
        root: The idx files are in `root/FashionMNIST/raw`, gzipped or not, and nowhere else: they have the names of
            MNIST's. None means $WELLCOND_DATA, else `./data`.
        train: Whether to read the training or the test images.

    Returns:
        The images and labels, in file order.

    Raises:
        DataNotFound: The files are not in this folder.
        CorruptData: A file does not hold what its format promises.

    Example:
        >>> fashion_mnist("data", train=False)  # doctest: +SKIP
        Dataset(Fashion-MNIST test: 10000 images of 1x28x28, 10 classes)
    """
    folder = data_root(root)
    return _read("fashion-mnist", folder, [folder / "FashionMNIST" / "raw"], CLOTHES, train)


def _read(name: str, root: Path, folders: list[Path], classes: tuple[str, ...], train: bool) -> Dataset:
    part, prefix = ("train", "train") if train else ("test", "t10k")
    stems = (f"{prefix}-images", "idx3-ubyte"), (f"{prefix}-labels", "idx1-ubyte")
    spellings = [[f"{stem}{mark}{kind}{gz}" for mark in "-." for gz in ("", ".gz")] for stem, kind in stems]
    images_path, labels_path = locate(name, part, root, spellings, folders)
    images = _read_idx(images_path, (SIDE, SIDE)).unsqueeze(1)
    labels = _read_idx(labels_path, ()).long()
    if len(labels) != len(images):
        raise CorruptData(
            f"{labels_path}: expected {len(images)} labels, one for each image of {images_path.name}, "
            f"found {len(labels)}."
        )
    if labels.max() >= len(classes):
        raise CorruptData(f"{labels_path}: expected labels in 0 to {len(classes) - 1}, found {labels.max()}.")
    return Dataset(images, labels, classes, f"{PUBLISHED[name].title} {part}")


def _read_idx(path: Path, item: tuple[int, ...]) -> Tensor:
    """The bytes of an idx file as (N, *item), gzipped or not: a big-endian header (type, rank, sizes), then data.

    Never more is unpacked than the header promises, and one byte to see that the file ends there.
    """
    rank = 1 + len(item)
    with _opened(path) as file:
        header = file.read(4 + 4 * rank)
        if len(header) < 4 + 4 * rank:
            raise CorruptData(
                f"{path}: expected an idx header of {4 + 4 * rank} bytes, found {len(header)} bytes in all."
            )
        magic, count, *shape = struct.unpack(f">{1 + rank}I", header)
        expected_magic = UNSIGNED_BYTE << 8 | rank
        if magic != expected_magic:
            raise CorruptData(f"{path}: expected the magic number {expected_magic:#010x}, found {magic:#010x}.")
        if tuple(shape) != item:
            raise CorruptData(f"{path}: expected items of shape {item}, found {tuple(shape)}.")
        if not 0 < count <= MOST_ITEMS:
            raise CorruptData(f"{path}: expected at least one item and at most {MOST_ITEMS}, found {count}.")
        expected_bytes = count * math.prod(item)
        content = bytearray(file.read(expected_bytes + 1))
    if len(content) != expected_bytes:
        or_more = " or more" if len(content) > expected_bytes else ""
        raise CorruptData(
            f"{path}: expected {expected_bytes} bytes after the header (it promises {count} items), "
            f"found {len(content)}{or_more}."
        )
    return torch.frombuffer(content, dtype=torch.uint8).reshape(count, *item)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedIOBase]:
    with path.open("rb") as raw:
        is_gzip = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        raw.seek(0)
        try:
            with gzip.GzipFile(fileobj=raw) if is_gzip else raw as file:
                yield file
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CorruptData(f"{path}: expected a complete gzip file, found a damaged one ({error}).") from error
