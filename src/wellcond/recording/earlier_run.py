"""`EarlierRun`: a run that is in the folder already, which the new one goes on with or is set apart from."""

from __future__ import annotations

from collections.abc import Sequence

from wellcond.recording.logbook import Logbook
from wellcond.recording.mishaps import RecordingWarning, warn
from wellcond.recording.watching.counting import StepCount

SET_ASIDE = """\
the run that was {place} is of another set-up ({changed}), and is in {target} now. A run that goes on has \
rec.load_state_dict(…), or rec.step(…, step=…) with the number of its step"""
GOES_ON = "{place} there is a run of {steps:,} steps, and this one goes on after it; name another run_dir for a new one"


class EarlierRun:
    """What becomes of a run in the folder, decided before the first step that is recorded.

    Args:
        steps: Its steps; 0 if there is none.
        changes: What is different in the new run, in words.
        place: Where it is, in words.
        logbook: It writes to the folder.
        is_writer: Whether this process is the one that writes.

    Attributes:
        is_open: Whether nobody has said so far that it is to go on.
    """

    def __init__(self, steps: int, changes: Sequence[str], place: str, logbook: Logbook, *, is_writer: bool) -> None:
        self.is_open = steps > 0
        self._changes, self._place, self._logbook, self._is_writer = changes, place, logbook, is_writer

    def decide(self, count: StepCount, number: int | None) -> None:
        """Go on with it if the step that comes has a number of its own or nothing has changed; else set it aside.

        Args:
            count: The count of steps, which begins anew if it is set aside.
            number: The number of the step that comes, if there is one.
        """
        self.is_open = False
        steps = count.step
        if number not in (None, 1):
            return
        if self._changes:
            target, count.step = self._logbook.set_aside(), 0
            if target is not None:
                changed = "; ".join(self._changes)
                warn(SET_ASIDE.format(place=self._place, changed=changed, target=target), RecordingWarning)
        elif number is None and self._is_writer:
            warn(GOES_ON.format(place=self._place, steps=steps), RecordingWarning)
