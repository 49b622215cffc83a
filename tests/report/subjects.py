"""Networks made by hand, for every test of a report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from wellcond.results import Row


@dataclass(frozen=True)
class Subject:
    """A subject made by hand."""

    given: list[Row]
    not_covered: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=lambda: {"model": "Net", "batchnorm": "the model has none"})

    def rows(self) -> list[Row]:
        return self.given


def layer(name: str, kappa: float = 10.0, lambda_max: float = 1.0, dying: int = 1) -> list[Row]:
    values = {"dying": float(dying), "full": 2.0, "units": 8.0, "weight_norm": 3.0, "gradient_norm": 0.5}
    for matrix in ("Σx", "Σ∇h"):
        values |= {f"lambda_max({matrix})": lambda_max, f"rank({matrix})": 3.0, f"dimension({matrix})": 4.0}
        values |= {f"kappa_{p}%({matrix})": kappa for p in (20, 50, 80, 100)}
    return [Row(None, name, quantity, value, "") for quantity, value in values.items()]


NETWORK = [
    Row(None, "", "loss", 2.3, ""),
    Row(None, "", "examples", 64.0, "examples"),
    Row(None, "", "lambda_max(H)", 4.0, ""),
    Row(None, "", "lambda_max_error(H)", 0.04, ""),
    Row(None, "", "max_lr", 0.5, "lr"),
]


AWKWARD = Subject(
    [*NETWORK, *layer("fc1"), *layer("<b>fc&2</b>", kappa=math.inf, lambda_max=0.0, dying=5)],
    not_covered={"bn1": "has no Σx"},
)
"""Two layers, one of them with an infinite condition number, no gradient and a name that looks like HTML."""

SOUND = Subject([*NETWORK, *layer("fc1"), *layer("fc2", kappa=3.0, dying=0)])
