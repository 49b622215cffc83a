"""`Sweep`: the result of a sweep, as a table and as a heat map with the limits that theory predicts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from wellcond.errors import OutputError
from wellcond.report.figures.style import bare_axes, draw_curves, legend_below, new_figure
from wellcond.results import number, text_table
from wellcond.results.quantities import FINAL_LOSS, LOSS, MAX_LR, PREDICTED_MAX_LR, TEST_ACCURACY, TEST_LOSS
from wellcond.results.result import as_json
from wellcond_papers.experiments.pictures import heat_map
from wellcond_papers.experiments.reproduction import CellResult, Failure
from wellcond_papers.experiments.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = ("lr", "learning_rate", "rate")
"""Names of a learning rate; if it is on an axis, its limits are drawn as lines."""
LIMITS = {MAX_LR: "limit, measured", PREDICTED_MAX_LR: "limit, predicted"}
"""Quantities drawn as lines, with their labels."""
DRAWN_FIRST = (TEST_LOSS, FINAL_LOSS, LOSS, TEST_ACCURACY)
WIDE = 20
"""An axis is logarithmic if its largest value is more than this many times its smallest."""


@dataclass(frozen=True)
class Sweep(CellResult):
    """Rows with the settings of their cells.

    Attributes:
        name: The experiment or function that was swept.
        grid: The values of every swept setting.
        table: The cells that finished.
        failures: The cells that did not.
        made_with: The device and the versions of the libraries.
        x: The setting along the x axis; None for the learning rate, else the first with several numbers.
        y: The setting along the y axis; None for the next one with several numbers.
        quantity: The quantity that is drawn; None for a loss if there is one.
    """

    name: str
    grid: Mapping[str, Sequence[Any]]
    table: Table
    failures: Sequence[Failure] = ()
    made_with: Mapping[str, str] = field(default_factory=dict)
    x: str | None = None
    y: str | None = None
    quantity: str | None = None

    @property
    def axes(self) -> list[str]:
        """The settings of the picture: those asked for, else the first two with several numbers, a rate first."""
        several = [name for name, values in self.grid.items() if len(values) > 1 and all(map(is_number, values))]
        free = sorted((name for name in several if name not in (self.x, self.y)), key=lambda name: name not in RATES)
        chosen = [name or (free.pop(0) if free else None) for name in (self.x, self.y)]
        return [name for name in chosen if name is not None]

    @property
    def has_picture(self) -> bool:
        """Whether there is something to draw."""
        return bool(self.axes and self.drawn)

    @property
    def drawn(self) -> str:
        """The quantity of the picture; "" if there are no rows."""
        if self.quantity is not None:
            return self.quantity
        known = dict.fromkeys(row.quantity for row in self.rows())
        return next((name for name in (*DRAWN_FIRST, *known) if name in known), "")

    def groups(self, *without: str) -> dict[str, Table]:
        """The cells by their arm and swept settings, as text, leaving out some of the settings."""
        names = [name for name in ("arm", *(n for n in self.grid if n != "arm")) if name not in without]
        by_title: dict[str, list[Any]] = {}
        for record in self.table:
            own = {name: record.settings[name] for name in names if name in record.settings}
            title = ", ".join(str(v) if n == "arm" else f"{n} = {_shown(v)}" for n, v in own.items())
            by_title.setdefault(title, []).append(record)
        return {title: Table(records) for title, records in by_title.items()}

    def figure(self) -> Figure:
        """A heat map over two settings, with the limits of the rate as lines; curves over one."""
        if not self.has_picture:
            raise OutputError("nothing to draw: no setting of the grid has several numbers; save it as .csv or .json.")
        known = dict.fromkeys(row.quantity for row in self.rows())
        if self.drawn not in known:
            raise OutputError(f"there are no rows of {self.drawn!r} to draw; there are {', '.join(known)}.")
        return self._map(*self.axes) if len(self.axes) == 2 else self._curves(self.axes[0])

    def _map(self, x: str, y: str) -> Figure:
        groups = {f"{self.drawn}{', ' if title else ''}{title}": cells for title, cells in self.groups(x, y).items()}
        maps = {title: _cells(table, x, y, self.drawn) for title, table in groups.items()}
        lines = {title: _limits(table, y) for title, table in groups.items()} if x in RATES else None
        return heat_map(maps, x=x, y=y, lines=lines)

    def _curves(self, x: str) -> Figure:
        curves = {title: lines for title, table in self.groups(x).items() if (lines := _curves(table, x, self.drawn))}
        figure = new_figure(6.4, 4.2)
        axes = figure.subplots()
        if curves:
            draw_curves(axes, curves)
        values = self.grid[x]
        if min(values) > 0 and max(values) > WIDE * min(values):
            axes.set_xscale("log")
        bare_axes(axes, title=self.name, x=x, y=self.drawn)
        legend_below(figure, axes)
        return figure

    def to_json(self) -> str:
        content = {
            "result": "Sweep",
            "name": self.name,
            "grid": self.grid,
            "made_with": self.made_with,
            "cells": [{"settings": r.settings, "rows": [row._asdict() for row in r.rows]} for r in self.table],
            "failed": [{"settings": each.settings, "error": each.error} for each in self.failures],
        }
        return json.dumps(as_json(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def __str__(self) -> str:
        body = []
        for title, table in self.groups().items():
            values = table.lasts(self.drawn)
            mean = number(fmean(values)) if values else "–"
            spread = f"{number(min(values))} to {number(max(values))}" if len(values) > 1 else ""
            diverged = sum(record.has_diverged for record in table)
            body.append([title, mean, spread, str(len(table)), str(diverged) if diverged else ""])
        lines = [f"{self.name}: {len(self.table)} cells finished, {len(self.failures)} failed"]
        if body:
            lines.append(text_table(["", self.drawn, "over seeds", "cells", "diverged"], body))
        for each in self.failures:
            point = {name: each.settings.get(name) for name in (*self.grid, "seed")}
            lines.append(f"failed: {', '.join(f'{n} = {_shown(v)}' for n, v in point.items())}: {each.error}")
        return "\n".join(lines)


def _cells(table: Table, x: str, y: str, quantity: str) -> dict[tuple[float, float], float | None]:
    """The mean over seeds at each point; None where a cell diverged."""
    means: dict[tuple[float, float], float | None] = {}
    for place in dict.fromkeys((record.settings[x], record.settings[y]) for record in table):
        cells = table.where(**{x: place[0], y: place[1]})
        values = cells.lasts(quantity)
        has_diverged = any(record.has_diverged for record in cells) or not all(map(math.isfinite, values))
        means[place] = None if has_diverged or not values else fmean(values)
    return means


def _curves(table: Table, x: str, quantity: str) -> list[tuple[list[float], list[float]]]:
    """One curve per seed, at the places where all of them have a finite value."""
    seeds = [table.where(seed=seed) for seed in dict.fromkeys(record.settings.get("seed") for record in table)]
    lines = [{r.settings[x]: value for r in cells for value in Table([r]).lasts(quantity)} for cells in seeds]
    places = [place for place in sorted(lines[0]) if all(math.isfinite(own.get(place, math.nan)) for own in lines)]
    return [(places, [own[place] for place in places]) for own in lines] if places else []


def _limits(table: Table, y: str) -> dict[str, list[tuple[float, float]]]:
    """The mean limits of the rate at each height."""
    heights = sorted({record.settings[y] for record in table})
    lines = {}
    for quantity, label in LIMITS.items():
        means = {height: table.where(**{y: height}).lasts(quantity) for height in heights}
        if any(means.values()):
            lines[label] = [(fmean(values), height) for height, values in means.items() if values]
    return lines


def is_number(value: Any) -> bool:
    """Whether a value can be a place on an axis."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
