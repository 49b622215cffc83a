"""`KeptLosses`: losses on a GPU, which are read later, many at once, and are not copied until then if that is safe."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.recording.watching.readings import Reading, Readings, ToRows
from wellcond.results import Row

TRIED = 32
"""Losses that are copied at first, to see whether anything writes to them."""


class KeptLosses:
    """Losses of steps, each a number on a GPU to which something may write later.

    The replay of a CUDA graph writes every loss to the same place. But to copy each takes 50 µs of a loop on an H200,
    and steps of 2 ms are not rare. So the first ones are copied, and if all of them lie at places of their own and
    stay what they are, later ones are kept as they are, until two lie at the same place. One that was changed in place
    even so is not recorded; where processes train together, which take means in place, all are copied.

    Args:
        readings: Where they wait.

    Example:
        >>> readings, loss = Readings(), torch.tensor(3.0)
        >>> losses = KeptLosses(readings)
        >>> for _ in range(40):  # at the same place
        ...     losses.add(loss, lambda values: [Row(1, "", "loss", values[0], "")])
        ...     _ = loss.add_(1.0)
        >>> [row.value for row in readings.fetch()] == [3.0 + step for step in range(40)]
        True
    """

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._copies = True
        self._tried: dict[int, tuple[Tensor, int]] | None = {}
        """With their versions, by their address."""
        self._kept: dict[int, Reading] = {}
        """By their address, in the order in which they came."""

    def add(self, value: Tensor, to_rows: ToRows) -> None:
        """Add the loss of a step."""
        own = value.detach()
        place = own.data_ptr()
        if self._kept and not next(iter(self._kept.values())).is_waiting:  # all are fetched together
            self._kept = {}
        if overwritten := self._kept.pop(place, None):
            self._stop_keeping(overwritten)
        if self._copies or value._is_view() or value.is_inference():  # these have no version
            self._readings.add(own.clone(), to_rows)
            self._try(own)
            return
        version = own._version

        def unless_changed(values: list[float]) -> list[Row]:
            self._copies |= own._version != version
            return list(to_rows(values)) if own._version == version else []

        self._kept[place] = self._readings.add(own, unless_changed)

    def _try(self, own: Tensor) -> None:
        """Hold the first ones, to whose places nothing but a graph, or the loop itself, then writes another loss."""
        if self._tried is None or own.is_inference():
            return
        is_alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
        if own.data_ptr() in self._tried or not is_alone:
            self._tried = None
            return
        self._tried[own.data_ptr()] = own, own._version
        if len(self._tried) == TRIED:
            self._copies = any(each._version != before for each, before in self._tried.values())
            self._tried = None

    def _stop_keeping(self, overwritten: Reading) -> None:
        """Copy from now on: a loss was written over an earlier one, whose value is lost."""
        overwritten.drop()
        for reading in self._kept.values():
            reading.copy()
        self._kept, self._copies = {}, True
