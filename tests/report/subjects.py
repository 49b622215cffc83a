"""Networks made by hand, for every test of a report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from wellcond.report.table import MATRICES
from wellcond.results import Row
from wellcond.results import quantities as q

AWKWARD_NAME = ":ok:[red]<b>&2"
"""An emoji code, a style of rich and a tag of HTML, none of which a layer's name may become."""


@dataclass(frozen=True)
class Subject:
    """A subject made by hand."""

    given: list[Row]
    not_covered: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=lambda: {"model": "Net", "batchnorm": "the model has none"})

    def rows(self) -> list[Row]:
        return self.given


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
    not_covered={"bn1": "has no Σx"},
)
"""Two layers, one of them with an infinite condition number, no gradient and a name that means something elsewhere."""

SOUND = Subject([*NETWORK, *layer("fc1"), *layer("fc2", kappa=3.0, dying=0)])
