"""A diagnosis as plain text, no wider than a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from wellcond.report.columns import COLUMNS, grouped, shortened
from wellcond.report.facts import facts
from wellcond.report.pivot import Pivot
from wellcond.results import Row, text_table

WIDTH = 80
"""Characters to a line; the table of layers is as wide as its numbers."""
INDENT = 22


def plain_text(rows: Sequence[Row], not_covered: Mapping[str, str], failed: Mapping[str, str]) -> str:
    """Headlines, the table of layers, and what is missing from them."""
    parts = ["\n".join(_entry(fact.title, fact.text) for fact in facts(rows)), layer_text(Pivot.of(rows))]
    missing = [_entry("not covered", f"{names}: {why}") for why, names in grouped(not_covered).items()]
    missing += [_entry("failed", f"{part}: {why}") for why, part in grouped(failed).items()]
    return "\n\n".join(part for part in [*parts, "\n".join(missing)] if part)


def layer_text(pivot: Pivot) -> str:
    """One line a layer that has any of the columns."""
    columns = [c for c in COLUMNS if pivot.column(c.quantity)]
    lines = {name: line for name, line in pivot.layers.items() if any(c.quantity in line for c in columns)}
    body = [[shortened(name), *(c.text(line) for c in columns)] for name, line in lines.items()]
    return text_table(["layer", *(c.title for c in columns)], body) if body else ""


def _entry(title: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"{title:<{INDENT}}", subsequent_indent=" " * INDENT)
