"""A data set by its name."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from wellcond_papers.data.cifar import cifar10, cifar100
from wellcond_papers.data.dataset import Dataset
from wellcond_papers.data.digits import digits
from wellcond_papers.data.image_folder import imagenet
from wellcond_papers.data.locate import data_root
from wellcond_papers.data.mnist import fashion_mnist, mnist

READERS: dict[str, Callable[[Path, bool], Dataset]] = {
    "digits": lambda root, train: digits(train),
    "mnist": lambda root, train: mnist(root, train=train),
    "fashion-mnist": lambda root, train: fashion_mnist(root, train=train),
    "cifar10": lambda root, train: cifar10(root, train=train),
    "cifar100": lambda root, train: cifar100(root, train=train),
    "imagenet": lambda root, train: imagenet(root, train=train),
}
CACHED = 8
"""Number of data sets that stay in memory; one of CIFAR's is 154 MB."""


def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    train: bool = True,
    size: int | None = None,
    channels: int | None = None,
) -> Dataset:
    """Read a data set, or return the one that was read before.

    Args:
        name: "digits", "mnist", "fashion-mnist", "cifar10", "cifar100", or "imagenet", whose images stay on disk.
        root: The folder with the data sets; None means $WELLCOND_DATA, else `./data`.
        train: Whether to read the training or the test images.
        size: Height and width to resize the images to, as `Dataset.resized` does; None keeps them.
        channels: 3 repeats a gray image in three channels; None keeps it.

    Returns:
        The images and labels; the same object for the same arguments, so do not change it.

    Raises:
        DataNotFound: The files are not there; it says what to fetch from where, and where to put it.
        CorruptData: A file does not hold what its format promises.
        ValueError: An unknown name, or images cannot have this size or number of channels.

    Example:
        >>> load("digits", size=32, channels=3)
        Dataset(digits train: 1437 images of 3x32x32, 10 classes)
    """
    if name not in READERS:
        close = difflib.get_close_matches(name, READERS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"there is no data set {name!r}, only {', '.join(READERS)}{hint}")
    return _load(name, data_root(root), train, size, channels)


@lru_cache(CACHED)
def _load(name: str, root: Path, train: bool, size: int | None, channels: int | None) -> Dataset:
    if channels is not None:
        return _load(name, root, train, size, None).with_channels(channels)
    if size is not None:
        return _load(name, root, train, None, None).resized(size)
    return READERS[name](root, train)
