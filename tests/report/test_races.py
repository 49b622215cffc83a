"""A suggested rate as text: the answer first, and a small picture of the race."""

from __future__ import annotations

from wellcond.learning_rate.race.horizon import Choice
from wellcond.learning_rate.race.outcome import NO_FALL, Race
from wellcond.learning_rate.race.suggested_rate import SuggestedRate
from wellcond.report.races import race_picture
from wellcond.results.run import Run

RUNS = {
    0.1: Run([3.0] * 12),
    1.0: Run([3.0, *[1.5] * 19]),
    2.0: Run([3.0, *[2.5] * 19]),
    10.0: Run([3.0, *[9.0] * 11]),
    20.0: Run([3.0], diverged_at=2),
}


def test_the_answer_comes_first_and_the_race_is_one_line_per_rate() -> None:
    race = Race(RUNS, Choice(1.0, 1.0, 1.0), steps=20, own=2.0, steps_taken=70, held_out={1.0: [1.0, 2.0]})
    text = str(SuggestedRate(None, None, race))
    assert text.startswith("Start with lr = 1: the best of 5 rates, 2 of which were raced for 20 steps.")
    header, *lines = race_picture(race).splitlines()
    assert header.split() == ["lr", "steps", "loss"]
    assert [line.split()[0] for line in lines] == ["0.1", "1", "2", "10", "20"]
    assert lines[1].endswith("lowest, held-out loss 1.5")
    assert lines[2].endswith("yours")
    assert lines[3].endswith("went up")
    assert lines[4].endswith("not finite at step 2")
    assert [line.count("█") for line in lines] == [30, 15, 25, 0, 0]
    assert race_picture(race) in text


def test_losses_that_differ_by_orders_of_magnitude_are_drawn_by_their_logarithm() -> None:
    runs = {0.1: Run([1.0] * 9), 1.0: Run([1e-3] * 9), 10.0: Run([1e-6] * 9)}
    lines = race_picture(Race(runs, Choice(10.0, 10.0, 10.0), 20, None, 27)).splitlines()[1:]
    assert [line.count("█") for line in lines] == [30, 15, 0]


def test_a_rate_that_is_not_the_lowest_of_the_race_says_why() -> None:
    lower = SuggestedRate(None, None, Race(RUNS, Choice(0.5, 0.5, 0.52), steps=4000, own=None, steps_taken=70))
    assert lower.verdict().startswith(
        "Start with lr = 0.5 for 4,000 steps: of 5 rates, 2 of which were raced for 20 steps, 1 ended lowest, and "
        "longer runs need lower rates. No rate up to 2 diverged; 10 did."  # 0.5 to 0.52 is no range
    )
    short = SuggestedRate(None, None, Race(RUNS, Choice(0.5, 0.5, 0.52), steps=4000, own=2.0, steps_taken=70))
    assert "1 ended lowest, and short runs move yours only part of the way. No rate" in short.verdict()
    edge = SuggestedRate(None, None, Race(RUNS, Choice(1.0, 1.0, 1.0, True), steps=4000, own=2.0, steps_taken=70))
    assert edge.verdict().endswith(
        "10 did. None below 1 was raced to the end, and over 4,000 steps one may be better. Runs of 20 steps tell "
        "little: leave max_steps at its default."
    )
    higher = SuggestedRate(None, None, Race(RUNS, Choice(1.5, 1.0, 1.5), steps=20, own=2.0, steps_taken=70))
    assert "1 ended lowest, and higher ones did nearly as well. Rates from 1 to 1.5 are" in higher.verdict()
    own = SuggestedRate(None, None, Race(RUNS, Choice(0.1, 0.1, 0.1), steps=4000, own=0.1, steps_taken=70))
    assert own.verdict().startswith("Keep lr = 0.1 for 4,000 steps: of 5 rates, 2 of which were raced for 20 steps, 1 ")
    assert "1 ended lowest, but few steps prefer rates that are too high." in own.verdict()
    enough = SuggestedRate(None, None, Race(RUNS, Choice(0.1, 0.1, 0.1), steps=20, own=0.1, steps_taken=70))
    assert "1 ended lowest, but longer runs need lower rates." in enough.verdict()


def test_why_nothing_is_predicted_is_said_where_theory_is_asked_for() -> None:
    race = Race(RUNS, Choice(1.0, 1.0, 1.0), steps=20, own=2.0, steps_taken=70)
    suggested = SuggestedRate(None, None, race, unpredicted="nothing: layer '3' is a MaxPool2d")
    assert "MaxPool2d" not in str(suggested)
    assert suggested.theory == {"Predicted, from the architecture": "nothing: layer '3' is a MaxPool2d"}


def test_held_out_data_say_which_rate_is_the_lowest() -> None:
    held_out = {1.0: [4.0, 2.0], 2.0: [1.0, 2.0]}
    race = Race(RUNS, Choice(2.0, 2.0, 2.0), steps=20, own=None, steps_taken=70, held_out=held_out)
    assert race.best == 2.0
    assert race_picture(race).splitlines()[3].endswith("lowest, held-out loss 1.5")
    assert SuggestedRate(None, None, race).verdict().startswith("Start with lr = 2: the best of")


def test_an_interrupted_race_counts_runs_that_are_a_step_short() -> None:
    runs = {1.0: Run([3.0, *[1.5] * 18]), 10.0: Run([3.0, *[9.0] * 19])}
    race = Race(runs, Choice(1.0, 1.0, 1.0), steps=400, own=None, steps_taken=39, status="interrupted")
    assert (list(race.finished), race.best, race.smallest_diverged) == ([1.0], 1.0, 10.0)
    partial = SuggestedRate(None, None, race, status="interrupted")
    assert partial.verdict().startswith("Interrupted. So far: Start with lr = 1: the best of 2 rates, 1 of which were")


def test_keeping_ones_rate_and_no_rate_at_all_are_answers() -> None:
    same = SuggestedRate(None, None, Race(RUNS, Choice(2.0, 1.0, 2.0), steps=20, own=2.0, steps_taken=70))
    assert same.verdict().startswith("Keep lr = 2: of 5 rates")
    assert "Rates from 1 to 2 are equally good." in same.verdict()
    none = SuggestedRate(None, None, Race(RUNS, None, steps=20, own=2.0, steps_taken=70, why_none=NO_FALL))
    assert none.verdict().startswith("No rate trains: of those raced, from 0.1 to 20, none lowers the loss")
    assert "wc.diagnose" in none.verdict()
