"""Examinations stay as they were frozen, and their first results cover all of their cases."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from examine import HERE, checksums, examine_sound, folders, load, names_in, shares
from ranks import CONTEXT

EXAMINATIONS = sorted(path.name for path in HERE.iterdir() if path.name.startswith("2"))
LAST = EXAMINATIONS[-1]
EVERY = 12
"""Of the last examination's sound set-ups, one in this number is diagnosed again."""


def result(examination: str) -> dict[str, Any]:
    first: dict[str, Any] = json.loads((HERE / examination / "first.json").read_text(encoding="utf-8"))
    return first


@pytest.mark.parametrize("examination", EXAMINATIONS)
def test_the_cases_are_those_of_the_first_result(examination: str) -> None:
    now, then = checksums(examination), result(examination)["sha256"]
    assert then
    assert {name: now[name] for name in then} == then


@pytest.mark.parametrize("page", ["README.md", "docs/verdicts.md"])
def test_the_pages_state_the_first_result_of_the_last_one(page: str) -> None:
    goals = shares(result(LAST))
    text = (HERE.parents[1] / page).read_text(encoding="utf-8")
    for goal in ("right cause first", "sound set-ups severely accused"):
        count, of = goals[goal]
        assert f"{count} of {of}" in text


@pytest.mark.slow
@pytest.mark.parametrize("folder", folders(LAST), ids=lambda path: path.name)
def test_no_case_is_left_out_and_the_sound_stay_unaccused(folder: Path) -> None:
    rows = result(LAST)
    with ProcessPoolExecutor(1, CONTEXT, load, (folder,)) as pool:
        faults, sound = pool.submit(names_in, folder).result()
        assert set(faults) <= {row["name"] for row in rows["faults"]}
        assert set(sound) <= {row["name"] for row in rows["sound"]}
        for row in pool.map(examine_sound, sound[::EVERY]):
            assert "error" not in row, row
            assert not [each for each in row["findings"] if each["severity"] == "severe"], row
