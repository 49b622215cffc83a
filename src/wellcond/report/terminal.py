"""A diagnosis in color: the verdict, the findings, the model tree, and then the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

from wellcond.diagnosis.finding import Finding
from wellcond.errors import MissingExtra
from wellcond.report.facts import Subject, facts, took
from wellcond.report.findings_terminal import COLORS, show_findings, show_tree, show_verdict
from wellcond.report.listing import by_layer, worst_of
from wellcond.report.table import READING, Pivot, excerpt, shown_columns
from wellcond.report.tree import model_tree
from wellcond.results import Row
from wellcond.results.quantities import GRADIENT, INPUT
from wellcond.results.text import grouped, shortened

try:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise MissingExtra("rich", "report") from error

BAR_WIDTH = 8
ROOM_FOR_BARS = 100
"""Columns of a terminal from which on the magnitudes get a bar."""
BAR_COLUMNS = (INPUT.lambda_max, GRADIENT.lambda_max)


def new_console(**options: Any) -> Console:
    """A console that prints text as it is: neither `[red]` nor `:smile:` in a layer's name means anything to it.

    Args:
        **options: Those of `rich.console.Console`.
    """
    return Console(emoji=False, markup=False, highlight=False, **options)


def new_table(**options: Any) -> Table:
    """A table with a line below its head, and no frame.

    Args:
        **options: Those of `rich.table.Table`.
    """
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True, **options)


def show(subject: Subject, console: Console) -> None:
    """Print the verdict, the findings, where they are in the model, and then the numbers."""
    show_verdict(subject.verdict(), subject.findings, console)
    show_findings(subject.findings, console)
    if any(by_layer(subject.findings).keys() - {""}):
        show_tree(model_tree(subject.modules, subject.findings), console)
    show_numbers(subject, console)


def show_numbers(subject: Subject, console: Console) -> None:
    """Print the table of layers, headlines, what is missing from them, and what it all took."""
    console.print(Text("\nNumbers", style="bold"))
    table = layer_table(subject.rows(), console.width, subject.findings)
    if table.row_count:
        console.print(table)
        console.print(Text(READING, style="dim"))
    known = facts_table({"": subject.rows()})
    if known.row_count:
        console.print(known)
    show_failures(subject, console)
    for title, reasons in (
        ("note", subject.notes),
        ("not covered", subject.not_covered),
        ("left out", subject.left_out),
    ):
        for reason, names in grouped(reasons).items():
            console.print(Text(f"{title}: {names}: {reason}", style="dim"))
    if text := took(subject.parts):
        console.print(Text(f"took {text}", style="dim"))


def show_failures(subject: Subject, console: Console, network: str = "") -> None:
    """Print what could not be measured, in red."""
    for reason, parts in grouped(subject.failed).items():
        console.print(Text(f"{network}{': ' if network else ''}{parts} failed: {reason}", style="red"))


def facts_table(series: Mapping[str, Sequence[Row]]) -> Table:
    """The headlines, one column per network."""
    table = new_table(show_header=len(series) > 1)
    table.add_column("", style="bold", no_wrap=True)
    for name in series:
        table.add_column(Text(name), ratio=1)
    for line in facts(series):
        table.add_row(line.title, *(Text(text or "–") for text in line.texts.values()))
    return table


def layer_table(rows: Sequence[Row], width: int, findings: Sequence[Finding] = ()) -> Table:
    """One line per layer, in the color of what was found there; magnitudes with a bar on a logarithmic scale."""
    pivot = Pivot.of(rows)
    columns, layers = shown_columns(pivot)
    names, rest = excerpt(columns, layers)
    found = by_layer(findings)
    bars = {q: _bars(pivot.column(q)) for q in BAR_COLUMNS if width >= ROOM_FOR_BARS}
    table = new_table(caption=rest and f"{rest}; --out has all", caption_justify="left")
    table.add_column("layer", overflow="fold")  # names give way before numbers do
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
        if column.quantity in bars:
            table.add_column("", width=BAR_WIDTH, style="cyan")
    for name in names:
        severity = worst_of(finding.severity for finding in found.get(name, ()))
        cells = [Text(shortened(name), f"bold {COLORS[severity]}" if severity else "")]
        for column in columns:
            cells.append(Text(column.text(layers[name])))
            if column.quantity in bars:
                cells.append(Text(bars[column.quantity].get(name, "")))
        table.add_row(*cells)
    return table


def _bars(column: Mapping[str, float]) -> dict[str, str]:
    """Bars that span the range of the positive values, in eighths of a character, on a logarithmic scale."""
    logs = {name: log10(value) for name, value in column.items() if 0 < value < float("inf")}
    if not logs:
        return {}
    low, high = min(logs.values()), max(logs.values())
    scale = (8 * BAR_WIDTH - 1) / max(high - low, 1.0)
    eighths = {name: 1 + round((value - low) * scale) for name, value in logs.items()}
    return {name: "█" * (n // 8) + " ▏▎▍▌▋▊▉"[n % 8].strip() for name, n in eighths.items()}
