"""The picture of the rates benchmark: `python -m benchmarks.rates.picture`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
STYLES = {
    "suggest_lr": ("#3949ab", "o", 46),
    "the script's own rate": ("#263238", "|", 40),
    "successive halving": ("#80cbc4", "s", 20),
    "torch-lr-finder": ("#ffb74d", "^", 20),
    "Lightning's finder": ("#b0bec5", "v", 20),
}
TOP = 3.2
"""Ratios above, and runs that diverged, are drawn here."""


def picture(rows: list[dict[str, Any]]) -> Figure:
    """Of every task, how far above the sweep's best each method ends; a panel per length."""
    horizons = sorted({row["steps"] for row in rows})
    names = list(dict.fromkeys(row["task"] for row in rows))
    figure = Figure(figsize=(13, 0.8 + 0.2 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(horizons), sharey=True)
    for axes, steps in zip(panels, horizons, strict=True):
        here = [row for row in rows if row["steps"] == steps]
        for method, (color, marker, size) in reversed(STYLES.items()):
            ratios = [row["methods"][method]["ratio"] for row in here]
            shown = [min(ratio if math.isfinite(ratio) else TOP, TOP) for ratio in ratios]
            places = [names.index(row["task"]) for row in here]
            axes.scatter(shown, places, s=size, color=color, marker=marker, label=method, zorder=3)
        axes.axvspan(1, 1.1, color="#e8eaf6", zorder=0)
        axes.axvline(1.5, color="#cfd3d8", linewidth=0.8, zorder=1)
        axes.set_xscale("log")
        axes.set_xlim(0.97, TOP * 1.05)
        ticks = [1, 1.1, 1.5, 2, TOP]
        axes.set_xticks(ticks, ["1", "1.1", "1.5", "2", "3+"])
        axes.minorticks_off()
        axes.set_title(f"{steps:,} steps", loc="left", fontsize=11, weight="bold")
        axes.set_xlabel("final loss over the sweep's best (both smoothed)")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=0)
        axes.grid(axis="y", color="#eceff1")
    tuned = {row["task"] for row in rows if row["group"] == "tuned on"}
    panels[0].set_yticks(range(len(names)), [name + ("" if name in tuned else " *") for name in names], fontsize=8)
    panels[0].invert_yaxis()
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


if __name__ == "__main__":
    stored = json.loads((ROOT / "benchmarks" / "results" / "rates_cpu.json").read_text(encoding="utf-8"))
    picture(stored["results"]["rows"]).savefig(ROOT / "docs" / "figures" / "rates.png", dpi=130)
