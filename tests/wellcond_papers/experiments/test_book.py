"""The reproduction book is made from the committed rows, all of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "docs" / "scripts" / "book.py"


@pytest.fixture(scope="module")
def book() -> ModuleType:
    spec = importlib.util.spec_from_file_location("book", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_pages_say_what_the_rows_say(book: ModuleType) -> None:
    """`make book` brings them up to date."""
    stale = [path.name for path, text in book.pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == []


def test_every_file_of_rows_has_its_picture_and_no_picture_is_left_over(book: ModuleType) -> None:
    rows = {path.stem for path in book.ROWS.glob("*.json")}
    assert rows == {path.stem for path in book.PICTURES.glob("*.png")}


@pytest.mark.parametrize(
    ("name", "label"),
    [("huang2020-fig11", "Figure 11"), ("huang2020-table-b", "Table B"), ("zhang2018-table1", "Table 1")],
)
def test_a_figure_is_called_as_in_the_paper(book: ModuleType, name: str, label: str) -> None:
    assert book.label(name) == label


def test_a_setting_that_is_not_the_papers_is_said(book: ModuleType) -> None:
    [first, *_] = book.departures(book.experiment("huang2020-fig8"), "gpu")
    assert "`epochs` 10 (paper: 160)" in first
    assert not any("paper:" in text for text in book.departures(book.experiment("huang2020-fig8"), "paper"))
