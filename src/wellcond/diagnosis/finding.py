"""`Finding`: one thing that is wrong with a network, where, how sure that is, and what to write instead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from wellcond.results.result import Row

Severity = Literal["severe", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("severe", "warning", "note")
"""Worst first. Severe: it will not train as it should. Warning: it costs speed or accuracy. Note: worth knowing."""


@dataclass(frozen=True)
class Finding:
    """What a rule found.

    Attributes:
        rule: The rule's name.
        layer: The module or parameter that is to blame, or "" where it is none of them.
        severity: `"severe"`, `"warning"` or `"note"`.
        confidence: From 0 to 1, how sure the rule is.
        summary: One sentence with the numbers: what is wrong, and where.
        evidence: The numbers behind it, by what they are in words. One whose name has "healthy", "limit" or
            "threshold" in it is drawn as a line across the rows.
        reason: Why it matters, in one sentence, and the theorem, section or measurement behind the threshold.
        remedy: Lines of code that can be pasted.
        rows: The measured rows behind the evidence, of every layer that it is compared with.
        consequences: Other findings that this one explains.

    Example:
        >>> print(Finding("unscaled-input", "", "severe", 0.99, "inputs reach 1e5.", {"largest": 1e5}, "", ""))
        severe: unscaled-input: inputs reach 1e5.
    """

    rule: str
    layer: str
    severity: Severity
    confidence: float
    summary: str
    evidence: dict[str, float | str]
    reason: str
    remedy: str
    rows: tuple[Row, ...] = ()
    consequences: tuple[Finding, ...] = field(default=())

    def __str__(self) -> str:
        where = f" at {self.layer}" if self.layer else ""
        return f"{self.severity}: {self.rule}{where}: {self.summary}"
