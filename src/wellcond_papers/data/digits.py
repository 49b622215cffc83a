"""The handwritten digits of `wellcond.digits` as a data set of images: real, and without a download."""

from __future__ import annotations

from wellcond.problem.digits import PEAK, digit_images
from wellcond_papers.data.dataset import Dataset

TRAIN_COUNT = 1437  # four fifths of the 1797 images, rounded down


def digits(train: bool | None = None) -> Dataset:
    """The 1797 digits that scikit-learn ships, (N, 1, 8, 8) with values 0 to 16.

    Args:
        train: True for the first 1437, False for the last 360, None for all of them.

    Returns:
        The images and labels.

    Example:
        >>> digits()
        Dataset(digits: 1797 images of 1x8x8, 10 classes)
    """
    images, labels = digit_images()
    part = {None: slice(None), True: slice(TRAIN_COUNT), False: slice(TRAIN_COUNT, None)}[train]
    return Dataset(
        images=images[part].reshape(-1, 1, 8, 8),
        labels=labels[part],
        classes=tuple("0123456789"),
        name={None: "digits", True: "digits train", False: "digits test"}[train],
        peak=PEAK,
    )
