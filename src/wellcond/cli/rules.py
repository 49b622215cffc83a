"""What the rules look for, printed; and the exit code of what they found."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from rich.console import Console
from rich.text import Text

from wellcond.diagnosis.causes import CAUSES
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.judge import check_known
from wellcond.diagnosis.rule import RULES, explanation
from wellcond.report.listing import Place, flat, place, worst_of
from wellcond.report.terminal import new_table

FailOn = Literal["severe", "warning", "never"]
EXIT_CODES = {"severe": 4, "warning": 3}
"""Of a diagnosis whose worst finding is one of these."""


def explanations() -> dict[str, str]:
    """What each rule looks for, by name."""
    return {name: explanation(name) for name in sorted(RULES)}


def show_rule(name: str, console: Console) -> None:
    """Print what a rule looks for, and what it explains.

    Raises:
        ValueError: There is no such rule.
    """
    check_known([name])
    console.print(Text(name, style="bold"))
    console.print(Text(explanation(name)))
    if explains := sorted(CAUSES.get(name, ())):
        console.print(Text(f"\nIt explains {', '.join(explains)}.", style="dim"))


def show_rules(console: Console) -> None:
    """Print all rules with a sentence each."""
    table = new_table(show_header=False)
    table.add_column("", style="bold", no_wrap=True)
    table.add_column("", ratio=1)
    for name, text in explanations().items():
        table.add_row(name, Text(text.partition("\n\n")[0].replace("\n", " ")))
    console.print(table)


def exit_code(findings: Sequence[Finding], fail_on: FailOn, known: Collection[Place] = ()) -> int:
    """4 where something severe was found, 3 for a warning if it is to fail on those, and else 0.

    Args:
        findings: What was found.
        fail_on: The mildest that counts.
        known: What an earlier diagnosis had found, which does not count.
    """
    worst = worst_of(each.severity for each in flat(findings) if place(each) not in known)
    if fail_on == "never" or worst is None or worst == "note" or (worst == "warning" and fail_on == "severe"):
        return 0
    return EXIT_CODES[worst]
