"""CIFAR-10 from its binary records or its pickles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from wellcond.data.cifar_pickle import read_pickle
from wellcond.data.dataset import Dataset
from wellcond.data.locate import data_root, locate
from wellcond.errors import CorruptData

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cifar10(root: str | os.PathLike[str] | None = None, *, train: bool = True) -> Dataset:
    """Read CIFAR-10: 50 000 training or 10 000 test images, (N, 3, 32, 32), channels red, green, blue.

    The pickles are read without running any code they may hold.

    Args:
        root: The files are in `root/cifar-10-batches-bin`, `root/cifar-10-batches-py` or `root` itself; None means
            $WELLCOND_DATA, else `./data`.
        train: Whether to read the training or the test images.

    Returns:
        The images and labels, in file order.

    Raises:
        DataNotFound: The files are in none of these folders.
        CorruptData: A file does not hold what its format promises.

    Example:
        >>> cifar10("data", train=False)  # doctest: +SKIP
        Dataset(CIFAR-10 test: 10000 images of 3x32x32, 10 classes)
    """
    folder = data_root(root)
    batches = [f"data_batch_{k}" for k in range(1, 6)] if train else ["test_batch"]
    part = "train" if train else "test"
    paths = locate(
        f"CIFAR-10 ({part})",
        [[f"{batch}.bin", batch] for batch in batches],
        [folder / "cifar-10-batches-bin", folder / "cifar-10-batches-py", folder],
        f"unpack cifar-10-binary.tar.gz or cifar-10-python.tar.gz in {folder}.",
    )
    images, labels = zip(*map(_read_batch, paths), strict=True)
    return Dataset(torch.cat(images), torch.cat(labels), CLASSES, f"CIFAR-10 {part}")


def _read_batch(path: Path) -> tuple[Tensor, Tensor]:
    pixels, labels = _read_records(path) if path.suffix == ".bin" else read_pickle(path, PIXELS)
    if min(labels) < 0 or max(labels) >= len(CLASSES):
        raise CorruptData(f"{path}: expected labels in 0 to 9, found {min(labels)} to {max(labels)}.")
    return pixels.reshape(-1, *SHAPE), torch.tensor(list(labels), device="cpu")


def _read_records(path: Path) -> tuple[Tensor, Sequence[int]]:
    """Pixels (n, 3072) uint8 and n labels: a record is one label byte, then 3072 pixel bytes."""
    raw = path.read_bytes()
    if not raw or len(raw) % (1 + PIXELS):
        raise CorruptData(
            f"{path}: expected a positive multiple of {1 + PIXELS} bytes (one label, {PIXELS} pixels), "
            f"found {len(raw)}."
        )
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(-1, 1 + PIXELS)
    return records[:, 1:], raw[:: 1 + PIXELS]
