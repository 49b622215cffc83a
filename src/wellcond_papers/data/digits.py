"""scikit-learn's handwritten digits: a real data set that needs no download."""

from __future__ import annotations

import torch

from wellcond.errors import MissingExtra
from wellcond_papers.data.dataset import Dataset

TRAIN_COUNT = 1437  # four fifths of the 1797 images, rounded down


def digits(train: bool | None = None) -> Dataset:
    """Read scikit-learn's 1797 digits, (N, 1, 8, 8) with values 0 to 16.

    Args:
        train: True for the first 1437, False for the last 360, None for all of them.

    Returns:
        The images and labels.

    Raises:
        MissingExtra: scikit-learn is not installed.

    Example:
        >>> digits()
        Dataset(digits: 1797 images of 1x8x8, 10 classes)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtra("scikit-learn", "demo") from error
    pixels, targets = load_digits(return_X_y=True)
    part = {None: slice(None), True: slice(TRAIN_COUNT), False: slice(TRAIN_COUNT, None)}[train]
    return Dataset(
        images=torch.from_numpy(pixels[part]).to(torch.uint8).reshape(-1, 1, 8, 8),
        labels=torch.from_numpy(targets[part]).to(torch.int64),
        classes=tuple("0123456789"),
        name={None: "digits", True: "digits train", False: "digits test"}[train],
        peak=16,
    )
