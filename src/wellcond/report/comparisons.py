"""A comparison of runs as plain text: who has the lowest loss, then settings, findings and layers that differ."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from wellcond.recording.comparison import Comparison
from wellcond.report.text import WIDTH
from wellcond.results import number, text_table
from wellcond.results.quantities import title_of
from wellcond.results.rendering import renders
from wellcond.results.text import named, shortened

MOST_DIFFERENCES = 10
"""Series of layers that are listed."""
ALIKE = 1.2
"""Series that differ by less than this factor are not listed: other batches do as much."""


class Table(NamedTuple):
    """One aspect in which runs differ.

    Attributes:
        title: Aspect in words.
        header: Headings.
        body: Lines.
        nothing: What is said if there are no lines.
    """

    title: str
    header: list[str]
    body: list[list[str]]
    nothing: str


def tables(comparison: Comparison) -> Iterator[Table]:
    """All aspects, most important first."""
    names = list(comparison.runs)
    losses = [[f"{step:,}", *(number(by[name]) for name in names)] for step, by in comparison.losses.items()]
    ends = [f"{loss} at {step:,}" for step, loss in ((s, number(x)) for s, x in comparison.ends.values())]
    losses += [["its last", *ends]] if len({step for step, _ in comparison.ends.values()}) > 1 else []
    yield Table("Training loss", ["step", *names], losses, "no step in common")
    chosen = [[title, *(by[name] or "–" for name in names)] for title, by in comparison.settings.items()]
    yield Table("Settings that differ", ["", *names], chosen, "none")
    findings = [
        [f"{each.rule}{f' at {named(each.layer)}' if each.layer else ''} ({each.severity})"]
        + [each.steps.get(name, "–") for name in names]
        for each in comparison.findings
    ]
    yield Table("Findings that not all have", ["", *names], findings, "none")
    different = [each for each in comparison.layers if max(each.factor, 1 / each.factor) > ALIKE][:MOST_DIFFERENCES]
    layers = [
        [shortened(named(each.layer), 40), title_of(each.quantity), each.run, f"{number(each.factor)} ×"]
        for each in different
    ]
    header = ["layer", "quantity", "in", f"compared with {names[0]}"]
    yield Table("Layers that differ most", header, layers, f"none by more than a factor of {ALIKE:g}")


@renders("text", Comparison)
def comparison_text(comparison: Comparison) -> str:
    """The verdict, and a table for each aspect."""
    parts = [textwrap.fill(comparison.verdict(), WIDTH)]
    for title, header, body, nothing in tables(comparison):
        parts.append(f"{title}\n{text_table(header, body)}" if body else f"{title}: {nothing}")
    return "\n\n".join(parts)
