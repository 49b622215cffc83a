"""The picture of the benchmark page, drawn from results: `python -m benchmarks.picture`."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.eigenvalues import CERTIFICATE, RESIDUAL, TRUE_ERROR

ROOT = Path(__file__).resolve().parents[1]
OURS, OURS_LIGHT, PEERS, INK = "#3949ab", "#9fa8da", "#cfd3d8", "#37474f"
PARTS = {"conditioning": "#3949ab", "gradients": "#b0bec5", "neurons": "#80cbc4", "hessian": "#7986cb",
         "max_lr": "#ffb74d", "trace": "#e57373"}  # fmt: skip
LABELS = {"conditioning, neurons": "layer table", "hessian": "ends of the Hessian's spectrum"}
"""A part that brings several fields of a diagnosis at once has the first one's color."""


def picture(results: Path) -> Figure:
    """Cost of the top eigenvalue compared with the peers; a training step with BNP; `diagnose` on large networks."""
    figure = Figure(figsize=(13, 7.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1))
    _top_eigenvalue(left.subplots(), _read(results, "eigenvalues_cpu")["networks"])
    steps, large = right.subplots(2, 1, height_ratios=(1.1, 1))
    _training_steps(steps, _read(results, "training_steps_cpu"))
    _diagnose(large, {device: _read(results, f"large_{device}") for device in ("cpu", "cuda")})
    return figure


def _read(results: Path, stem: str) -> Any:
    path = results / f"{stem}.json"
    return json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []


def _top_eigenvalue(axes: Axes, networks: list[dict[str, Any]]) -> None:
    """A bar a tool: the median over seeds of its cheapest run that came within 1e-3; whiskers are all seeds."""
    y, ticks = 0.0, []
    for network in networks:
        costs = {tool: _reached(network["runs"], tool) for tool in dict.fromkeys(r["tool"] for r in network["runs"])}
        costs = {tool: result for tool, result in costs.items() if result}
        top = y
        for tool, result in sorted(costs.items(), key=lambda item: (item[0] not in (RESIDUAL, CERTIFICATE), item[1])):
            middle = statistics.median(result)
            color = {RESIDUAL: OURS, CERTIFICATE: OURS_LIGHT}.get(tool, PEERS)
            axes.barh(y, middle, height=0.82, color=color)
            axes.plot([min(result), max(result)], [y, y], color=INK, linewidth=0.8)
            weight = "bold" if tool == RESIDUAL else "normal"
            axes.text(
                max(result) * 1.02, y, f" {middle:.0f}  {tool}", va="center", fontsize=8.5, color=INK, weight=weight
            )
            y += 1
        ticks.append(((top + y - 1) / 2, network["network"].replace(" 784", "\n784").replace(", ", ",\n")))
        y += 0.9
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.set_ylim(y - 1.2, -0.8)
    axes.set_xlim(0, 1.45 * max(patch.get_width() for patch in axes.patches))
    _dress(axes, f"Largest Hessian eigenvalue, true error < {TRUE_ERROR:g}", "forward+backward passes (u), one core")


def _reached(runs: list[dict[str, Any]], tool: str) -> list[float]:
    """Per seed, the cheapest run that came close enough; with the certificate, that is known to."""
    error, limit = ("stated_error", 1.001 * TRUE_ERROR) if tool == CERTIFICATE else ("true_error", TRUE_ERROR)
    close = [r for r in runs if r["tool"] == tool and r.get(error, 1) < limit]
    return [min(r["cost_u"] for r in close if r["instance"] == i) for i in {r["instance"] for r in close}]


def _training_steps(axes: Axes, rows: list[dict[str, Any]]) -> None:
    methods = {"BN/SGD": ("BatchNorm", PEERS), "BNP/SGD": ("BNP", OURS)}
    for i, (ratio, (name, color)) in enumerate(methods.items()):
        at = [row + (i - 0.5) * 0.38 for row in range(len(rows))]
        axes.barh(at, [row[ratio] for row in rows], height=0.36, color=color, label=name)
        for y, row in zip(at, rows, strict=True):
            axes.text(row[ratio] + 0.01, y, f"{row[ratio]:.2f}", va="center", fontsize=8, color=INK)
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(rows)), [_short(row["network"]) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_xlim(0, 1.2 * max(row[ratio] for row in rows for ratio in methods))
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    _dress(axes, "A training step with BNP", "time; 1 is a step of plain SGD, one core")


def _short(name: str) -> str:
    """A network's name and its batch."""
    return f"{name.split()[0]}, {name.rpartition(', ')[2]}"


def _diagnose(axes: Axes, by_device: dict[str, list[dict[str, Any]]]) -> None:
    rows = [
        (f"{network['network']}, {'H200' if device == 'cuda' else 'one core'}", network["measurements"]["diagnose"])
        for device, networks in by_device.items()
        for network in networks
        if "parts" in network["measurements"]["diagnose"]
    ]
    named: set[str] = set()
    for y, (_, cost) in enumerate(rows):
        begin = 0.0
        for part in cost["parts"]:
            what = part["part"]
            color = next(color for name, color in PARTS.items() if name in what.split(", "))
            if part["u"] < 0.01 * cost["u"]:
                continue  # such as a limit that is read off the spectrum
            label = None if what in named else LABELS.get(what, what)
            named.add(what)
            axes.barh(y, part["u"], left=begin, height=0.7, color=color, label=label)
            begin += part["u"]
        axes.text(cost["u"], y, f" {cost['u']:.0f} u, {cost['seconds']:.2g} s", va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    if rows:
        axes.set_xlim(0, 1.3 * max(cost["u"] for _, cost in rows))
        axes.legend(ncols=6, loc="upper center", bbox_to_anchor=(0.45, -0.2), frameon=False, fontsize=8)
    _dress(axes, "diagnose, by default, part by part", "forward+backward passes (u)")


def _dress(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, weight="bold", color=INK)
    axes.set_xlabel(unit, fontsize=9, color=INK)
    axes.tick_params(length=0, labelsize=9, colors=INK)
    axes.spines[["top", "right", "left"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures" / "benchmarks.png")
    options = parser.parse_args()
    picture(options.results).savefig(options.out, dpi=120)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
