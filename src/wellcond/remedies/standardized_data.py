"""Whether data are standardized already, so that there is nothing to try. A comparison decides on all others."""

from __future__ import annotations

import math

from torch import Tensor

NEAR = 0.5
"""Means within this many standard deviations of zero, and standard deviations from this to its inverse, are near."""


def is_standardized(mean: Tensor, std: Tensor) -> bool:
    """Whether the mean of every feature is near 0 and its standard deviation near 1.

    Example:
        >>> import torch
        >>> is_standardized(torch.tensor([0.1]), torch.tensor([0.8]))
        True
        >>> is_standardized(torch.tensor([0.1]), torch.tensor([9.0]))
        False
    """
    return not bool(((mean.abs() > NEAR * std) | (std.log().abs() > -math.log(NEAR))).any())
