"""Writes the tables of the benchmark pages, made from the committed results, into the pages.

python docs/scripts/tables.py
"""

from __future__ import annotations

import math
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # benchmarks
import epoch_tables
import imagenet_tables
import measurement_tables
import verdict_tables
from committed import RESULTS, devices, percent, read, table, u

from wellcond.remedies import REMEDIES

PAGES = [
    Path(__file__).resolve().parents[1] / name
    for name in (
        "../README.md",
        "benchmarks.md",
        "guides/cost.md",
        "guides/fixing.md",
        "guides/reproducing.md",
        "meanfield.md",
        "verdicts.md",
    )
]
FOLDER = "../benchmarks/results"
"""Path of the committed results, from a page."""


def probes() -> str:
    """Cost of walks, covariate shift and local Hessians."""
    networks = [(network, device) for device, measured in devices("probes").items() for network in measured]
    costs = [{_label(key): cost for key, cost in network["cost_u"].items()} for network, _ in networks]
    labels = dict.fromkeys(label for cost in costs for label in cost)
    head = [f"{network['network'].partition(' (')[0]}, {device}" for network, device in networks]
    return table(["u", *head], [[label, *(u(cost.get(label)) for cost in costs)] for label in labels])


def _label(key: str) -> str:
    """`local_hessian of 'fc2'` and the like without the layer, which differs between networks."""
    return f"– {key.strip()}" if key.startswith(" ") else key.split(" of '")[0]


def training_steps() -> str:
    """Time of a training step, as ratios."""
    steps = [(row, device) for device, rows in devices("training_steps").items() for row in rows]
    ratios = list(dict.fromkeys(key for row, _ in steps for key in row if "/" in key))
    rows = [
        [row["network"], device, *(f"{row[key]:.2f} ×" if row.get(key) else "–" for key in ratios)]
        for row, device in steps
    ]
    return table(
        ["network", "where", *(key.replace("/", " / ") for key in ratios)], sorted(rows, key=lambda r: (r[0], r[1]))
    )


def growth() -> str:
    """Exponents with which cost grows, before and now."""
    now, before = devices("growth"), devices("growth_before")
    axes = next(iter(now.values()))["axes"]
    rows = []
    for device, results in now.items():
        for task in next(iter(axes.values())):
            slopes = [_slope(results, axis, task) for axis in axes]
            earlier = [_slope(before.get(device), axis, task) for axis in axes]
            cells = [f"{a} → {b}" if a != "–" else b for a, b in zip(earlier, slopes, strict=True)]
            rows.append([f"`{task}`", device, *cells])
    return table(["cost grows like size to the power", "where", *axes], rows)


def _slope(results: dict[str, Any] | None, axis: str, task: str) -> str:
    fit = None if results is None else results["axes"][axis].get(task)
    return "–" if fit is None else f"{fit['slope']:.1f}"


def rates() -> str:
    """How often each way to find a learning rate is within 10 % of a sweep's best, by length and group of tasks."""
    rows = read("rates_cpu")["results"]["rows"]
    body = []
    for steps in sorted({row["steps"] for row in rows}):
        here = [row for row in rows if row["steps"] == steps]
        groups = list(dict.fromkeys(row["group"] for row in here))
        owns = {row["task"]: row["methods"]["the script's own rate"]["ratio"] for row in here}
        for method in rows[0]["methods"]:
            ratios = {row["task"]: row["methods"][method]["ratio"] or math.inf for row in here}
            price = statistics.fmean(row["methods"][method]["u"] for row in here)
            cells = [f"{steps:,}", method, f"{price:.0f}"]
            for group in groups:
                of_group = [ratios[row["task"]] for row in here if row["group"] == group]
                cells.append(f"{sum(ratio <= 1.1 for ratio in of_group)} of {len(of_group)}")
            worse = sum(math.log(ratios[row["task"]] / owns[row["task"]]) > 2 * row["noise"] for row in here)
            some = list(ratios.values())
            cells += [f"{sum(ratio <= 1.2 for ratio in some)} of {len(some)}", str(sum(ratio > 1.5 for ratio in some))]
            body.append([*cells, str(worse)])
    heads = [f"within 10 %, {group}" for group in dict.fromkeys(row["group"] for row in rows)]
    return table(["steps", "method", "u", *heads, "within 20 %", "above 1.5", "worse than the script's own"], body)


