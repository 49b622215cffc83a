"""Numbers that were measured on a device, and are fetched later, all at once: nothing waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.results import Row

ToRows = Callable[[list[float]], Iterable[Row]]
"""Rows made of the numbers of a reading, once they are known."""

LEAST_ROOM = 4096
"""Numbers for which memory of the host is asked for at least: the first request of a size takes a millisecond, later
ones nothing."""


@dataclass(eq=False)
class Reading:
    """Numbers of one step, on their device.

    Attributes:
        values: (n,), or () for one number.
        to_rows: Makes rows of them.
    """

    values: Tensor
    to_rows: ToRows

    def copy(self) -> None:
        """Let later changes of the values not matter; what a function with CUDA graphs returned may be gone."""
        try:
            self.values = self.values.clone()
        except RuntimeError:
            self.drop()

    def drop(self) -> None:
        """Make no rows of it."""
        self.values, self.to_rows = torch.empty(0), lambda _values: []


class Readings:
    """Readings in the order in which they were taken, until they are fetched.

    On a GPU they are first copied into memory of the host, in the background, and read when the copy is there.

    Attributes:
        before_fetch: Called before all are fetched, to add what was not worth adding at every step.

    Example:
        >>> readings = Readings()
        >>> _ = readings.add(torch.tensor([3.0]), lambda values: [Row(1, "", "loss", values[0], "")])
        >>> readings.fetch()
        [Row(step=1, layer='', quantity='loss', value=3.0, unit='')]
    """

    def __init__(self) -> None:
        self._waiting: list[Reading] = []
        self._copied: list[tuple[list[Reading], Tensor, torch.cuda.Event]] = []
        self.before_fetch: Callable[[], None] = lambda: None

    def add(self, values: Tensor, to_rows: ToRows) -> Reading:
        """Add the numbers of a step; the tensor is not to be changed any more."""
        reading = Reading(values.detach(), to_rows)
        self._waiting.append(reading)
        return reading

    def fetch(self, *, wait: bool = True) -> list[Row]:
        """Rows of all readings; with `wait=False` only those that have arrived from a GPU."""
        self.before_fetch()
        readings, self._waiting = self._waiting, []
        if not readings:
            return self._arrived(wait=wait)
        # a tensor that is copied from a GPU to the CPU in the background could be read before it is there
        devices = [each.values.device for each in readings]
        device = next((each for each in devices if each.type == "cuda"), devices[0])
        try:
            flat = torch.cat([each.values.to(device, non_blocking=True).reshape(-1) for each in readings])
        except RuntimeError:
            for each in readings:
                each.copy()
            flat = torch.cat([each.values.to(device, non_blocking=True).reshape(-1) for each in readings])
        if device.type != "cuda":
            return [*self._arrived(wait=True), *_rows(readings, flat.tolist())]
        room = torch.empty(max(flat.numel(), LEAST_ROOM), dtype=flat.dtype, pin_memory=True)
        pinned = room[: flat.numel()]
        pinned.copy_(flat, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(flat.device))
        self._copied.append((readings, pinned, event))
        return self._arrived(wait=wait)

    def _arrived(self, *, wait: bool) -> list[Row]:
        rows = []
        while self._copied:
            readings, pinned, event = self._copied[0]
            if wait:
                event.synchronize()
            elif not event.query():  # type: ignore[no-untyped-call]
                break
            rows += _rows(readings, pinned.tolist())
            del self._copied[0]
        return rows


def _rows(readings: list[Reading], values: list[float]) -> list[Row]:
    rows: list[Row] = []
    start = 0
    for reading in readings:
        end = start + reading.values.numel()
        rows.extend(reading.to_rows(values[start:end]))
        start = end
    return rows
