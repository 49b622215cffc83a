"""`Reproduction`: the result of an experiment, compared with what its paper claims."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from wellcond.errors import MissingExtra
from wellcond.results import Result, Row
from wellcond.results.result import as_json
from wellcond_papers.experiments.claims import Claim, Outcome, Verdict, overall
from wellcond_papers.experiments.experiment import Cell, Experiment
from wellcond_papers.experiments.scales import Scale
from wellcond_papers.experiments.table import Table

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

SMOKE_CAVEAT = "A smoke run shows that the code runs. Its verdicts say nothing about the paper."


@dataclass(frozen=True)
class Failure:
    """A cell that could not be finished.

    Attributes:
        settings: The settings of the cell.
        error: The reason, in one line.
    """

    settings: Mapping[str, Any]
    error: str


class CellResult(Result):
    """A result of many cells: every row comes with the settings of its cell.

    Attributes:
        table: The rows of all cells that finished.
        failures: The cells that did not.
    """

    table: Table
    failures: Sequence[Failure]

    def rows(self, step: int | None = None) -> list[Row]:
        return [row for record in self.table for row in record.rows]

    def lines(self) -> Iterator[dict[str, Any]]:
        """One per row: the settings, the row, and "error", which only the one line of a failed cell has."""
        for record in self.table:
            for row in record.rows:
                yield {**_apart(record.settings), **row._asdict(), "error": None}
        for failure in self.failures:
            yield {**_apart(failure.settings), **dict.fromkeys(Row._fields), "error": failure.error}

    def to_pandas(self) -> pandas.DataFrame:
        """The lines as a data frame."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("pandas", "pandas") from error
        return pandas.DataFrame(list(self.lines()))

    def _csv(self) -> str:
        lines = list(self.lines())
        names = list(dict.fromkeys(name for line in lines for name in line))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()


def _apart(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings under names that no column of a row has."""
    taken = (*Row._fields, "error")
    return {f"{name}_setting" if name in taken else name: value for name, value in settings.items()}


@dataclass(frozen=True)
class Reproduction(CellResult):
    """The result of an experiment.

    Attributes:
        experiment: The experiment.
        scale: The scale at which it was run.
        table: The rows of all cells that finished.
        failures: The cells that did not.
        made_with: The device and the versions of the libraries.
    """

    experiment: Experiment
    scale: Scale
    table: Table
    failures: Sequence[Failure] = ()
    made_with: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def outcomes(self) -> list[Outcome]:
        """The outcome of every claim, in order."""
        return [self._outcome(claim) for claim in self.experiment.claims]

    def _outcome(self, claim: Claim) -> Outcome:
        """If cells are missing, a check may lack their rows; the claim is then not tested."""
        if not self.table:
            return Outcome("not tested", "no cell finished")
        try:
            outcome = claim.check(self.table)
        except (LookupError, ValueError, ArithmeticError) as error:
            if not self.missing:
                raise
            count = f"{len(self.missing)} cell{'s' if len(self.missing) > 1 else ''}"
            return Outcome("not tested", f"the rows of {count} are missing ({error})")
        is_too_short = outcome.verdict != "not tested" and self.training_share < claim.needs
        return replace(outcome, verdict="too short to tell") if is_too_short else outcome

    @cached_property
    def training_share(self) -> float:
        """The least share of the source's training that any arm got."""
        return self.experiment.training_share(self.scale, self.table.arms)

    @cached_property
    def missing(self) -> list[Cell]:
        """The cells of the scale that have not finished."""
        done = {self.experiment.cell(record.settings).key for record in self.table}
        return [cell for cell in self.experiment.cells(self.scale) if cell.key not in done]

    def joined(self, other: Reproduction) -> Reproduction:
        """The cells of both, in the order of the scale. Of a cell that both have finished this one's rows stay."""
        order = {_identity(cell.settings): place for place, cell in enumerate(self.experiment.cells(self.scale))}
        records = {_identity(record.settings): record for record in (*other.table, *self.table)}
        failed = {_identity(failure.settings): failure for failure in (*other.failures, *self.failures)}
        made_with = {
            name: ", ".join(
                dict.fromkeys(text for run in (self, other) for text in run.made_with.get(name, "").split(", ") if text)
            )
            for name in (*self.made_with, *other.made_with)
        }
        return replace(
            self,
            table=Table([records[each] for each in sorted(records, key=lambda each: order.get(each, len(order)))]),
            failures=[failure for each, failure in failed.items() if each not in records],
            made_with=made_with,
        )

    def verdict(self) -> Verdict:
        """The verdict of all claims of the paper together; our own do not count."""
        judged = zip(self.experiment.claims, self.outcomes, strict=True)
        return overall(outcome.verdict for claim, outcome in judged if not claim.is_ours)

    @property
    def caveat(self) -> str:
        """What the verdict does not say about the paper; "" if it is about the paper."""
        return {"smoke": SMOKE_CAVEAT, "stand-in": self.experiment.stand_in}.get(self.scale, "")

    def figure(self) -> Figure:
        return self.experiment.draw(self.table)

    def judgment(self) -> dict[str, Any]:
        """The verdict, and every claim with the paper's number and the measured one."""
        return {
            "experiment": self.experiment.name,
            "scale": self.scale,
            "verdict": self.verdict(),
            "caveat": self.caveat,
            "claims": [
                {
                    "says": claim.says,
                    "paper": claim.paper,
                    "ours": claim.is_ours,
                    "found": outcome.measured,
                    "verdict": outcome.verdict,
                }
                for claim, outcome in zip(self.experiment.claims, self.outcomes, strict=True)
            ],
            "failed": [{"settings": dict(each.settings), "error": each.error} for each in self.failures],
            "made_with": dict(self.made_with),
        }

    def to_json(self) -> str:
        cells = [{"settings": r.settings, "rows": [row._asdict() for row in r.rows]} for r in self.table]
        content = as_json(self.judgment() | {"cells": cells})
        return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def __str__(self) -> str:
        lines = [f"{self.experiment.name}, {self.scale} scale: {self.verdict()}"]
        lines += [self.caveat] if self.caveat else []
        for claim in self.judgment()["claims"]:
            lines.append(f"{claim['verdict']}: {claim['says']}{' (our claim)' if claim['ours'] else ''}")
            lines.append(f"    paper: {claim['paper']}; found: {claim['found']}")
        lines += [f"failed: {_described(each.settings)}: {each.error}" for each in self.failures]
        return "\n".join(lines)


def _identity(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _described(settings: Mapping[str, Any]) -> str:
    return f"{settings.get('arm')}, seed {settings.get('seed')}"
