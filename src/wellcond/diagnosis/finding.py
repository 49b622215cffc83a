"""`Finding`: one thing that is wrong with a network, where, on what basis that is said, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from wellcond.results.rendering import rendered
from wellcond.results.result import Row
from wellcond.results.text import sentence

Severity = Literal["severe", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("severe", "warning", "note")
"""Worst first. Severe: it will not train as it should. Warning: it costs speed or accuracy. Note: worth knowing."""
Basis = Literal["proven", "tried", "measured"]
BASES: tuple[Basis, ...] = ("proven", "tried", "measured")
"""Strongest first. Proven: it follows from the code or the data. Tried: a run of a copy showed it. Measured: a number
lies beyond a threshold, and the threshold has an origin."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule found.

    Attributes:
        rule: The rule's name.
        layer: The module or parameter to blame, or "" if it is not a single one.
        severity: `"severe"`, `"warning"` or `"note"`.
        basis: `"proven"`, `"tried"` or `"measured"`.
        summary: One sentence with the numbers: what is wrong, and where.
        evidence: The numbers, by stable names in words that do not vary with the numbers.
        limits: Thresholds that these numbers were compared with, by name; drawn as lines across the rows.
        reason: Why it matters, in one sentence, and the theorem, section or measurement that the threshold comes from.
        treatment: Name of the remedy that `treat` tries for it, or "" if there is none that can be applied by itself.
        remedy: The lines of code to write: those of the treatment, or of the rule's own. Where no code repairs it, a
            comment that says what to look at.
        rows: The measured rows that the evidence comes from, one per layer that it is compared with.
        consequences: Other findings that this one explains.
        begins_here: Whether no other finding explains it, whatever the causal graph says of its rule: NaN in the data
            or the weights is there before anything is computed from them.
        step: Of a recorded run, the step at which it was first seen; None in a diagnosis.
        until: Of a recorded run, the step at which it was gone; None while it is still there.

    Example:
        >>> print(Finding(rule="unscaled-input", severity="severe", basis="measured", summary="inputs reach 1e5."))
        severe: unscaled-input: inputs reach 1e5.
    """

    rule: str
    layer: str = ""
    severity: Severity
    basis: Basis = "measured"
    summary: str
    evidence: dict[str, float | str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    treatment: str = ""
    remedy: str = ""
    rows: tuple[Row, ...] = ()
    consequences: tuple[Finding, ...] = ()
    begins_here: bool = field(default=False, repr=False)
    step: int | None = None
    until: int | None = None

    @property
    def advice(self) -> str:
        """What to look at, as a sentence, if the remedy has no code; otherwise "".

        Example:
            >>> Finding(rule="", severity="note", summary="", remedy="# look at the labels").advice
            'Look at the labels.'
        """
        lines = self.remedy.strip().splitlines()
        if not all(line.startswith("#") for line in lines):
            return ""
        return " ".join(sentence(line.strip("# ")) for line in lines)

    def with_lines(self, change: Callable[[str], str]) -> Finding:
        """The same with changed lines of its remedy, and of those of its consequences."""
        consequences = tuple(each.with_lines(change) for each in self.consequences)
        return replace(self, remedy=change(self.remedy), consequences=consequences)

    @property
    def when(self) -> str:
        """The steps of a recorded run at which it was there; "" in a diagnosis.

        Example:
            >>> Finding(rule="loss-spike", severity="warning", summary="", step=700, until=720).when
            'steps 700 to 720'
        """
        if self.step is None:
            return ""
        return f"since step {self.step:,}" if self.until is None else f"steps {self.step:,} to {self.until:,}"

    def __str__(self) -> str:
        where = f" at {self.layer}" if self.layer else ""
        return f"{self.severity}: {self.rule}{where}: {self.summary}"

    def _repr_html_(self) -> str:
        return str(rendered("fragment", self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """One line in IPython, also inside a tuple: what was measured would fill the screen."""
        printer.text(str(self))


def flat(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Every finding, each before those that it explains.

    Example:
        >>> effect = Finding(rule="exploding-gradient", severity="warning", summary="gradients grow.")
        >>> cause = Finding(rule="unscaled-input", severity="severe", summary="", consequences=(effect,))
        >>> [each.rule for each in flat([cause])]
        ['unscaled-input', 'exploding-gradient']
    """
    for finding in findings:
        yield finding
        yield from flat(finding.consequences)
