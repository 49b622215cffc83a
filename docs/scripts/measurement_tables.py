"""Tables of what measurements cost, next to other libraries and on large networks."""

from __future__ import annotations

import statistics
from typing import Any

from committed import devices, gib, read, seconds, table, u

CERTIFICATE, RESIDUAL = "wellcond, error certified", "wellcond"
TRUE_ERROR = 1e-3
WRITTEN_ON_CHANGE = (
    "lr", "momentum", "weight_decay", "loss_scale", "statistics_momentum", "rounded_weights", "commonest_label",
    "trained_share", "unheld_share",
)  # fmt: skip
"""Quantities of which there is one row, unless they change."""
OFTEN = 10
"""Times that a quantity should be recorded in 500 steps."""


def products() -> str:
    """Cost of products, traces, factors and the layer table, next to the peers, network by network."""
    networks = read("products_cpu")["results"]
    tools = list(dict.fromkeys(key.split()[0] for network in networks for key in network["cost_u"]))
    parts = []
    for network in networks:
        costs = network["cost_u"]
        factors = {tool: costs.get(f"{tool} KFAC") for tool in tools} | {
            "wellcond": costs["wellcond kronecker_factors"]
        }
        traces = network.get("trace", {}).get("cost_u", {})
        rows = [
            ["Hessian-vector product", *(u(costs.get(f"{tool} Hessian @ v")) for tool in tools)],
            ["Σx and Σ∇h of all layers", *(u(factors[tool]) for tool in tools)],
        ]
        if traces:
            rows.append(["trace to 5 % standard error", *(u(traces.get(tool)) for tool in tools)])
        rows += [[f"`{key}`", u(costs[f"wellcond {key}"])] for key in ("GGN @ v", "conditioning", "neurons")]
        title = f"**{network['network']}**, u = {1e3 * network['u_seconds']:.0f} ms"
        parts += [title, table(["cost in u", *tools], rows)]
    return "\n\n".join(parts)


def recording() -> str:
    """Time of a training with a recorder over that without, and how often the rarest quantity was recorded."""
    rows = []
    for device, results in devices("recording").items():
        for network in results:
            mode = [] if network.get("mode", "eager") == "eager" else [network["mode"]]
            where = ", ".join([device, *mode, f"{network['steps']} steps"])
            if "recorded" not in network:
                rows.append([network["network"], where, "wellcond", "–", "–", f"left out: {network['left out']}"])
                continue
            often = {name: count for name, count in network["recorded"].items() if name not in WRITTEN_ON_CHANGE}
            enough = sum(count >= OFTEN for count in often.values())
            for tool in (tool for tool in network["wall/plain"] if tool != "plain"):
                ratios = [f"{network[ratio][tool]:.3f}" for ratio in ("wall/plain", "cpu/plain")]
                counts = f"{enough} of {len(often)}" if tool == "wellcond" else ""
                rows.append([network["network"], where, tool, *ratios, counts])
            for tool, why in network.get("left out", {}).items():
                rows.append([network["network"], where, tool, "–", "–", f"does not run: {why}"])
    return table(["network", "where", "recorder", "wall time", "CPU time", f"quantities {OFTEN} times or more"], rows)


def products_by_tool() -> str:
    """The same as a range over the networks, a line per tool."""
    networks = read("products_cpu")["results"]
    tools = list(dict.fromkeys(key.split()[0] for network in networks for key in network["cost_u"]))
    rows = []
    for tool in tools:
        factors = "wellcond kronecker_factors" if tool == "wellcond" else f"{tool} KFAC"
        costs = [
            [network["cost_u"].get(f"{tool} Hessian @ v") for network in networks],
            [network["cost_u"].get(factors) for network in networks],
            [network.get("trace", {}).get("cost_u", {}).get(tool) for network in networks],
        ]
        rows.append([tool, *map(_range, costs)])
    return table(["u", "Hessian-vector product", "Σx and Σ∇h of all layers", "trace to 5 % standard error"], rows)


def _range(costs: list[float | None]) -> str:
    measured = [cost for cost in costs if cost is not None]
    return f"{u(min(measured))} to {u(max(measured))}" if measured else "–"


def top_eigenvalue() -> str:
    """Cost of the largest eigenvalue at a true error of 1e-3: every seed, and the median over all networks."""
    networks = read("eigenvalues_cpu")["results"]["networks"]
    tools = list(dict.fromkeys(row["tool"] for network in networks for row in network["runs"] if "cost_u" in row))
    rows = []
    for tool in sorted(tools, key=lambda tool: (tool not in (RESIDUAL, CERTIFICATE), tool != RESIDUAL)):
        costs = [cheapest(network, tool) for network in networks]
        reached = [cost for per_network in costs for cost in per_network if cost is not None]
        middle = statistics.median(reached) if reached else None
        rows.append([tool, *(", ".join(map(u, per_network)) for per_network in costs), u(middle)])
    return table(["u", *(network["network"] for network in networks), "median"], rows)


