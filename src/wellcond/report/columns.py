"""The columns of a table of layers: which quantity, how it is written, and which end of it is bad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from wellcond.results import number

Line = Mapping[str, float]
"""The quantities of one layer."""


@dataclass(frozen=True)
class Column:
    """One quantity. of: the quantity that is its maximum, written behind a slash. worst: the bad end.

    >>> Column("rank", "rank(Σx)", "", of="dimension(Σx)").text({"rank(Σx)": 3.0, "dimension(Σx)": 8.0})
    '3/8'
    """

    title: str
    quantity: str
    meaning: str
    of: str = ""
    worst: Literal["highest", "lowest", ""] = ""

    def text(self, line: Line) -> str:
        if self.quantity not in line:
            return "–"
        if self.of:
            return f"{line[self.quantity]:.0f}/{line[self.of]:.0f}"
        return number(line[self.quantity])

    def badness(self, line: Line) -> float:
        """Comparable between layers, larger is worse; −inf where there is nothing to compare."""
        if not self.worst or self.quantity not in line:
            return float("-inf")
        share = line[self.quantity] / max(line[self.of], 1.0) if self.of else line[self.quantity]
        return share if self.worst == "highest" else -share

    def worst_layers(self, layers: Mapping[str, Line]) -> set[str]:
        """The layers at the bad end; none where all are alike."""
        badness = {name: self.badness(line) for name, line in layers.items()}
        known = [value for value in badness.values() if value > float("-inf")]
        if not known or min(known) == max(known):
            return set()
        return {name for name, value in badness.items() if value == max(known)}


COLUMNS = (
    Column("λmax Σx", "lambda_max(Σx)", "magnitude of what the layer receives"),
    Column("κ50 Σx", "kappa_50%(Σx)", "largest eigenvalue over the median one", worst="highest"),
    Column("rank", "rank(Σx)", "numerical rank of Σx", of="dimension(Σx)", worst="lowest"),
    Column("λmax Σ∇h", "lambda_max(Σ∇h)", "magnitude of the gradient at the layer's output"),
    Column("κ50 Σ∇h", "kappa_50%(Σ∇h)", "largest eigenvalue over the median one", worst="highest"),
    Column("rank", "rank(Σ∇h)", "numerical rank of Σ∇h", of="dimension(Σ∇h)", worst="lowest"),
    Column("dead", "dying", "ReLUs that are 0 on every example", of="units", worst="highest"),
    Column("full", "full", "ReLUs that are positive on every example", of="units", worst="highest"),
)
"""What every table shows."""


def shortened(name: str, width: int = 24) -> str:
    """The end of a long layer name, which tells it from its neighbours.

    >>> shortened("encoder.layers.11.attention.query", 20)
    '….11.attention.query'
    """
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :]


def grouped(reasons: Mapping[str, str]) -> dict[str, str]:
    """Reason → the names it holds for, long lists as their ends.

    >>> grouped({"bn1": "has none", "bn2": "has none", "bn3": "has none", "bn4": "has none"})
    {'has none': 'bn1 … bn4 (4)'}
    """
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return {
        reason: ", ".join(each) if len(each) < 4 else f"{each[0]} … {each[-1]} ({len(each)})"
        for reason, each in names.items()
    }
