"""A whole data set on one device, and its shuffled, augmented batches as a function of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from wellcond.data.dataset import Dataset

Augmentation = Literal["crop", "flip", "rotation"]


class Batches:
    """Batches for training: `batches(step)` is always the same for the same seed, so that a run can be resumed.

    The whole set lies on the device. Every epoch has its own order, and its images are augmented all at once. The last
    batch of an epoch is left out if it is smaller than the others.

    Args:
        dataset: The images and labels.
        size: Images per batch.
        seed: Fixes the order and the augmentation, on every device.
        device: Where the images lie.
        augment: Any of "crop" (shift by up to 4 pixels, zeros outside), "flip" (left to right, every other image) and
            "rotation" (by up to 15 degrees).
        count: How many images, from the first; None for all.
        flatten: Whether inputs are (n, C·H·W).
        standardize: As in `Dataset.tensors`.
        dtype: Of the inputs.
        channels_last: Whether inputs are laid out as (N, H, W, C) in memory.

    Attributes:
        per_epoch: Batches in an epoch.
    """

    def __init__(
        self,
        dataset: Dataset,
        size: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        augment: Sequence[Augmentation] = (),
        count: int | None = None,
        flatten: bool = False,
        standardize: bool = True,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        x, y = dataset.tensors(dtype, flatten=flatten, standardize=standardize, count=count)
        self.x, self.y = x.to(device), y.to(device)
        self.size, self.seed = size, seed
        self.per_epoch = len(y) // size
        self._order = (-1, torch.empty(0, dtype=torch.int64))

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of a step, counted from 0."""
        epoch, place = divmod(step, self.per_epoch)
        if self._order[0] != epoch:
            generator = torch.Generator("cpu").manual_seed(self.seed * 1_000_003 + epoch)
            self._order = epoch, torch.randperm(len(self.y), generator=generator).to(self.y.device)
        chosen = self._order[1][place * self.size : (place + 1) * self.size]
        return self.x[chosen], self.y[chosen]
