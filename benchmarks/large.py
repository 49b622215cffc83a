"""What measurements cost on GPT-2, ViT-B and ResNet-50: seconds, u and peak memory, each network in its own process.

python -m benchmarks.large GPT-2 --examples 4      # one network, one batch size; the result as JSON
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch

import wellcond as wc
from benchmarks.diagnoses import diagnosed, unit_seconds
from benchmarks.large_networks import LARGE
from benchmarks.timing import Clock, peak_memory

EXAMPLES = {"cpu": {"GPT-2": 1, "ViT-B": 1, "ResNet-50": 2}, "cuda": {"GPT-2": 4, "ViT-B": 8, "ResNet-50": 16}}
"""GPT-2's are sequences of 128 tokens. One CPU core takes 1 to 2 s for a pass over so few."""


MOST_U = 40
"""The budget of `max_lr` with its certificate."""


def large(device: str) -> list[dict[str, Any]]:
    """All of them, one after the other."""
    return [in_own_process(name, examples, device) for name, examples in EXAMPLES[device].items()]


def in_own_process(name: str, examples: int, device: str) -> dict[str, Any]:
    """So that peak memory is that of this network alone."""
    command = [sys.executable, "-m", "benchmarks.large", name, "--examples", str(examples), "--device", device]
    finished = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(finished.stdout)


def measured(name: str, examples: int, device: str) -> dict[str, Any]:
    """Every measurement of one network; one that fails says why."""
    source, problem = LARGE[name].problem(examples, device)
    unit = unit_seconds(problem, device)
    row: dict[str, Any] = {"network": name, "source": source, "examples": examples, "shape": LARGE[name].shape,
                           "parameters": problem.size, "u_seconds": unit, "measurements": {}}  # fmt: skip
    memory = peak_memory(lambda: unit_seconds(problem, device, rounds=1), device)
    row["measurements"]["forward+backward"] = {"seconds": unit, "u": 1.0, "peak_GiB": memory}
    for task, measure in MEASUREMENTS.items():
        result: dict[str, Any] = {}

        def run(measure: Measurement = measure, result: dict[str, Any] = result) -> None:
            try:
                result |= measure(problem, unit, device)
            except Exception as error:
                result["error"] = f"{type(error).__name__}: {error}".splitlines()[0]

        result["peak_GiB"] = peak_memory(run, device)
        row["measurements"][task] = result
        text = (
            result.get("error") or f"{result['seconds']:7.1f} s {result['u']:6.1f} u {result['peak_GiB'] or 0:6.2f} GiB"
        )
        print(f"  {name}, {examples} examples, {task}: {text}", file=sys.stderr, flush=True)
    return row


def _conditioning(problem: wc.Problem, unit: float, device: str) -> dict[str, Any]:
    seconds, result = Clock(device)(lambda: wc.conditioning(problem))
    return {"seconds": seconds, "u": seconds / unit, "not_covered": result.not_covered}


def _max_lr(problem: wc.Problem, unit: float, device: str) -> dict[str, Any]:
    seconds, result = Clock(device)(lambda: wc.max_lr(problem, confidence=None))
    return {"seconds": seconds, "u": seconds / unit, "limit": str(result)}


def _certified_max_lr(problem: wc.Problem, unit: float, device: str) -> dict[str, Any]:
    seconds, result = Clock(device)(lambda: wc.max_lr(problem, budget=MOST_U * unit))
    return {"seconds": seconds, "u": seconds / unit, "limit": str(result)}


Measurement = Callable[[wc.Problem, float, str], dict[str, Any]]
MEASUREMENTS: dict[str, Measurement] = {
    "conditioning": _conditioning,
    "diagnose": diagnosed,
    "max_lr, confidence=None": _max_lr,
    "max_lr": _certified_max_lr,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=LARGE)
    parser.add_argument("--examples", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measured(options.network, options.examples, options.device)))


if __name__ == "__main__":
    main()
