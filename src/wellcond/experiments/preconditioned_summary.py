"""What a set of training runs came to: final losses and accuracies, and how soon one method is where another ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby

from wellcond.experiments.preconditioned_run import Run
from wellcond.results import number, text_table

TUNED = "tuned vanilla"
REFERENCES = ("vanilla", TUNED)
"""The methods whose final training loss the others are to reach."""


@dataclass(frozen=True)
class Record:
    """One run and what it was a run of."""

    setting: str
    figure: str
    """Of the source; "" if it is in none."""
    method: str
    lr: float
    length: int
    """Steps it was to take."""
    seed: int
    run: Run


@dataclass(frozen=True)
class Spread:
    """Over the seeds."""

    mean: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(sum(values) / len(values), min(values), max(values))


@dataclass(frozen=True)
class Summary:
    """A method in a setting. What a diverged run would have a part in is None."""

    setting: str
    method: str
    lr: float
    length: int
    diverged: int
    """Seeds whose run diverged."""
    loss: Spread | None
    accuracy: Spread | None
    steps_to: dict[str, Spread | None]
    """First step with the training loss that a reference ended with, seed by seed; None if a seed never had it."""


def summary(records: Sequence[Record]) -> list[Summary]:
    """One line a setting and method, in order."""
    by_name = {(r.setting, r.method, r.seed): r.run for r in records}
    lines = []
    for (setting, method), group in groupby(records, lambda r: (r.setting, r.method)):
        own = list(group)
        runs = [r.run for r in own]
        diverged = sum(run.diverged_at is not None for run in runs)
        steps_to: dict[str, Spread | None] = {}
        for reference in REFERENCES:
            if (setting, reference, own[0].seed) in by_name:
                references = [by_name[setting, reference, r.seed] for r in own]
                steps_to[reference] = _steps_to(runs, references)
        lines.append(
            Summary(
                setting, method, own[0].lr, own[0].length, diverged,
                None if diverged else Spread.of([run.losses[-1] for run in runs]),
                None if diverged else Spread.of([run.accuracies[-1] for run in runs]),
                steps_to,
            )
        )  # fmt: skip
    return lines


def _steps_to(runs: Sequence[Run], references: Sequence[Run]) -> Spread | None:
    if any(reference.diverged_at is not None for reference in references):
        return None
    steps = [run.first_step_at(reference.losses[-1]) for run, reference in zip(runs, references, strict=True)]
    reached = [step for step in steps if step is not None]
    return Spread.of(reached) if len(reached) == len(steps) else None


def table(lines: Sequence[Summary]) -> str:
    """Means, with the range of loss and accuracy over the seeds; steps also as a share of the run's."""
    reached = [f"steps to {name}'s loss" for name in REFERENCES]
    header = ["", "method", "rate", "training loss", "test accuracy", *reached]
    body = [
        [
            line.setting, line.method, f"{line.lr:g}", _range(line, line.loss), _range(line, line.accuracy),
            *(_share(line.steps_to.get(name), line.length) for name in REFERENCES),
        ]
        for line in lines
    ]  # fmt: skip
    return text_table(header, body)


def _range(line: Summary, spread: Spread | None) -> str:
    if spread is None:
        return f"{line.diverged} diverged"
    return f"{number(spread.mean)} ({number(spread.least)} to {number(spread.greatest)})"


def _share(spread: Spread | None, length: int) -> str:
    return "–" if spread is None else f"{spread.mean:.0f} ({spread.mean / length:.2f})"


def as_json(records: Sequence[Record]) -> str:
    """The summary, then the curves it follows from, one record a line."""
    return f'{{"summary": [\n{_lines(summary(records))}\n],\n"runs": [\n{_lines(records)}\n]}}\n'


def _lines(records: Sequence[Record] | Sequence[Summary]) -> str:
    return ",\n".join(json.dumps(asdict(record), allow_nan=False) for record in records)
