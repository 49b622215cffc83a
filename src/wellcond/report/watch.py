"""A run at a glance, for a terminal that is renewed while it trains: loss, rate against its limit, layers, findings."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from wellcond.diagnosis.finding import Severity, flat
from wellcond.recording.history import Series
from wellcond.recording.run import Run
from wellcond.report.bars import MOST_BLOCKS, bar
from wellcond.report.findings import worst_of
from wellcond.report.health import health_table, present_by_layer
from wellcond.report.manifests import progress_text, run_name
from wellcond.report.strips import Strip
from wellcond.report.terminal import SEVERITY_COLORS, TERMINAL_MARKS, new_table
from wellcond.report.text import clipped, headline
from wellcond.results import number
from wellcond.results import quantities as q
from wellcond.results.text import duration, named, shortened

TITLE = 12
"""Characters before each line."""
RATE_BAR = 24
MOST_SHOWN = 6
"""Layers, and findings."""


def frame(run: Run) -> RenderableType:
    """Everything that fits on a screen, the most important first.

    Args:
        run: Run as it is now; of its layers only the last numbers are needed.
    """
    severity = worst_of(each.severity for each in flat(run.findings) if each.until is None)
    shown: Severity | None = None if severity == "note" else severity
    lines: list[RenderableType] = [
        Text.assemble(
            (run_name(run), "bold"),
            f"  {progress_text(run)}",
            (f"  {duration(run.seconds)}" if run.seconds else "", "dim"),
        ),
        Text(f"{TERMINAL_MARKS[shown]} {clipped(run.verdict())}", style=f"bold {SEVERITY_COLORS[shown]}"),
        Text(""),
        *_loss(run),
        *_rate(run),
        *_layers(run),
        *_findings(run),
        *(Text(note, style="dim") for note in run.notes),
    ]
    return Group(*lines)


def _loss(run: Run) -> Iterator[Text]:
    for title, name in (("loss", q.TRAINING_LOSS), ("validation", q.VALIDATION_LOSS)):
        series = run.history.series(name)
        if len(series):
            blocks = Text()
            for block in sparkline(series):
                blocks.append(block, style="bold red" if block == "!" else "blue")
            first, last = (number(float(series.values[i])) for i in (0, -1))
            yield Text.assemble(f"{title:<{TITLE}}", blocks, f"  {first} → ", (last, "bold"))


def sparkline(series: Series, width: int = MOST_BLOCKS) -> str:
    """A series in blocks, each the mean of its steps; "!" where one of them is not finite.

    Example:
        >>> sparkline(Series(np.arange(6), np.array([6.0, 6.0, 3.0, 3.0, 1.0, math.nan])), width=3)
        '█▅!'
    """
    starts = np.linspace(0, len(series), min(width, len(series)), endpoint=False).astype(np.int64)
    means = np.add.reduceat(series.values, starts) / np.diff(starts, append=len(series))
    strip = Strip("", ("",) * len(means), tuple(means.tolist()), is_curve=True)
    return "".join(
        "!" if not math.isfinite(mean) else block for (block, _), mean in zip(strip.sparkline(), means, strict=True)
    )


def _rate(run: Run) -> Iterator[Text]:
    rate, limit = run.history.series(q.LR), run.history.series(q.MAX_LR)
    if not len(rate):
        return
    line = Text(f"{'rate':<{TITLE}}")
    if not len(limit) or not limit.values[-1] > 0:
        yield line.append(number(float(rate.values[-1])), style="bold")
        return
    share = float(rate.values[-1] / limit.values[-1])
    color = "red" if share > 1 else "green"
    line.append(bar(min(share, 1.0), RATE_BAR).ljust(RATE_BAR), style=color)
    line.append(f"  {number(float(rate.values[-1]))}, ").append(f"{100 * share:.0f} %", style=f"bold {color}")
    yield line.append(f" of its limit {number(float(limit.values[-1]))}, measured at step {limit.steps[-1]:,}")


def _layers(run: Run) -> Iterator[RenderableType]:
    head, cells = health_table(run, MOST_SHOWN)
    if not cells:
        return
    first, *titles = head
    table = new_table()
    table.add_column(first, no_wrap=True)
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    findings = present_by_layer(run)
    for layer, texts in cells.items():
        severity = worst_of(finding.severity for finding in findings.get(layer, ()))
        style = f"bold {SEVERITY_COLORS[severity]}" if severity else ""
        table.add_row(Text(shortened(named(layer), 32), style), *map(Text, texts))
    yield from (Text(""), table)


def _findings(run: Run) -> Iterator[RenderableType]:
    """The newest findings, and how many more there are."""
    newest = sorted(flat(run.findings), key=lambda each: -(each.step or 0))
    if newest:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1)
        for each in newest[:MOST_SHOWN]:
            color = "dim" if each.until is not None else SEVERITY_COLORS[each.severity]
            table.add_row(Text(each.when, color), Text(headline(each), color), Text(clipped(each.summary), "dim"))
        yield from (Text("\nfindings, newest first", style="bold"), table)
    if len(newest) > MOST_SHOWN:
        yield Text(f"and {len(newest) - MOST_SHOWN} more: wellcond report {run_name(run)}", style="dim")
