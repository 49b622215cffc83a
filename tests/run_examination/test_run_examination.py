"""Examinations of runs stay as they were frozen, and the pages state their first results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from examine_runs import HERE, checksums, shares

EXAMINATIONS = sorted(path.name for path in HERE.iterdir() if path.name.startswith("2"))


def first_result(examination: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((HERE / examination / "first.json").read_text(encoding="utf-8"))
    return result


@pytest.mark.parametrize("examination", EXAMINATIONS)
def test_the_cases_are_those_of_the_first_result(examination: str) -> None:
    assert checksums(examination) == first_result(examination)["sha256"]


@pytest.mark.parametrize("page", ["README.md", "docs/verdicts.md"])
def test_the_pages_state_the_first_result_of_the_last_one(page: str) -> None:
    goals = shares(first_result(EXAMINATIONS[-1]))
    text = (HERE.parents[1] / page).read_text(encoding="utf-8")
    for goal in ("right rule first", "healthy runs severely accused"):
        count, of = goals[goal]
        assert f"{count} of {of}" in text
