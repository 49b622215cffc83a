"""The table in docs/theory.md and the tests agree: every test named there exists, and every theory test is named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PAGE = (FOLDER.parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`(test_\w+)`", PAGE))


def defined(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}


def test_every_test_that_the_page_names_exists() -> None:
    assert NAMED
    assert not NAMED - set().union(*(defined(path) for path in FOLDER.parent.rglob("test_*.py")))


def test_every_theory_test_stands_on_the_page() -> None:
    sources = [path for path in FOLDER.glob("test_*.py") if path.name != Path(__file__).name]
    assert not set().union(*map(defined, sources)) - NAMED
