"""How many steps a trial may take, and until when."""

from __future__ import annotations

import pytest

from wellcond.diagnosis import attempts
from wellcond.diagnosis.attempts import Allowance


@pytest.mark.parametrize(("seconds", "steps", "fits"), [(10.0, 30, True), (10.0, 31, False), (None, 1000, True)])
def test_no_run_begins_that_would_end_too_late(
    seconds: float | None, steps: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten u of half a step each have taken four seconds; six are left, in which thirty steps fit."""
    now = 100.0
    monkeypatch.setattr(attempts.time, "perf_counter", lambda: now)
    allowed = Allowance(lambda: 10.0, 0.5, 1e6, seconds)
    now = 104.0
    assert allowed.has(steps, "a run") is fits
    assert allowed.left_out == ([] if fits else ["a run"])
