"""Weights in float32 that something rounds to bfloat16 after every step, or that become bfloat16 themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from wellcond.recording.watching.layout import Layout
from wellcond.recording.watching.readings import Readings
from wellcond.recording.watching.repeats import places_in
from wellcond.recording.watching.steps import HALF
from wellcond.results import Row
from wellcond.results import quantities as q

ROUNDED_EVERY = 25
"""Steps after which the last bits of weights are looked at again; on a GPU, where that is a dozen kernels, only where
everything is read."""


class RoundingWatch:
    """Looks at the last bits of a few entries of three matrices: a part of a network may be rounded, and not the rest.

    By chance 16 bits are zero in one of 65,536 entries.

    Args:
        parameters: All that are trained, in the model's order.
        layout: Layers of the model.
        readings: Where numbers on a device go.
    """

    def __init__(self, parameters: Callable[[], Sequence[Tensor]], layout: Layout, readings: Readings) -> None:
        self._parameters, self._layout, self._readings = parameters, layout, readings
        self._watched: list[Tensor] | None = None
        self._last: dict[str, float] = {}
        self._looked_at = 0

    def is_due(self, step: int, *, is_deep: bool) -> bool:
        """Whether it is time to look.

        Args:
            step: The step that was taken.
            is_deep: Whether everything is read of it.
        """
        if self._watched is None:
            matrices = [p for p in self._parameters() if p.dtype == torch.float32 and p.dim() > 1 and not p.is_sparse]
            self._watched = _largest_middle_last(matrices)
        is_time = is_deep or step >= self._looked_at + ROUNDED_EVERY
        return is_time and bool(self._watched) and (is_deep or self._watched[0].is_cpu)

    def rows(self, step: int) -> list[Row]:
        """Share of rounded entries in each matrix, if it has changed: of half precision, all."""
        self._looked_at = step
        rows, fine = [], []
        for p in self._watched or ():
            if p.dtype == torch.float32:
                fine.append(p)
            elif p.dtype in HALF:
                rows += self._if_new(step, p, 1.0)
        if not fine:
            return rows
        shares = _shares_of_rounded([p.detach() for p in fine])

        def to_rows(values: list[float]) -> list[Row]:
            return [row for p, value in zip(fine, values, strict=True) for row in self._if_new(step, p, value)]

        if shares.is_cpu:
            return [*rows, *to_rows(shares.tolist())]
        self._readings.add(shares, to_rows)
        return rows

    def state_dict(self) -> dict[str, Any]:
        """What it saw last, and when."""
        return {"last": dict(self._last), "looked_at": self._looked_at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._last, self._looked_at = dict(state["last"]), state["looked_at"]

    def _if_new(self, step: int, p: Tensor, share: float) -> list[Row]:
        layer = self._layout.layer_of(p) or ""
        if self._last.get(layer, math.nan) == share:
            return []
        self._last[layer] = share
        return [Row(step, layer, q.ROUNDED_WEIGHTS, share, "")]


def _largest_middle_last(matrices: list[Tensor]) -> list[Tensor]:
    """The largest, the middle and the last one; of those that are together on a device."""
    if not matrices:
        return []
    largest = max(matrices, key=Tensor.numel)
    together = [p for p in matrices if p.device == largest.device]
    return list({id(p): p for p in (largest, together[len(together) // 2], together[-1])}.values())


def _shares_of_rounded(matrices: Sequence[Tensor]) -> Tensor:
    """(n,), of a few entries of each the share whose last 16 bits are zero."""
    some = torch.stack([matrix.take(places_in(matrix.numel(), matrix.device)) for matrix in matrices])
    is_set = (some != 0) & some.isfinite()  # an embedding has rows of zeros, and NaN such bits
    is_rounded = is_set & (some.view(torch.int32) & 0xFFFF == 0)
    return is_rounded.sum(1) / is_set.sum(1).clamp(min=1)
