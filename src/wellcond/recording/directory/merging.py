"""What keeps a run small: few files, and a spacing of old steps that doubles when they reach the bound."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wellcond.recording.directory.segments import Segment, arrow
from wellcond.recording.history import FIRST_NUMBERS, THINNED_SHARE

if TYPE_CHECKING:
    import pyarrow

LEVELS = 3
FANOUT = 8
"""How much larger the files of a level are than those of the level below."""
MOST_FILES = 16
"""Below the first level, however few rows they have."""
NEWEST_SHARE = 0.25
"""Share of the bytes, the newest, that is thinned only if there is nothing else."""


def due(segments: Sequence[Segment], full: int) -> int:
    """How many of the newest segments are to be merged; 0 or 1 if none are.

    The newest files below a size are merged when they add up to it. Sizes are `full` rows, an eighth and a sixty-fourth
    of it, so that few files wait at each, and each row is rewritten once for each.
    """
    sizes = [full // FANOUT**level for level in range(LEVELS)]
    least = sizes[-1] // MOST_FILES
    for size in sizes:
        count = total = 0
        for segment in reversed(segments):
            if segment.rows >= size or (count and not segment.is_before(segments[-count])):
                break
            count, total = count + 1, total + max(segment.rows, least)
        if total >= size:
            return count
    return 0


def to_thin(segments: Sequence[Segment], full: int) -> slice:
    """The segments to be thinned and merged next: neighbors that were thinned least, the oldest of them.

    They have about `full` rows together, so that no append waits long.
    """
    newer = list(accumulate(segment.size for segment in reversed(segments)))[::-1]
    older = sum(size > NEWEST_SHARE * newer[0] for size in newer) - 1
    candidates = segments[: max(older, 1)]
    start = min(range(len(candidates)), key=lambda i: candidates[i].thinned)
    end, rows = start + 1, candidates[start].rows
    while end < len(candidates) and rows < full and candidates[end - 1].is_before(candidates[end]):
        rows += candidates[end].rows
        end += 1
    return slice(start, end)


def thin(table: pyarrow.Table, *, is_first: bool) -> pyarrow.Table:
    """Every second row of each series, counted from its last one; series with few rows stay as they are.

    Args:
        table: Rows in the order of their steps.
        is_first: Whether they are the first of the run: then the first ones of each series stay too.

    Returns:
        The remaining rows, in the same order.
    """
    series = _series_codes(table)
    counts = np.bincount(series)
    order = np.argsort(series, kind="stable")
    ends = np.cumsum(counts)
    to_end = np.empty(len(series), np.int64)  # how many rows of its series come after a row
    to_end[order] = ends[series[order]] - 1 - np.arange(len(series))
    stays = (to_end % 2 == 0) | (counts[series] < _fewest(counts))
    if is_first:
        stays |= to_end >= counts[series] - FIRST_NUMBERS
    return table.filter(arrow()[0].array(stays))


def _series_codes(table: pyarrow.Table) -> NDArray[np.int64]:
    """A number for each row that tells its quantity and layer."""
    quantities, layers = (table[name].combine_chunks() for name in ("quantity", "layer"))
    codes: NDArray[np.int64] = quantities.indices.to_numpy().astype(np.int64) * len(layers.dictionary)
    codes += layers.indices.to_numpy()
    return codes


def _fewest(counts: NDArray[np.int64]) -> int:
    """The largest length that `THINNED_SHARE` of the rows have in their series."""
    lengths = np.sort(counts)[::-1]
    return int(lengths[np.searchsorted(np.cumsum(lengths), THINNED_SHARE * lengths.sum())])
