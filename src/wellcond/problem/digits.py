"""Handwritten digits to try things on: the 1797 images of 8 × 8 pixels that scikit-learn ships, stored in this package.

E. Alpaydin and C. Kaynak, "Optical recognition of handwritten digits", UCI Machine Learning Repository, 1998
(CC BY 4.0).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

PEAK = 16
"""The pixel value of full ink."""


def digits() -> tuple[Tensor, Tensor]:
    """A small data set that needs no download: 1797 handwritten digits.

    Returns:
        Inputs (1797, 64) with mean 0 and standard deviation 1 over all pixels, and labels (1797,) from 0 to 9.

    Example:
        >>> inputs, labels = digits()
        >>> inputs.shape, labels[:4].tolist()
        (torch.Size([1797, 64]), [0, 1, 2, 3])
    """
    images, labels = digit_images()
    ink = images.double() / PEAK
    mean, std = ink.mean().float(), ink.std(correction=0).float()
    return (images.float() / PEAK - mean) / std, labels


def digit_images() -> tuple[Tensor, Tensor]:
    """The same digits as stored: bytes (1797, 64) from 0 to 16, and labels."""
    with np.load(Path(__file__).with_suffix(".npz")) as stored:
        return torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"]).long()
