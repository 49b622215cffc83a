"""Run the benchmarks and write them to benchmarks/results/ (`make bench`; under 15 minutes on two cores).

python -m benchmarks                            # everything, compared with the peers, CPU, one thread
python -m benchmarks --quick                    # two minutes: fewer rounds, one seed, nothing large
python -m benchmarks --only growth products     # some parts
python -m benchmarks --device cuda --out out    # needs torch and numpy alone
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.diagnoses import cases, diagnoses
from benchmarks.eigenvalues import false_stops, top_eigenvalue
from benchmarks.growth import growth, slopes
from benchmarks.large import large
from benchmarks.layer_tables import layer_tables
from benchmarks.networks import networks
from benchmarks.prices import prices
from benchmarks.probes import probes
from benchmarks.products import products
from benchmarks.recording import recording
from benchmarks.timing import environment
from benchmarks.training_steps import training_steps

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, one seed, nothing large")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = [
        part for part in PARTS if (part in options.only if options.only else part != "large" or not options.quick)
    ]

    def run(part: str) -> None:
        print(f"[{chosen.index(part) + 1}/{len(chosen)}] {part}", flush=True)
        begin = time.perf_counter()
        results = PARTS[part](options.device, options.quick)
        path = options.out / f"{part}_{options.device}.json"
        path.write_text(json.dumps({"environment": environment(options.device), "results": results}, indent=1) + "\n")
        print(f"{part}: {time.perf_counter() - begin:.0f} s, in {path}", flush=True)

    is_whole = not options.only and not options.quick and options.device == "cpu"
    if not is_whole:
        for part in chosen:
            run(part)
        return
    run("training_steps")  # alone: its ratios are the closest
    here = ("layer_tables", "eigenvalues")
    there = [part for part in chosen if part not in ("training_steps", *here)]
    command = [sys.executable, "-m", "benchmarks", "--out", str(options.out), "--only", *there]
    with subprocess.Popen(command) as second:  # on the second core
        for part in here:
            run(part)
    if second.returncode:
        raise SystemExit(second.returncode)


def _training_steps(device: str, quick: bool) -> Any:
    return training_steps(device, 5 if quick else 30)


def _products(device: str, quick: bool) -> Any:
    chosen = networks(device)[:1] if quick else networks(device)
    return [products(network, device, rounds=3 if quick else 9) for network in chosen]


def _eigenvalues(device: str, quick: bool) -> Any:
    seeds = 1 if quick else 3
    instances = list(zip(*(networks(device, seed)[: 1 if quick else None] for seed in range(seeds)), strict=True))
    return {
        "networks": [
            {
                "network": same[0].name,
                "runs": [row for seed, one in enumerate(same) for row in top_eigenvalue(one, seed, device)],
            }
            for same in instances
        ],
        "false_stops": [] if device != "cpu" else false_stops(30 if quick else 300),
    }


def _probes(device: str, quick: bool) -> Any:
    deep, _, residual, _ = networks(device)
    return [probes(network, device, 3 if quick else 5) for network in ([deep] if quick else [deep, residual])]


PARTS: dict[str, Callable[[str, bool], Any]] = {
    "training_steps": _training_steps,
    "large": lambda device, quick: large(device),
    "layer_tables": lambda device, quick: layer_tables(device, 3 if quick else 9),
    "products": _products,
    "eigenvalues": _eigenvalues,
    "diagnoses": lambda device, quick: diagnoses(cases(device, 200 if quick else 1000), device),
    "prices": prices,
    "growth": lambda device, quick: {"axes": slopes(device, 1)} if quick else growth(device, 5),
    "probes": _probes,
    "recording": lambda device, quick: recording(device, 100 if quick else 500),
}


if __name__ == "__main__":
    main()
