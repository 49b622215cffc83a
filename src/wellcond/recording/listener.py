"""`Listener`: what hears of a run as it goes."""

from __future__ import annotations

from collections.abc import Sequence

from wellcond.diagnosis.finding import Finding
from wellcond.results import Row


class Listener:
    """Receives what a recorder writes down; each method does nothing unless it is overridden."""

    def rows(self, rows: Sequence[Row]) -> None:
        """New rows, of one step or many, not in the order of their steps."""

    def finding(self, finding: Finding) -> None:
        """A finding that has begun; or one that has ended, with `until` set."""
