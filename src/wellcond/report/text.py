"""A diagnosis as plain text: the assessment first, then the findings, then the numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.parts import Part
from wellcond.report.facts import facts
from wellcond.report.strips import strips
from wellcond.report.table import READING, layer_text
from wellcond.results import number
from wellcond.results.rendering import renders
from wellcond.results.text import duration, grouped, named

WIDTH = 80
"""Characters per line; the table of layers is as wide as its numbers, and code is never wrapped."""
TITLE_WIDTH = 22
"""Characters of the titles before the headlines."""
MOST_CONSEQUENCES = 6
"""Consequences that a text lists below one finding; a page has all."""
LONGEST = 600
"""Characters of a sentence in a text, so that a message from the user's model cannot fill the screen."""


@renders("text", Diagnosis)
def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The assessment, the findings, and the numbers."""
    parts = [
        textwrap.fill(clipped(diagnosis.assessment()), WIDTH),
        findings_text(diagnosis.findings),
        numbers_text(diagnosis),
    ]
    return "\n\n".join(part for part in parts if part)


def numbers_text(diagnosis: Diagnosis) -> str:
    """The table of layers, headlines, what is missing from them, and what they took."""
    rows = diagnosis.rows()
    table = layer_text(rows)
    headlines = [_entry(title, texts[""]) for title, _, texts in facts({"": rows})]
    missing = [
        _entry(title, f"{names}: {reason}")
        for title, reasons in (
            ("note", diagnosis.notes),
            ("not covered", diagnosis.not_covered),
            ("failed", diagnosis.failed),
            ("left out", diagnosis.left_out),
        )
        for reason, names in grouped(reasons).items()
    ]
    missing += [_entry("took", text) for text in [took(diagnosis.parts)] if text]
    parts = [f"{table}\n{textwrap.fill(READING, WIDTH)}" if table else "", "\n".join(headlines), "\n".join(missing)]
    return "\n\n".join(part for part in parts if part)


def took(parts: Sequence[Part]) -> str:
    """What all parts took together, of what was planned for all; empty if nothing was measured."""
    if not any(part.seconds for part in parts):
        return ""
    u, estimate, seconds = (sum(x) for x in zip(*((p.cost.u, p.estimate, p.seconds) for p in parts), strict=True))
    return f"{duration(seconds)}, {number(u)} u of at most {number(estimate)} u estimated (u: one training step)"


def findings_text(findings: Sequence[Finding]) -> str:
    """All findings as plain text, below an assessment that quotes the first; empty if there are none.

    Example:
        >>> print(findings_text([Finding(rule="unscaled-input", severity="severe", summary="Inputs reach 1e5.",
        ...     evidence={"largest": 1e5}, reason="Steps suit one scale.", remedy="x = x / 1e5")]))
        severe: unscaled-input (measured)
          largest 1e+05
          why: Steps suit one scale.
              x = x / 1e5
    """
    return "\n\n".join(_finding_text(each, is_quoted=is_quoted(each, findings)) for each in findings)


def _finding_text(finding: Finding, *, is_quoted: bool) -> str:
    lines = [f"{finding.severity}: {headline(finding)} ({finding.basis})"]
    if not is_quoted:
        lines.append(_filled(clipped(finding.summary)))
    if finding.severity != "note":
        lines += [_filled(evidence_text(finding))] if numbers(finding) else []
        for strip in strips(finding):
            blocks = "".join(block for block, _ in strip.sparkline())
            lines.append(f"  {strip.title}  {blocks}  {strip.caption()}")
        lines += [_filled(f"why: {finding.reason}")] if finding.reason else []
    if finding.advice:
        lines.append(_filled(f"to do: {finding.advice}"))
    elif finding.remedy:
        lines.append(textwrap.indent(finding.remedy.strip("\n"), "      "))
    shown, more = listed(finding.consequences)
    lines += [_filled(f"→ {headline(each)} ({each.severity}): {clipped(each.summary)}", "    ") for each in shown]
    return "\n".join([*lines, *([f"    {more}"] if more else [])])


def is_quoted(finding: Finding, findings: Sequence[Finding]) -> bool:
    """Whether the assessment has the summary of a finding already: it quotes the worst one, unless that is a note."""
    return finding is findings[0] and finding.severity != "note"


def headline(finding: Finding) -> str:
    """Rule and layer.

    Example:
        >>> headline(Finding(rule="dying-neurons", layer="fc1", severity="warning", summary=""))
        'dying-neurons at fc1'
    """
    return f"{finding.rule} at {named(finding.layer)}" if finding.layer else finding.rule


def numbers(finding: Finding) -> dict[str, str]:
    """The evidence and the limits that it was compared with, each number to three digits."""
    entries = {**finding.evidence, **finding.limits}
    return {name: value if isinstance(value, str) else number(float(value)) for name, value in entries.items()}


def evidence_text(finding: Finding) -> str:
    """The evidence in one line."""
    return " · ".join(f"{name} {value}" for name, value in numbers(finding).items())


def clipped(text: str) -> str:
    """A sentence on one line, cut if it is far too long.

    Example:
        >>> clipped("too  long " * 100)[-10:], len(clipped("too long " * 100)) <= LONGEST
        ('long [...]', True)
    """
    return textwrap.shorten(text, LONGEST)


def listed(consequences: Sequence[Finding]) -> tuple[Sequence[Finding], str]:
    """The consequences that a text lists, and how many more there are."""
    left = len(consequences) - MOST_CONSEQUENCES
    return consequences[:MOST_CONSEQUENCES], f"and {left} more" if left > 0 else ""


def _entry(title: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"{title:<{TITLE_WIDTH}}", subsequent_indent=" " * TITLE_WIDTH)


def _filled(text: str, indent: str = "  ") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
