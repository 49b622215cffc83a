"""The one output of every measurement: rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from wellcond.errors import UnknownLayer

Entry = TypeVar("Entry")


class Row(NamedTuple):
    """One measured number. Everything that is shown, saved or logged is made from rows.

    step: training step, or None outside training. layer: its name, or "" for the whole network.
    """

    step: int | None
    layer: str
    quantity: str
    value: float
    unit: str


class ByLayer(Mapping[str, Entry]):
    """A result with one entry a layer: `result["layer"]`; an unknown name is told with the closest."""

    layers: dict[str, Entry]

    def __getitem__(self, name: str) -> Entry:
        if name not in self.layers:
            raise UnknownLayer(name, self.layers)
        return self.layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def text_table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Columns aligned for a fixed-width font: the first to the left, the others to the right."""
    lines = [list(header), *(list(line) for line in body)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    first, *others = widths
    return "\n".join(
        "  ".join([line[0].ljust(first), *(cell.rjust(w) for cell, w in zip(line[1:], others, strict=True))])
        for line in lines
    )


def number(value: float) -> str:
    """Three digits, and the words for what is not a number."""
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "−∞"
    return f"{value:.3g}"
