"""A recorded run as plain text: what was found at which steps, then its numbers."""

from __future__ import annotations

import textwrap

import numpy as np

from wellcond.recording.history import Series
from wellcond.recording.run import Run
from wellcond.report.text import WIDTH, clipped, headline
from wellcond.results import number, text_table
from wellcond.results.quantities import LR, TRAINING_LOSS, VALIDATION_LOSS, title_of
from wellcond.results.rendering import renders
from wellcond.results.text import duration

MOST_FINDINGS = 20
"""Findings that a text lists; a page has all."""


@renders("text", Run)
def run_text(run: Run) -> str:
    """The verdict, the findings by weight, and the first, last and lowest loss and rate.

    Example:
        >>> from wellcond.recording.history import History
        >>> from wellcond.results import Row
        >>> losses = [Row(step, "", "training_loss", 2.0 / step, "") for step in range(1, 5)]
        >>> print(run_text(Run.of(History(losses), [], {})))
        Nothing was found in 4 steps.
        <BLANKLINE>
                       first  last  lowest  at step
        loss               2   0.5     0.5     4
        <BLANKLINE>
        running, 4 steps
    """
    parts = [
        textwrap.fill(clipped(run.verdict()), WIDTH),
        _findings(run),
        _numbers(run),
        _about(run),
    ]
    return "\n\n".join(part for part in parts if part)


def _findings(run: Run) -> str:
    titles = [", ".join(filter(None, (headline(each), each.when))) for each in run.findings]
    lines = [
        f"{each.severity}: {title}: {clipped(each.summary)}" for title, each in zip(titles, run.findings, strict=True)
    ]
    more = [f"and {len(lines) - MOST_FINDINGS} more"] if len(lines) > MOST_FINDINGS else []
    return "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in [*lines[:MOST_FINDINGS], *more])


def _numbers(run: Run) -> str:
    body = [
        [title_of(quantity), number(series.values[0]), number(series.values[-1]), *_lowest(series)]
        for quantity in (TRAINING_LOSS, VALIDATION_LOSS, LR)
        if len(series := run.history.series(quantity))
    ]
    return text_table(["", "first", "last", "lowest", "at step"], body) if body else ""


def _lowest(series: Series) -> tuple[str, str]:
    """The lowest value and its step, whatever is not a number."""
    if np.isnan(series.values).all():
        return "nan", ""
    place = int(np.nanargmin(series.values))
    return number(series.values[place]), f"{series.steps[place]:,}"


def _about(run: Run) -> str:
    steps = f"{run.last_step:,} step{'s' * (run.last_step != 1)}"
    took = f" in {duration(run.seconds)}, {number(run.last_step / run.seconds)} steps/s" if run.seconds else ""
    lives = len(run.manifest.get("lives", ()))
    again = f", started {lives} times" if lives > 1 else ""
    return "\n".join([f"{run.status}, {steps}{took}{again}", *(f"note: {note}" for note in run.notes)])
