"""`KeptLosses`: losses on a GPU, which are read later, many at once, and are not copied until then if that is safe."""

from __future__ import annotations

import torch
from torch import Tensor

from wellcond.recording.watching.readings import Readings, ToRows
from wellcond.results import Row
from wellcond.results import quantities as q

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
        >>> for step in range(40):  # at the same place
        ...     losses.add(step, loss)
        ...     _ = loss.add_(1.0)
        >>> [row.value for row in readings.fetch()] == [3.0 + step for step in range(40)]
        True
    """

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._copies = True
        self._tried: dict[int, tuple[Tensor, int]] | None = {}
        """With their versions, by their address."""
        self._kept: dict[int, tuple[int, Tensor, int]] = {}
        """Steps, losses and their versions, by address, in the order in which they came."""
        readings.before_fetch = self._hand_over

    def add(self, step: int, value: Tensor) -> None:
        """Add the loss of a step. That is done at every step, between kernels, and so in few lines."""
        own = value.detach()
        place = own.data_ptr()
        if place in self._kept:
            self._stop_keeping(place)
        if self._copies or value._is_view() or value.is_inference():  # these have no version
            self._hand_over()
            self._readings.add(own.clone(), _as_row(step))
            self._try(own)
        else:
            self._kept[place] = step, own, own._version

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

    def _hand_over(self) -> None:
        """Let what is kept be fetched."""
        waiting, self._kept = self._kept, {}
        for step, own, version in waiting.values():
            self._readings.add(own, self._rows_unless_changed(step, own, version))

    def _rows_unless_changed(self, step: int, own: Tensor, version: int) -> ToRows:
        to_rows = _as_row(step)

        def rows(values: list[float]) -> list[Row]:
            self._copies |= own._version != version
            return list(to_rows(values)) if own._version == version else []

        return rows

    def _stop_keeping(self, overwritten: int) -> None:
        """Copy from now on: a loss was written over an earlier one, whose value is lost."""
        del self._kept[overwritten]
        waiting, self._kept, self._copies = self._kept, {}, True
        for step, own, version in waiting.values():
            self._readings.add(own, self._rows_unless_changed(step, own, version)).copy()


def _as_row(step: int) -> ToRows:
    return lambda values: [Row(step, "", q.TRAINING_LOSS, values[0], "")]
