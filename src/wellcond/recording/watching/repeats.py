"""Batches that were just seen: a loader that repeats itself."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from wellcond.network.calling import tensors_in

ENTRIES = 16
"""Entries of a batch, evenly spread, by which it is known again."""
REMEMBERED = 32
"""Last batches among which one is looked for."""


class Repeats:
    """Counts steps in a row whose batch was among the last ones.

    Attributes:
        in_a_row: The number of such steps up to the last batch that was counted.

    Example:
        >>> repeats = Repeats()
        >>> for batch in (torch.ones(4), torch.zeros(4), torch.ones(4)):
        ...     repeats.count(sample_of(batch).tolist())
        >>> repeats.in_a_row
        1
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self._last: deque[tuple[float, ...]] = deque(maxlen=REMEMBERED)

    def count(self, sample: list[float]) -> None:
        """Count a batch, by a sample of it."""
        known = tuple(sample)
        self.in_a_row = self.in_a_row + 1 if known in self._last else 0
        self._last.append(known)


def sample_of(batch: Any) -> Tensor | None:
    """A few entries of a batch's inputs; None if there are none."""
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    tensor = first if isinstance(first, Tensor) else next(iter(tensors_in(first)), None)
    if tensor is None or tensor.layout is not torch.strided or not tensor.numel():
        return None
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // ENTRIES)][:ENTRIES]
