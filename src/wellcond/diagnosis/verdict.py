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
    """The assessment, and what to write: a remedy of one line as it is, and where a longer one is found."""
    worst = _worst(known)
    if worst is None or not worst.remedy.strip():
        return assessment(known)
    lines = [line for line in worst.remedy.strip().splitlines() if not line.lstrip().startswith("#")]
    write = f"Write: {lines[0]}" if len(lines) == 1 else f"Write the {len(lines)} lines of findings[0].remedy."
    return f"{assessment(known)} {write}"


def assessment(known: Known) -> str:
    """The worst thing and where it is; or a clean bill, with what was checked and what could not be."""
    worst = _worst(known)
    if worst is not None:
        where = f" at {worst.layer}" if worst.layer and worst.layer not in worst.summary else ""
        more = sum(finding.severity == worst.severity for finding in known.findings) - 1
        also = f", and {more} more" if more else ""
        follows = f" It explains {_listed([f.rule for f in worst.consequences])}." if worst.consequences else ""
        return _sentence(f"{worst.severity} ({worst.rule}{where}{also}): {worst.summary}") + follows
    checked = [text for part, text in CHECKED.items() if part in known.measured]
    if not checked:
        return _sentence(f"nothing could be checked: {'; '.join(known.failed.values()) or 'no time was left'}")
    notes = len(known.findings)
    well = f"nothing is wrong in what was checked: {_listed(checked)}"
    if notes:
        well += f" ({notes} note{'s' * (notes > 1)})"
    missing = _listed(list(known.failed))
    return _sentence(well) + _rate(known) + (f" Could not be checked: {missing}." if missing else "")


def _worst(known: Known) -> Finding | None:
    """The first finding, which is the worst; None if there is nothing but notes."""
    return next((finding for finding in known.findings if finding.severity != "note"), None)


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


def _sentence(text: str) -> str:
    text = text.strip().rstrip(".")
    return f"{text[:1].upper()}{text[1:]}."