def cheapest(network: dict[str, Any], tool: str) -> list[float | None]:
    """Per seed, the lowest cost at which a tool got below 1e-3, of all the settings it was tried at.

    With the certificate it is the cost of *knowing* so.
    """
    error, limit = ("stated_error", 1.001 * TRUE_ERROR) if tool == CERTIFICATE else ("true_error", TRUE_ERROR)
    tried = [row for row in network["runs"] if row["tool"] == tool]
    costs = [
        min((row["cost_u"] for row in tried if row["instance"] == i and row[error] < limit), default=None)
        for i in sorted({row["instance"] for row in tried})
    ]
    return sorted(costs, key=lambda cost: (cost is None, cost))


def products_of_eigenvalue() -> str:
    """Products that were taken when asked for 1e-3, next to those that an oracle takes from the same start."""
    networks = read("eigenvalues_cpu")["results"]["networks"]

    def counts(network: dict[str, Any], tool: str) -> str:
        rows = [r for r in network["runs"] if r["tool"] == tool and r.get("asked", TRUE_ERROR) == TRUE_ERROR]
        return ", ".join(str(row["products"]) for row in rows)

    names = {"oracle": "an oracle, which knows the answer", RESIDUAL: "`confidence=None`", CERTIFICATE: "certificate"}
    rows = [[names[tool], *(counts(network, tool) for network in networks)] for tool in names]
    return table(["products, by seed", *(network["network"] for network in networks)], rows)


def false_stops() -> str:
    """How often `converged` was said too early."""
    rows = [
        ["none" if r["confidence"] is None else f"{r['confidence']:g}", f"{r['asked']:g}", str(r["runs"]),
         str(r["false_stops"]), f"{r['median_products']:g}"]
        for r in read("eigenvalues_cpu")["results"]["false_stops"]
    ]  # fmt: skip
    return table(["`confidence`", "`tol`", "runs", "false `converged`", "products (median)"], rows)


def layer_tables() -> str:
    """Cost of `conditioning` where a layer has more inputs than rows."""
    results = devices("layer_tables")
    by_network: dict[str, list[str]] = {}
    for rows in results.values():
        for row in rows:
            cells = [seconds(row["seconds"]), u(row["u"]), gib(row["peak_GiB"])]
            by_network.setdefault(row["network"], []).extend(cells)
    head = [f"{what}, {device}" for device in results for what in ("time", "u", "memory")]
    return table(["`conditioning`", *head], [[name, *cells] for name, cells in by_network.items()])


def large_networks() -> str:
    """Seconds, u and peak memory on large networks."""
    rows = []
    for device, networks in devices("large").items():
        for network in networks:
            tokens = len(network["shape"]) == 1
            batch = (
                f"{network['examples']} × {network['shape'][0]} tokens" if tokens else f"batch of {network['examples']}"
            )
            for task, cost in network["measurements"].items():
                name = task if task == "forward+backward" else f"`{task}`"
                first = [network["network"], f"{device}, {batch}", name]
                if "error" in cost:
                    rows.append([*first, cost["error"]])
                    continue
                early = cost.get("first_rows_u")
                rows.append([*first, seconds(cost["seconds"]), u(cost["u"]), gib(cost["peak_GiB"]), u(early)])
    return table(["network", "where", "measurement", "time", "u", "peak memory", "first rows after, u"], rows)


def diagnoses() -> str:
    """Price of `diagnose` by default, and of its parts."""
    rows = []
    for device, networks in devices("diagnoses").items():
        for row in networks:
            parts = ", ".join(f"{part['part'].replace('_', ' ')} {u(part['u'])}" for part in row["parts"])
            cells = [seconds(row["seconds"]), u(row["u"]), u(row["first_rows_u"]), parts]
            rows.append([row["network"], device, *cells])
    return table(["`diagnose`", "where", "time", "u", "first rows after, u", "its parts, u"], rows)


def diagnose_cost() -> str:
    """Time and u of `diagnose` by default on one CPU core, and when the layer table is there."""
    rows = [
        [row["network"], seconds(row["seconds"]), u(row["u"]), u(row["first_rows_u"])]
        for row in read("diagnoses_cpu")["results"]
    ]
    return table(["`diagnose`, one CPU core", "time", "u", "layer table after, u"], rows)


def prices() -> str:
    """What every call says that it will take, and what it takes, network by network."""
    rows = read("prices_cpu")["results"]
    calls = list(dict.fromkeys(row["call"] for row in rows))
    by_network: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_network.setdefault(row["network"], {})[row["call"]] = row
    body = [
        [
            network,
            seconds(next(iter(of.values()))["step_seconds"]),
            *(f"{u(of[call]['planned_u'])} → {u(of[call]['u'])} ({seconds(of[call]['seconds'])})" for call in calls),
        ]
        for network, of in by_network.items()
    ]
    return table(["u, planned → taken", "a step", *(f"`{call}`" for call in calls)], body)
