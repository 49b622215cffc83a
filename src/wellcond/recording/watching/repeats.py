"""Batches that were just seen: a loader that repeats itself."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

import torch
from torch import Tensor

from wellcond.network.calling import tensors_in

ENTRIES = 32
"""Entries of a batch, spread over all of it, by which it is known again."""
GOLDEN = 0.6180339887498949
EVERY = 16
"""Every sixteenth batch is looked at."""
REMEMBERED = 8
"""Batches that were looked at last, among which one is looked for."""


class Repeats:
    """Counts steps in a row whose batch was one of those looked at last.

    Attributes:
        in_a_row: The number of such steps up to the last batch that was looked at.

    Example:
        >>> repeats = Repeats()
        >>> for batch in (torch.ones(4), torch.zeros(4), torch.ones(4)):
        ...     repeats.count(sample_of(batch).tolist())
        >>> repeats.in_a_row == EVERY
        True
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self._last: deque[tuple[float, ...]] = deque(maxlen=REMEMBERED)

    def count(self, sample: list[float]) -> None:
        """Count a batch, by a sample of it."""
        known = tuple(sample)
        self.in_a_row = self.in_a_row + EVERY if known in self._last else 0
        self._last.append(known)

    def state_dict(self) -> dict[str, Any]:
        """What was seen last."""
        return {"in_a_row": self.in_a_row, "last": list(self._last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what was seen last."""
        self.in_a_row = state["in_a_row"]
        self._last = deque(state["last"], maxlen=REMEMBERED)


def sample_of(batch: Any) -> Tensor | None:
    """A few entries of a batch's inputs; None if there are none."""
    first = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    tensor = first if isinstance(first, Tensor) else next(iter(tensors_in(first)), None)
    if tensor is None or tensor.layout is not torch.strided or not tensor.numel():
        return None
    return tensor.detach().take(places_in(tensor.numel(), tensor.device))


@functools.lru_cache(maxsize=32)
def places_in(size: int, device: torch.device) -> Tensor:
    """Places of a few entries, spread over all.

    Multiples of the golden ratio: even steps would meet the same pixel of every image, which may be background.
    """
    return (torch.arange(1, ENTRIES + 1, device=device, dtype=torch.float64) * GOLDEN % 1 * size).long()
