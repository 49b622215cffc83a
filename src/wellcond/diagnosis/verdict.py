"""A diagnosis in one or two sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.trial_result import Trial
from wellcond.learning_rate.limits.limits import MaxLearningRate
from wellcond.results import number

CHECKED = {
    "look": "the data, the outputs and the gradients of every layer",
    "layers": "the conditioning of every layer",
    "trial": "short runs of copies",
    "largest stable lr": "the largest stable learning rate",
}
"""By part, what it shows."""


class Known(Protocol):
    """What a verdict rests on. A `Diagnosis` is one."""

    @property
    def findings(self) -> Sequence[Finding]: ...
    @property
    def trial(self) -> Trial | None: ...
    @property
    def max_lr(self) -> MaxLearningRate | None: ...
    @property
    def lr(self) -> float | None: ...
    @property
    def failed(self) -> dict[str, str]: ...
    @property
    def measured(self) -> Sequence[str]: ...


def verdict(known: Known) -> str:
    """The worst thing, where it is and what to write; or a clean bill, with what was checked and what could not be."""
    severe, warnings = ([f for f in known.findings if f.severity == kind] for kind in ("severe", "warning"))
    if severe or warnings:
        worst = (severe or warnings)[0]
        where = f" at {worst.layer}" if worst.layer and worst.layer not in worst.summary else ""
        more = len(severe or warnings) - 1
        also = f", and {more} more" if more else ""
        follows = f" It explains {_listed([f.rule for f in worst.consequences])}." if worst.consequences else ""
        write = f" Write: {code}" if (code := _statement(worst.remedy)) else ""
        return _sentence(f"{worst.severity} ({worst.rule}{where}{also}): {worst.summary}") + follows + write
    checked = [text for part, text in CHECKED.items() if part in known.measured]
    if not checked:
        return _sentence(f"nothing could be checked: {'; '.join(known.failed.values()) or 'no time was left'}")
    notes = len(known.findings)
    well = f"nothing is wrong in what was checked: {_listed(checked)}"
    if notes:
        well += f" ({notes} note{'s' * (notes > 1)})"
    missing = _listed(list(known.failed))
    return _sentence(well) + _rate(known) + (f" Could not be checked: {missing}." if missing else "")


def _rate(known: Known) -> str:
    """How the rate stands to its limit."""
    if known.max_lr is None:
        return ""
    limit = number(known.max_lr.value)
    if known.lr is None:
        return f" The largest stable rate is {limit} with momentum {known.max_lr.momentum:g}."
    share = known.lr / known.max_lr.value if known.max_lr.value else float("inf")
    goes_down = known.trial is not None and bool(known.trial.trains)
    if share > 1:  # edge of stability: common, and no fault of a network that trains
        excused = ", which is ordinary where the loss goes down, as it does in the trial" if goes_down else ""
        return f" The rate {number(known.lr)} is {number(share)} times the stability limit at these weights{excused}."
    trains = ", and the loss goes down in the trial" if goes_down else ""
    return f" The rate {number(known.lr)} is {100 * share:.2g} % of the stability limit {limit}{trains}."


def _listed(items: Sequence[str]) -> str:
    """Each once, with "and" before the last."""
    *first, last = [*dict.fromkeys(items)] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _statement(remedy: str) -> str:
    """The first whole statement of a remedy, in one line and without its comment."""
    lines = [line for line in map(_without_comment, remedy.splitlines()) if line.strip()]
    if not lines:
        return ""
    ends = (k for k, line in enumerate(lines) if k and line[0] != " " and _is_whole(lines[:k]))
    first, *rest = (line.strip() for line in lines[: next(ends, len(lines))])
    return " ".join([first, "; ".join(rest)]).strip()


def _without_comment(line: str) -> str:
    """A comment begins behind two blanks, or the line."""
    return "" if line.lstrip().startswith("#") else line.partition("  #")[0].rstrip()


def _is_whole(lines: Sequence[str]) -> bool:
    """Whether all brackets are closed."""
    code = "".join(lines)
    return all(code.count(opened) <= code.count(closed) for opened, closed in ("()", "[]", "{}"))


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
