"""The committed results of the benchmarks, and how their numbers are written."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
DEVICES = {"cpu": "one CPU core", "cuda": "H200"}


def read(stem: str) -> Any:
    """A file of results, with its environment."""
    return json.loads((RESULTS / f"{stem}.json").read_text(encoding="utf-8"))


def devices(part: str) -> dict[str, Any]:
    """Results of a part by device, where there are any."""
    return {
        name: read(f"{part}_{device}")["results"]
        for device, name in DEVICES.items()
        if (RESULTS / f"{part}_{device}.json").exists()
    }


def u(cost: float | None) -> str:
    """A cost in units of forward+backward."""
    if cost is None:
        return "–"
    return f"{cost:.2g}" if cost < 10 else f"{cost:,.0f}"


def seconds(value: float | None) -> str:
    """A time in the unit that reads best."""
    if value is None:
        return "–"
    if value < 0.01:
        return f"{1e3 * value:.2g} ms"
    return f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.3g} s"


def gib(value: float | None) -> str:
    """Memory."""
    return "–" if value is None else f"{value:.2g} GiB" if value >= 0.095 else f"{1024 * value:.0f} MiB"


def percent(error: float) -> str:
    """A relative error with its sign."""
    return f"{100 * error:+.1f} %"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Markdown; short rows are filled up with dashes."""
    head = list(head)
    lines = [head, ["---"] * len(head), *([*row, *["–"] * (len(head) - len(row))] for row in map(list, rows))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
