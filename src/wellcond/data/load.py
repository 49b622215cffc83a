"""A data set by its name."""

from __future__ import annotations

import os
from functools import cache

from wellcond.data.cifar10 import cifar10
from wellcond.data.dataset import Dataset
from wellcond.data.digits import digits
from wellcond.data.mnist import mnist


@cache
def load(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    train: bool = True,
    size: int | None = None,
    channels: int | None = None,
) -> Dataset:
    """Read a data set, once per process.

    Args:
        name: "digits", "mnist", "fashion-mnist", "cifar10" or "cifar100".
        root: The folder with the data sets; None means $WELLCOND_DATA, else `./data`.
        train: Whether to read the training or the test images.
        size: Height and width to resize the images to; None keeps them.
        channels: 3 repeats a grey image in three channels; None keeps it.
    """
    if name == "digits":
        return digits(train)
    return {"mnist": mnist, "cifar10": cifar10}[name](root, train=train)
