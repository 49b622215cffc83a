"""The reproduction book is made from the committed rows, all of it."""

from __future__ import annotations

import re

import book
import pytest


@pytest.mark.slow
def test_the_pages_say_what_the_rows_say() -> None:
    """`make book` brings them up to date."""
    stale = [path.name for path, text in book.pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == []


def test_every_file_of_rows_has_its_picture_and_no_picture_is_left_over() -> None:
    rows = {path.stem for path in book.ROWS.glob("*.json")}
    assert rows == {path.stem for path in book.PICTURES.glob("*.png")}


@pytest.mark.parametrize(
    ("name", "label"),
    [("huang2020-fig11", "Figure 11"), ("huang2020-table-b", "Table B"), ("zhang2018-table1", "Table 1")],
)
def test_a_figure_is_called_as_in_the_paper(name: str, label: str) -> None:
    assert book.label(name) == label


def test_a_setting_that_is_not_the_papers_is_said() -> None:
    [first, *_] = book.departures(book.runs("huang2020-fig8")["gpu"])
    assert "`epochs` 10 (paper: 160)" in first


def test_settings_of_single_arms_are_said_and_whose_choice_they_are() -> None:
    first, second, *_ = book.departures(book.runs("lange2022-fig4")["laptop"])
    assert re.search(
        r"`steps` 10 000 \(`paper`: 166 666\) in \d+ arms, 20 000 \(`paper`: 1 000 000\) in \d+ arms", first
    )
    assert second == "The source does not state `steps`: what `paper` has is our choice"


def test_a_run_with_the_settings_of_the_paper_differs_in_none() -> None:
    run = book.runs("santurkar2018-fig7")["paper"]
    assert list(book.departures(run)) == list(run.experiment.departures)


@pytest.mark.slow
def test_every_claim_that_fails_has_its_cause_and_no_cause_is_left_over() -> None:
    failing, undecided, explained = set(), set(), set()
    for name in book.names():
        for scale, run in book.runs(name).items():
            for claim, outcome in zip(run.experiment.claims, run.outcomes, strict=True):
                place = f"{name} {scale}: {claim.says}"
                if outcome.verdict in ("holds in part", "does not hold"):
                    failing.add(place)
                if outcome.verdict == "too short to tell":
                    undecided.add(place)
                if scale in claim.causes:
                    explained.add(place)
    assert failing - explained == set()
    assert explained - failing - undecided == set()


@pytest.mark.parametrize("name", book.names())
def test_a_claim_of_ours_that_fails_is_not_held_against_the_paper(name: str) -> None:
    ours = [claim for claim in book.experiment(name).claims if claim.is_ours]
    kinds = {cause.kind for claim in ours for cause in claim.causes.values()}
    assert "the paper's claim does not hold here" not in kinds


def test_the_index_counts_all_claims() -> None:
    """What was not tested, or was too short to tell, is in the denominator."""
    run = book.runs("lange2022-fig3")["laptop"]
    count, _, parts = book.counted(run).removeprefix("of ").partition(": ")
    assert int(count) == sum(int(part.split()[0]) for part in parts.split(", "))
    assert int(count) == sum(not claim.is_ours for claim in run.experiment.claims)


def test_a_run_that_bears_on_no_claim_yet_hides_no_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, short = book.runs("wei2019-fig3")["laptop"], book.runs("zhang2018-fig1")["gpu"]
    assert (begun.verdict(), short.verdict()) == ("not tested", "too short to tell")
    monkeypatch.setattr(book, "names", lambda: ["zhang2018-fig1"])
    monkeypatch.setattr(book, "runs", lambda name: {"paper": begun, "gpu": short})
    assert [run is short for run in book.largest_runs()] == [True]
    assert book.claims(short) in book.section("zhang2018-fig1")


@pytest.mark.slow
def test_the_queue_names_what_is_left_with_its_minutes() -> None:
    *entries, together = book.left().splitlines()[2:]
    minutes = [float(line.split("|")[4]) for line in entries]
    assert all(each > 0 for each in minutes)
    assert float(together.split("|")[4]) == pytest.approx(sum(minutes), abs=1)
