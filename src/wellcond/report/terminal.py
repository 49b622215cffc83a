"""A diagnosis in colour, as wide as the terminal allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any

from wellcond.errors import MissingExtra
from wellcond.report.facts import Subject, facts, took
from wellcond.report.table import Pivot, excerpt, shown_columns
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
    """Print layers, headlines, what is missing from them, and what they took."""
    show_layers(subject, console)
    show_verdict(subject, console)


def show_layers(subject: Subject, console: Console) -> None:
    """Print the table of layers, and which it does not have."""
    console.print(layer_table(subject.rows(), console.width))
    for note, names in grouped(subject.notes).items():
        console.print(Text(f"note: {names}: {note}", style="dim"))
    for reason, names in grouped(subject.not_covered).items():
        console.print(Text(f"not covered: {names}: {reason}", style="dim"))


def show_verdict(subject: Subject, console: Console) -> None:
    """Print headlines, what is missing from them, and what it all took."""
    console.print(facts_table({"": subject.rows()}))
    show_failures(subject, console)
    for reason, parts in grouped(subject.left_out).items():
        console.print(Text(f"left out: {parts}: {reason}", style="dim"))
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


def layer_table(rows: Sequence[Row], width: int) -> Table:
    """One line per layer, the worst cell of each column in red; magnitudes with a bar on a logarithmic scale."""
    pivot = Pivot.of(rows)
    columns, layers = shown_columns(pivot)
    names, rest = excerpt(columns, layers)
    worst = {c: c.worst_layers(layers) for c in columns}
    bars = {q: _bars(pivot.column(q)) for q in BAR_COLUMNS if width >= ROOM_FOR_BARS}
    table = new_table(caption=rest and f"{rest}; --out has all", caption_justify="left")
    table.add_column("layer", overflow="fold")  # names give way before numbers do
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
        if column.quantity in bars:
            table.add_column("", width=BAR_WIDTH, style="cyan")
    for name in names:
        cells = [Text(shortened(name))]
        for column in columns:
            cells.append(Text(column.text(layers[name]), "bold red" if name in worst[column] else ""))
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
