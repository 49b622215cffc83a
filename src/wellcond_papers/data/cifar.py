"""CIFAR-10 and CIFAR-100 from their binary records or their pickles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from wellcond.errors import CorruptData
from wellcond_papers.data.cifar_pickle import read_pickle
from wellcond_papers.data.dataset import Dataset
from wellcond_papers.data.locate import data_root, locate

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
CLASSES_10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASSES_100_TEXT = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CLASSES_100 = tuple(CLASSES_100_TEXT.split())


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
    folders = [folder / "cifar-10-batches-bin", folder / "cifar-10-batches-py", folder]
    paths = locate("cifar10", part, folder, [[f"{batch}.bin", batch] for batch in batches], folders)
    images, labels = zip(*(_read(path, CLASSES_10, label_bytes=1, key="labels") for path in paths), strict=True)
    return Dataset(torch.cat(images), torch.cat(labels), CLASSES_10, f"CIFAR-10 {part}")


def cifar100(root: str | os.PathLike[str] | None = None, *, train: bool = True) -> Dataset:
    """Read CIFAR-100: 50 000 training or 10 000 test images, (N, 3, 32, 32), with their 100 fine labels.

    The pickles are read without running any code they may hold.

    Args:
        root: The files are in `root/cifar-100-binary`, `root/cifar-100-python` or `root` itself; None means
            $WELLCOND_DATA, else `./data`.
        train: Whether to read the training or the test images.

    Returns:
        The images and labels, in file order.

    Raises:
        DataNotFound: The files are in none of these folders.
        CorruptData: A file does not hold what its format promises.

    Example:
        >>> cifar100("data", train=False)  # doctest: +SKIP
        Dataset(CIFAR-100 test: 10000 images of 3x32x32, 100 classes)
    """
    folder = data_root(root)
    part = "train" if train else "test"
    folders = [folder / "cifar-100-binary", folder / "cifar-100-python", folder]
    (path,) = locate("cifar100", part, folder, [[f"{part}.bin", part]], folders)
    return Dataset(*_read(path, CLASSES_100, label_bytes=2, key="fine_labels"), CLASSES_100, f"CIFAR-100 {part}")


def _read(path: Path, classes: Sequence[str], label_bytes: int, key: str) -> tuple[Tensor, Tensor]:
    """Images and labels of one file, which is records or a pickle."""
    is_records = path.suffix == ".bin"
    pixels, labels = _read_records(path, label_bytes) if is_records else read_pickle(path, PIXELS, key)
    if min(labels) < 0 or max(labels) >= len(classes):
        raise CorruptData(f"{path}: expected labels in 0 to {len(classes) - 1}, found {min(labels)} to {max(labels)}.")
    return pixels.reshape(-1, *SHAPE), torch.tensor(list(labels), device="cpu")


def _read_records(path: Path, label_bytes: int) -> tuple[Tensor, Sequence[int]]:
    """Pixels (n, 3072) uint8 and n labels: a record is its label bytes, of which the last is kept, then 3072 pixels."""
    raw = path.read_bytes()
    record = label_bytes + PIXELS
    if not raw or len(raw) % record:
        raise CorruptData(
            f"{path}: expected a positive multiple of {record} bytes ({label_bytes} of label, {PIXELS} pixels), "
            f"found {len(raw)}."
        )
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).reshape(-1, record)
    return records[:, label_bytes:], raw[label_bytes - 1 :: record]
