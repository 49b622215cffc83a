"""Findings as plain text, and the words that all forms of them share."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from wellcond.diagnosis.finding import Finding
from wellcond.report.strips import strips
from wellcond.results import number
from wellcond.results.text import named

WIDTH = 80
"""Characters per line."""
MOST_CONSEQUENCES = 6
"""Of one finding in a text; a page has all."""
LONGEST = 600
"""Characters of a sentence in a text, so that what a model says of itself cannot fill the screen."""


def headline(finding: Finding) -> str:
    """Rule and layer.

    Example:
        >>> headline(Finding("dying-neurons", "fc1", "warning", 0.9, "", {}, "", ""))
        'dying-neurons at fc1'
    """
    return f"{finding.rule} at {named(finding.layer)}" if finding.layer else finding.rule


def sureness(finding: Finding) -> str:
    """The confidence in words.

    Example:
        >>> sureness(Finding("non-finite", "", "severe", 1.0, "", {}, "", ""))
        'certain'
    """
    share = min(max(finding.confidence, 0.0), 1.0)
    return "certain" if share >= 0.995 else f"{100 * share:.0f} % sure"


def numbers(finding: Finding) -> dict[str, str]:
    """The evidence, each number to three digits."""
    return {name: value if isinstance(value, str) else number(float(value)) for name, value in finding.evidence.items()}


def evidence_text(finding: Finding) -> str:
    """The evidence in one line."""
    return " · ".join(f"{name} {value}" for name, value in numbers(finding).items())


def clipped(text: str) -> str:
    """A sentence on one line, cut where it is far too long.

    Example:
        >>> clipped("too  long " * 100)[-10:], len(clipped("too long " * 100)) <= LONGEST
        ('long [...]', True)
    """
    return textwrap.shorten(text, LONGEST)


def listed(consequences: Sequence[Finding]) -> tuple[Sequence[Finding], str]:
    """The consequences that a text lists, and what it says of the others."""
    left = len(consequences) - MOST_CONSEQUENCES
    return consequences[:MOST_CONSEQUENCES], f"and {left} more" if left > 0 else ""


def findings_text(findings: Sequence[Finding]) -> str:
    """All findings as plain text; empty where there are none.

    Example:
        >>> print(findings_text([Finding("unscaled-input", "", "severe", 0.98, "Inputs reach 1e5.",
        ...     {"largest": 1e5}, "Steps suit one scale.", "x = x / 1e5")]))
        severe: unscaled-input (98 % sure)
          Inputs reach 1e5.
          largest 1e+05
          why: Steps suit one scale.
              x = x / 1e5
    """
    return "\n\n".join(_finding_text(finding) for finding in findings)


def _finding_text(finding: Finding) -> str:
    lines = [f"{finding.severity}: {headline(finding)} ({sureness(finding)})", _filled(clipped(finding.summary))]
    if finding.severity != "note":
        lines += [_filled(evidence_text(finding))] if finding.evidence else []
        for strip in strips(finding):
            blocks = "".join(block for block, _ in strip.sparkline())
            lines.append(f"  {strip.title}  {blocks}  {strip.caption()}")
        lines += [_filled(f"why: {finding.reason}")] if finding.reason else []
    if finding.remedy:
        lines.append(textwrap.indent(finding.remedy.strip("\n"), "      "))
    shown, more = listed(finding.consequences)
    lines += [_filled(f"→ {headline(each)} ({each.severity}): {clipped(each.summary)}", "    ") for each in shown]
    return "\n".join([*lines, *([f"    {more}"] if more else [])])


def _filled(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
