"""What goes wrong in recording: said once, in a warning and in `Recorder.problems`, and never raised into a loop."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wellcond.network.calling import one_line

PACKAGE = str(Path(__file__).parents[1])
"""Folder of the library, in which no line of a training loop is."""


class RecordingWarning(UserWarning):
    """Something could not be recorded; training goes on."""


class Mishaps:
    """Runs the parts of recording, counts the time they take, and switches off those that fail.

    Args:
        clock: Returns seconds.

    Attributes:
        messages: What went wrong, by part.
        seconds: Time of guarded calls since it was last set to zero.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.messages: dict[str, str] = {}
        self.seconds = 0.0
        self.on_failure: Callable[[str], None] | None = None
        self._clock = clock
        self._is_inside = False

    def guard(self, part: str, function: Callable[[], Any]) -> Any:
        """What a function returns; None if it fails, or its part has failed before."""
        return None if part in self.messages else self.attempt(part, function)

    def attempt(self, part: str, function: Callable[[], Any]) -> Any:
        """What a function returns; None if it fails, which does not end its part: a disk may have room again."""
        is_outermost, self._is_inside = not self._is_inside, True
        began = self._clock()
        try:
            return function()
        except Exception as error:
            self.report(part, f"{part}: {type(error).__name__}: {one_line(error)}")
            return None
        finally:
            self._is_inside = not is_outermost
            if is_outermost:
                self.seconds += max(0.0, self._clock() - began)

    def report(self, part: str, message: str) -> None:
        """Say what went wrong with a part, once."""
        if part in self.messages:
            return
        self.messages[part] = message
        if self.on_failure is not None:
            self.on_failure(part)
        warn(message, RecordingWarning)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line of the training loop; a filter that turns warnings into errors must not end it either."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame, level = frame.f_back, level + 1
    try:
        warnings.warn(message, category, stacklevel=level)
    except Warning:
        warnings.showwarning(message, category, __file__, 0)
