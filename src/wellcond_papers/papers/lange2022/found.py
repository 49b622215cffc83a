"""What runs found, in words; and that a claim is not judged on some of the runs that it is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wellcond_papers.experiments.claims import Outcome, judged
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.lange2022.runs import accuracies, runs_of
from wellcond_papers.papers.percentages import percent

Stretch = tuple[float, float]
"""From which share of a run to which an accuracy is averaged."""


def not_run(table: Table, panel: str, methods: Sequence[str]) -> list[str]:
    """The methods of a panel that have no run."""
    return [method for method in methods if not runs_of(table, panel, method)]


def unless(lacking: Sequence[str], outcome: Outcome) -> Outcome:
    """The outcome; but a claim about several runs is not tested where only some of them were made."""
    if not lacking:
        return outcome
    known = f"{outcome.measured}; " if outcome != judged([], "") else ""
    return Outcome("not tested", f"{known}not run: {', '.join(lacking)}")


def over_stretches(table: Table, panel: str, methods: Sequence[str], stretches: Sequence[Stretch]) -> str:
    """Accuracies over several stretches of a run."""
    each = [listed(accuracies(table, panel, methods, *stretch), table, panel) for stretch in stretches]
    if len(each) == 1 or not each[0]:
        return each[0]
    return "; ".join(f"at {end:.2f} of the run {text}" for (_, end), text in zip(stretches, each, strict=True))


def listed(by_method: Mapping[str, Sequence[float]], table: Table, panel: str) -> str:
    """Accuracies by method, with the number of runs that diverged."""
    parts = []
    for method, seeds in by_method.items():
        runs = runs_of(table, panel, method)
        lost, name = sum(record.has_diverged for record in runs), runs[0].arm.removeprefix(f"{panel}: ")
        result = "diverged" if lost == len(runs) else percent([100 * share for share in seeds])
        parts.append(f"{name} {result}" + (f" ({lost} diverged)" if 0 < lost < len(runs) else ""))
    return ", ".join(parts)
