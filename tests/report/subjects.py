"""Networks made by hand and what is drawn of them, for every test of a report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from made_findings import AWKWARD_NAME, DEAD, MODULES, NOTE, VANISHING

from wellcond.curvature.spectra.density import Density
from wellcond.diagnosis.finding import Finding
from wellcond.report.table import MATRICES
from wellcond.results import Row
from wellcond.results import quantities as q


@dataclass(frozen=True)
class Subject:
    """Stands in for a `Diagnosis`, with rows made by hand."""

    measured_rows: list[Row]
    findings: tuple[Finding, ...] = ()
    modules: dict[str, str] = field(default_factory=lambda: dict(MODULES))
    not_covered: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    parts: tuple[Any, ...] = ()
    trial: Any = None
    about: dict[str, str] = field(default_factory=lambda: {"model": "Net", "batchnorm": "the model has none"})

    def rows(self, step: int | None = None) -> list[Row]:
        return self.measured_rows

    def assessment(self) -> str:
        return f"Verdict: {len(self.findings)} <found>."


def network(**values: float) -> list[Row]:
    """Rows of the whole network, by quantity."""
    return [Row(None, "", quantity, value, "") for quantity, value in values.items()]


def column(quantity: str, *values: float) -> list[Row]:
    """One quantity of the layers fc1, fc2, …"""
    return [Row(None, f"fc{i}", quantity, value, "") for i, value in enumerate(values, start=1)]


def layer(name: str, kappa: float = 10.0, lambda_max: float = 1.0, dying: int = 1) -> list[Row]:
    values = {q.DYING: float(dying), q.FULL: 2.0, q.UNITS: 8.0, q.WEIGHT_NORM: 3.0, q.GRADIENT_NORM: 0.5}
    for names in MATRICES.values():
        values |= {names.lambda_max: lambda_max, names.rank: 3.0, names.dimension: 4.0}
        values |= dict.fromkeys(names.kappa.values(), kappa)
    return [Row(None, name, quantity, value, "") for quantity, value in values.items()]


NETWORK = network(
    **{
        q.LOSS: 2.3,
        q.EXAMPLES: 64.0,
        q.HESSIAN.lambda_max: 4.0,
        q.HESSIAN.lambda_max_error: 0.04,
        q.MAX_LR: 0.95,
        q.MOMENTUM: 0.9,
    }
)

AWKWARD = Subject(
    [*NETWORK, *layer("fc1"), *layer(AWKWARD_NAME, kappa=math.inf, lambda_max=0.0, dying=5)],
    (VANISHING, DEAD, NOTE),
    not_covered={"bn1": "has no Σx"},
)
"""Two layers with findings, one of them with an infinite condition number and a name that means something elsewhere."""

SOUND = Subject([*NETWORK, *layer("fc1"), *layer("fc2", kappa=3.0, dying=0)])


def drawn(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    """The lines of a panel that have a name: places and heights."""
    named = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in named}


def legend(figure: Any) -> list[str]:
    return [text.get_text() for each in figure.legends for text in each.get_texts()]


def losses(*values: float) -> list[Row]:
    """The losses of a training run."""
    return [Row(step, "", q.TRAINING_LOSS, value, "") for step, value in enumerate(values, start=1)]


def density(*heights: float, error: tuple[float, ...] = ()) -> Density:
    """A spectral density over 0, 1, 2, …, by default without error."""
    places, errors = torch.arange(float(len(heights))), torch.tensor(error or [0.0] * len(heights))
    return Density(places, torch.tensor(heights), errors, places[None], places[None], 0.1, 1)
