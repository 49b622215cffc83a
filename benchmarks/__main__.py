"""Run the benchmarks and write them to benchmarks/results/ (about 15 minutes on a CPU).

python -m benchmarks                       # against the peers, CPU, one thread
python -m benchmarks --device cuda         # the same table in seconds
python -m benchmarks --only growth         # cost against depth, width and number of examples
python -m benchmarks --only training       # a training step with BNP, beside BatchNorm and plain SGD
python -m benchmarks --only probes         # walks, covariate shift, local Hessians
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.diagnostics import diagnostics
from benchmarks.growth import growth
from benchmarks.networks import networks
from benchmarks.probes import probes
from benchmarks.timing import environment
from benchmarks.training_steps import training_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=("diagnostics", "growth", "probes", "training"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only in (None, "training"):
        steps = training_steps(options.device, 5 * options.rounds)
        _write(options.out / f"training_steps_{options.device}.json", steps, options.device)
    if options.only in (None, "probes"):
        costs = [probes(network, options.device, options.rounds) for network in networks(options.device)]
        _write(options.out / f"probes_{options.device}.json", costs, options.device)
    if options.only in (None, "diagnostics"):
        tables = []
        deep, residual = zip(*(networks(options.device, seed) for seed in range(3)), strict=True)
        for instances in (list(deep), list(residual[:1])):
            tables.append(diagnostics(instances, options.device, options.rounds))
            _show(tables[-1])
        _write(options.out / f"diagnostics_{options.device}.json", tables, options.device)
    if options.only in (None, "growth"):
        _write(options.out / f"growth_{options.device}.json", growth(options.device), options.device)


def _write(path: Path, results: Any, device: str) -> None:
    path.write_text(json.dumps({"environment": environment(device), "results": results}, indent=1) + "\n")
    print(f"wrote {path}")


def _show(table: dict[str, Any]) -> None:
    print(f"\n{table['network']}: {table['parameters']:,} parameters, u = {1e3 * table['u_seconds']:.1f} ms")
    for name, cost in table["cost_u"].items():
        print(f"  {name:34s} {cost:7.2f} u  {1e3 * cost * table['u_seconds']:10.1f} ms")
    for row in table["top_eigenvalue"]:
        asked = f"top eigenvalue {row['instance']}, {row['tool']} asked {row['asked']:g}"
        print(f"  {asked:48s} {row['cost_u']:7.1f} u  true error {row['true_error']:.1e}")
    for row in table["trace"]:
        asked = f"trace to 5 % standard error, {row['tool']}"
        print(f"  {asked:48s} {row['cost_u']:7.1f} u")
    print(f"  peak memory, GiB: {table['peak_memory_GiB']}")


if __name__ == "__main__":
    main()