def accuracy() -> str:
    """Predicted against measured λ_max."""
    rows = [
        [f"`{r['network']}`", _statistics(r), f"{r['measured']:.4g} ± {r['standard_error']:.2g}",
         f"{r['predicted']:.4g}", percent(r["error"])]
        for r in read("meanfield_accuracy_cuda")["results"]
    ]  # fmt: skip
    return table(["network", "BatchNorm's statistics", "measured λ_max", "predicted", "error"], rows)


def accuracy_on_images() -> str:
    """The same with real images as inputs."""
    rows = [
        [r["inputs"], _statistics(r), f"{r['measured']:.4g}", f"{r['predicted']:.4g}", percent(r["error"])]
        for r in read("meanfield_accuracy_cuda")["real_inputs"]
    ]
    return table(["inputs", "BatchNorm's statistics", "measured λ_max", "predicted", "error"], rows)


def _statistics(row: dict[str, Any]) -> str:
    without = row.get("norm") == "vanilla" or "vanilla" in row.get("network", "")
    if without or " ln" in row.get("network", ""):
        return "LayerNorm" if " ln" in row.get("network", "") else "no BatchNorm"
    return {"batch": "as in training", "detached": "held constant"}[row["variant"]]


def treatments() -> str:
    """What `treat` chose for ten faults, next to the best of all arms after ten times the steps."""
    from benchmarks.treatment_tables import treatments_table  # trains networks: slow to import

    return treatments_table(read("treatments_cpu")["results"])


def bnp_over_adam() -> str:
    """Training losses of an optimizer alone and with BNP."""
    from benchmarks.treatment_tables import bnp_table

    return bnp_table(read("treatments_cpu")["results"])


def remedies() -> str:
    """What every remedy does, and the rules whose findings it may treat."""
    rows = [
        [f"`{name}`", remedy.why.split("\n\n")[0].replace("\n", " "), ", ".join(map(_rule, remedy.rules)) or "–"]
        for name, remedy in sorted(REMEDIES.items())
    ]
    return table(["remedy", "what it does", "for the rules"], rows)


def _rule(name: str) -> str:
    return f"[{name}](../rules/{name}.md)"


def environments() -> str:
    """Hardware and versions, with the files of results that come from them."""
    files: dict[tuple[str, ...], list[str]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        e = read(path.stem)["environment"]
        versions = ", ".join(f"{name} {version}" for name, version in e["versions"].items() if version)
        machine = e["processor"] if e["device"] == "cpu" else f"{e['device']} ({e['processor']})"
        key = (machine, str(e["threads"]), e["time"], f"Python {e['python']}, {versions}")
        files.setdefault(key, []).append(f"[{path.stem}]({FOLDER}/{path.name})")
    return table(
        ["results", "machine", "threads", "time", "versions"],
        [[", ".join(names), *key] for key, names in files.items()],
    )


TABLES: dict[str, Callable[[], str]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        measurement_tables.products,
        measurement_tables.products_by_tool,
        measurement_tables.diagnose_cost,
        measurement_tables.prices,
        measurement_tables.recording,
        measurement_tables.top_eigenvalue,
        measurement_tables.products_of_eigenvalue,
        measurement_tables.false_stops,
        measurement_tables.layer_tables,
        measurement_tables.large_networks,
        measurement_tables.diagnoses,
        epoch_tables.epoch_time,
        epoch_tables.epoch_probes,
        epoch_tables.epoch_accuracy,
        imagenet_tables.imagenet_experiments,
        imagenet_tables.imagenet_steps,
        verdict_tables.examined,
        verdict_tables.examinations,
        verdict_tables.verdict_examination,
        verdict_tables.run_examination,
        verdict_tables.run_examinations,
        verdict_tables.verdict_repairs,
        verdict_tables.verdict_repair_cases,
        verdict_tables.verdict_shares,
        verdict_tables.verdict_cases,
        verdict_tables.verdict_controls,
        probes,
        training_steps,
        growth,
        rates,
        treatments,
        remedies,
        bnp_over_adam,
        accuracy,
        accuracy_on_images,
        environments,
    )
}


def filled(page: str) -> str:
    """A page with every table between its markers written again."""
    return re.sub(
        r"<!-- table: (\S+) -->.*?<!-- end of table -->",
        lambda match: f"<!-- table: {match[1]} -->\n\n{TABLES[match[1]]()}\n\n<!-- end of table -->",
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
