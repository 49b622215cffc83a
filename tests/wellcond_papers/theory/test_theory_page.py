"""Every statement of the theory page has a test, and every test of a statement is on the page."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`(test_\w+)`", PAGE))
STATEMENTS, _, TESTS = PAGE.partition("\n## Tests\n")


def defined(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}


def rows(text: str, head: str) -> list[list[str]]:
    """The rows of all tables with this head."""
    tables = re.findall(rf"^{re.escape(head)}\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    return [re.split(r"(?<!\\) \| ", line.strip("| ")) for table in tables for line in table.splitlines()]


@pytest.mark.slow
def test_every_test_that_the_page_names_exists() -> None:
    assert NAMED
    assert not NAMED - set().union(*(defined(path) for path in FOLDER.parent.rglob("test_*.py")))


def test_every_theory_test_stands_on_the_page() -> None:
    sources = [path for path in FOLDER.glob("test_*.py") if path.name != Path(__file__).name]
    assert not set().union(*map(defined, sources)) - NAMED


def test_every_statement_has_its_tests_and_the_page_counts_them() -> None:
    corrected = rows(STATEMENTS, "| statement | where | wrong or missing as printed | computed by |")
    right = rows(STATEMENTS, "| statement | where | computed by |")
    tests = rows(TESTS, "| statement | tests |")
    assert sorted(cells[0] for cells in (*corrected, *right)) == sorted(cells[0] for cells in tests)
    assert all("`test_" in cells[1] for cells in tests)
    assert f"Of {len(tests)} statements" in PAGE
    assert f"{len(right)} hold as printed and {len(corrected)} need" in PAGE
    assert f"{len(NAMED)} tests check" in PAGE
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"[{len(tests)} statements](docs/theory.md)" in readme
    assert f"{len(corrected)} needed a correction or one more condition" in readme
