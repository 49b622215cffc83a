"""`History`: what has happened in a run that is still going on."""

from __future__ import annotations

from dataclasses import dataclass, field

from wellcond.results import Row
from wellcond.results.run import Run


@dataclass
class History:
    """What has happened in a run so far; a checkpoint saves it.

    Attributes:
        losses: As in `Run`, up to the last one that was read from the device.
        evaluations: As in `Run`.
        diverged_at: As in `Run`.
        cause: As in `Run`.
    """

    losses: list[float] = field(default_factory=list)
    evaluations: list[Row] = field(default_factory=list)
    diverged_at: int | None = None
    cause: str = ""

    def run(self) -> Run:
        """The run, if it ends here."""
        return Run(self.losses, self.diverged_at, self.cause, tuple(self.evaluations))
