"""The tables of the benchmark page, made from the committed results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def measurements() -> str:
    """Cost of products, eigenvalues, traces and factors, beside the peers."""
    networks = _read("diagnostics_cpu")["results"]
    tools = [
        "wellcond",
        *dict.fromkeys(r["tool"] for n in networks for r in n["top_eigenvalue"] if r["tool"] != "wellcond"),
    ]
    tools += [t for t in ("BackPACK",) if any(key.startswith(t) for n in networks for key in n["cost_u"])]
    parts = []
    for network in networks:
        u = network["cost_u"]
        traces = {row["tool"]: row["cost_u"] for row in network["trace"]}
        factors = {"wellcond": u["wellcond kronecker_factors"], "curvlinops": u.get("curvlinops KFAC")}
        rows = [
            ["Hessian-vector product", *(_u(u.get(f"{tool} Hessian @ v")) for tool in tools)],
            ["largest eigenvalue, true error < 1e-3", *(_cheapest(network, tool, "true_error") for tool in tools)],
            ["the same, error *known* to be < 1e-3", *(_cheapest(network, tool, "stated_error") for tool in tools)],
            ["trace to 5 % standard error", *(_u(traces.get(tool)) for tool in tools)],
            ["Σx and Σ∇h of all layers", *(_u(factors.get(tool)) for tool in tools)],
        ]
        rows += [[f"`{key}`", _u(u[f"wellcond {key}"])] for key in ("GGN @ v", "conditioning", "neurons")]
        parts += [f"**{_name(network)}**, u = {1e3 * network['u_seconds']:.0f} ms", _table(["cost in u", *tools], rows)]
    return "\n\n".join(parts)


def _cheapest(network: dict[str, Any], tool: str, error: str) -> str:
    """Per instance, the lowest cost at which a tool got below 1e-3, of all the tolerances it was asked for."""
    tried = [row for row in network["top_eigenvalue"] if row["tool"] == tool and error in row]
    costs = [
        min((row["cost_u"] for row in tried if row["instance"] == i and row[error] < 1.001e-3), default=None)
        for i in sorted({row["instance"] for row in tried})
    ]
    return ", ".join(map(_u, sorted(costs, key=lambda cost: (cost is None, cost)))) or "–"


def probes() -> str:
    """Cost of walks, covariate shift and local Hessians."""
    return _by_network("probes_cpu", "probes_cuda")


def _by_network(*files: str) -> str:
    networks = [network for file in files for network in _read(file)["results"]]
    labels: dict[str, None] = dict.fromkeys(_label(key) for network in networks for key in network["cost_u"])
    costs = [{_label(key): cost for key, cost in network["cost_u"].items()} for network in networks]
    return _table(["u", *map(_name, networks)], [[label, *(_u(cost.get(label)) for cost in costs)] for label in labels])


def _label(key: str) -> str:
    """`local_hessian of 'fc2'` and the like without the layer, which differs between networks."""
    return f"– {key.strip()}" if key.startswith(" ") else key.split(" of '")[0]


def training_steps() -> str:
    """Time of a training step, as a ratio."""
    rows = []
    for file in ("training_steps_cpu", "training_steps_cuda"):
        results = _read(file)
        device = "one CPU core" if results["environment"]["device"] == "cpu" else results["environment"]["device"]
        rows += [
            [r["network"], device, *(f"{r[key]:.2f} ×" for key in ("BNP/SGD", "BN/SGD", "BNP/BN"))]
            for r in results["results"]
        ]
    return _table(
        ["network", "device", "BNP / SGD", "BatchNorm / SGD", "BNP / BatchNorm"], sorted(rows, key=lambda r: r[0])
    )


def growth() -> str:
    """Exponents with which cost grows."""
    results = {device: _read(f"growth_{device}")["results"]["axes"] for device in ("cpu", "cuda")}
    axes = results["cpu"]
    rows = [
        [
            f"`{task}`",
            *(f"{axes[axis][task]['slope']:.1f}" for axis in axes),
            *(f"{results['cuda'][axis][task]['slope']:.1f}" for axis in axes),
        ]
        for task in next(iter(axes.values()))
    ]
    return _table(
        ["cost grows like size to the power", *(f"{axis}, {device}" for device in ("CPU", "H200") for axis in axes)],
        rows,
    )


def accuracy() -> str:
    """Predicted against measured λ_max."""
    rows = [
        [
            f"`{r['network']}`",
            _statistics(r),
            f"{r['measured']:.4g} ± {r['standard_error']:.2g}",
            f"{r['predicted']:.4g}",
            _percent(r["error"]),
        ]
        for r in _read("meanfield_accuracy_cuda")["results"]
    ]
    return _table(["network", "BatchNorm's statistics", "measured λ_max", "predicted", "error"], rows)


def accuracy_on_images() -> str:
    """The same with real images as inputs."""
    rows = [
        [r["inputs"], _statistics(r), f"{r['measured']:.4g}", f"{r['predicted']:.4g}", _percent(r["error"])]
        for r in _read("meanfield_accuracy_cuda")["real_inputs"]
    ]
    return _table(["inputs", "BatchNorm's statistics", "measured λ_max", "predicted", "error"], rows)


def _statistics(row: dict[str, Any]) -> str:
    without = row.get("norm") == "vanilla" or "vanilla" in row.get("network", "")
    if without or " ln" in row.get("network", ""):
        return "LayerNorm" if " ln" in row.get("network", "") else "no BatchNorm"
    return {"batch": "as in training", "detached": "held constant"}[row["variant"]]


def environments() -> str:
    """Hardware and versions behind every file of results."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        e = _read(path.stem)["environment"]
        versions = ", ".join(f"{name} {version}" for name, version in e["versions"].items() if version)
        machine = e["processor"] if e["device"] == "cpu" else f"{e['device']} ({e['processor']})"
        rows.append(
            [
                f"[{path.stem}](results/{path.name})",
                machine,
                str(e["threads"]),
                e["time"],
                f"Python {e['python']}, {versions}",
            ]
        )
    return _table(["results", "machine", "threads", "time", "versions"], rows)


TABLES: dict[str, Callable[[], str]] = {
    function.__name__.replace("_", "-"): function
    for function in (measurements, probes, training_steps, growth, accuracy, accuracy_on_images, environments)
}


def _read(stem: str) -> Any:
    return json.loads((RESULTS / f"{stem}.json").read_text(encoding="utf-8"))


def _name(network: dict[str, Any]) -> str:
    return network["network"].replace("(cpu)", "(CPU)").replace("(cuda)", "(H200)")


def _u(cost: float | None) -> str:
    if cost is None:
        return "–"
    return f"{cost:.2g}" if cost < 10 else f"{cost:,.0f}"


def _percent(error: float) -> str:
    return f"{100 * error:+.1f} %"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *([*row, *["–"] * (len(head) - len(row))] for row in map(list, rows))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
