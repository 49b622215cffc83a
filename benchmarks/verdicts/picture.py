"""The picture of the page of verdicts, drawn from results: `python -m benchmarks.verdicts.picture`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

ROOT = Path(__file__).resolve().parents[2]
INK = "#37474f"
COLORS = {"right rule first": "#3949ab", "in the first three": "#9fa8da", "something else": "#ffcc80",
           "nothing": "#eceff1", "a healthy network called severely ill": "#e57373",
           "clean, or warnings only": "#a5d6a7"}  # fmt: skip


def picture(results: Path) -> Figure:
    """A field for every case and tool; then one for every healthy network and tool."""
    result = json.loads((results / "verdicts_cpu.json").read_text(encoding="utf-8"))["results"]
    tools = list(result["shares"])
    figure = Figure(figsize=(13, 9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
    counted = [row for row in result["cases"] if row["counts"]]
    _field(left, [[_of_case(row[tool]) for tool in tools] for row in counted], tools)
    left.set_yticks(range(len(counted)), [f"{row['number']}  {_short(row['title'])}" for row in counted])
    _dress(left, f"{len(counted)} real faults")
    healthy = result["controls"] + [row for row in result["cases"] if row["is_control"]]
    _field(right, [[_of_control(row[tool]) for tool in tools] for row in healthy], tools)
    right.set_yticks([])
    _dress(right, f"{len(healthy)} healthy networks")
    figure.legend(handles=[Patch(color=color, label=name) for name, color in COLORS.items()], ncols=6,
                  loc="outside lower center", frameon=False, fontsize=8.5)  # fmt: skip
    return figure


def _of_case(result: dict[str, Any]) -> str:
    if result["first"]:
        return COLORS["right rule first"]
    if result["three"]:
        return COLORS["in the first three"]
    return COLORS["something else" if result["findings"] else "nothing"]


def _of_control(result: dict[str, Any]) -> str:
    return COLORS["a healthy network called severely ill" if result["severe"] else "clean, or warnings only"]


def _field(axes: Axes, colors: list[list[str]], tools: list[str]) -> None:
    for y, row in enumerate(colors):
        for x, color in enumerate(row):
            axes.barh(y, 0.94, left=x, height=0.86, color=color)
    axes.set_xticks([x + 0.47 for x in range(len(tools))], tools)
    axes.xaxis.tick_top()
    axes.set_xlim(0, len(tools))
    axes.set_ylim(len(colors) - 0.4, -0.6)


def _short(title: str) -> str:
    return title if len(title) <= 62 else title[:60].rsplit(" ", 1)[0] + " …"


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, weight="bold", color=INK)
    axes.tick_params(length=0, labelsize=8.5, colors=INK)
    axes.spines[:].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures" / "verdicts.png")
    options = parser.parse_args()
    picture(options.results).savefig(options.out, dpi=120)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
