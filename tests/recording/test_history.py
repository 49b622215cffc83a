"""Numbers in memory: older ones are thinned before they take too much of it, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from wellcond.recording.history import History
from wellcond.recording.logbook import Logbook
from wellcond.recording.mishaps import Mishaps
from wellcond.results import Row


def losses(first: int, last: int) -> list[Row]:
    return [Row(step, "", "training_loss", float(step), "") for step in range(first, last + 1)]


def test_thinning_drops_every_second_number_of_the_older_three_quarters() -> None:
    """Against a list: of 100 steps the first 16 and the last 25 stay, and every second of those between."""
    history = History(losses(1, 100))
    history.thin(99)
    expected = [*range(1, 17), *range(17, 76, 2), *range(76, 101)]
    series = history.series("training_loss")
    assert series.steps.tolist() == expected
    assert series.values.tolist() == expected
    history.add(losses(101, 103))
    assert history.series("training_loss").steps.tolist() == [*expected, 101, 102, 103]


def test_what_fits_is_not_thinned() -> None:
    history = History(losses(1, 100))
    history.thin(100)
    assert len(history) == 100


def test_a_long_run_has_its_first_steps_an_even_spacing_and_its_newest_steps() -> None:
    """A hundred thinnings one after the other leave no hole: they are 128 steps apart, or 800 of 100,000."""
    history = History()
    for first in range(1, 100_001, 100):
        history.add(losses(first, first + 99))
        history.thin(2000)
        assert len(history) <= 2000
    assert len(history) > 1000
    series = history.series("training_loss")
    assert series.steps[:16].tolist() == list(range(1, 17))
    assert series.steps[-1] == 100_000
    assert (series.values == series.steps).all()
    gaps = np.diff(series.steps)
    assert (gaps[-400:] == 1).all()
    assert gaps.max() == 128


def test_numbers_are_dropped_where_they_are_densest() -> None:
    """Every step at first, then every fortieth: all of these stay."""
    dense, sparse = range(1, 2001), range(2040, 40_000, 40)
    history = History(Row(step, "", "loss", float(step), "") for step in (*dense, *sparse))
    history.thin(1500)
    steps = history.series("loss").steps.tolist()
    assert steps[-len(sparse) :] == list(sparse)
    assert 200 < len(steps) - len(sparse) < 600
    assert np.diff(steps[16 : -len(sparse)]).max() == 4


def test_series_with_few_numbers_stay_whole() -> None:
    history = History(losses(1, 1000))
    rates = [Row(step, "", "lr", 0.1, "lr") for step in range(1, 1001, 100)]
    history.add(rates)
    history.thin(300)
    assert len(history) <= 300
    assert history.series("lr").steps.tolist() == [row.step for row in rates]
    assert history.unit("lr") == "lr"


def test_series_of_which_nothing_can_be_dropped_end_the_thinning() -> None:
    history = History(Row(step, f"layer{i}", "weight_norm", 1.0, "") for step in (1, 2) for i in range(50))
    history.thin(10)
    assert len(history) == 100


def test_a_logbook_holds_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellcond.recording.logbook.MOST_ROWS", 800)
    logbook = Logbook((), "SGD", (), None, None, None, Mishaps())
    for first in range(1, 10_001, 20):
        logbook.add(losses(first, first + 19))
        assert len(logbook.history) <= 800 + 800 // 8 + 20
    assert len(logbook.history) > 400
    steps = logbook.history.series("training_loss").steps
    assert (steps[0], steps[-1]) == (1, 10_000)
