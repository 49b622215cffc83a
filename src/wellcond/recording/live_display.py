"""A recorder in the cell of a notebook, which is renewed while the training runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from wellcond.recording.run import Run
from wellcond.results.cell_output import CellOutput
from wellcond.results.rendering import rendered

BETWEEN = 2.0
"""Seconds between two pictures, at least."""
SHARE_OF_TIME = 0.01
"""Share of time that drawing may take: where it takes long, pictures are rarer."""


class LiveDisplay:
    """One output of a cell.

    Args:
        run: Returns the run so far.
        clock: Returns seconds.
    """

    def __init__(self, run: Callable[[], Run], clock: Callable[[], float] = time.perf_counter) -> None:
        self._run, self._clock, self._output = run, clock, CellOutput()
        self._next = -math.inf
        self.refresh()

    def refresh(self) -> None:
        """Show the run as it is, if it is time to."""
        began = self._clock()
        if began < self._next:
            return
        self.show()
        now = self._clock()
        self._next = now + max(BETWEEN, (now - began) / SHARE_OF_TIME)

    def show(self) -> None:
        """Show the run as it is."""
        run = self._run()
        self._output.show(str(rendered("fragment", run)), str(run))
