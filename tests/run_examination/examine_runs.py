"""Run an examination of recorded runs: what `wc.Recorder` says of loops that its rules were not written with.

python tests/run_examination/examine_runs.py 2026-11-a                 # writes first.json, or second.json after that
python tests/run_examination/examine_runs.py 2026-11-a --only NAME …   # those whose names begin so; writes nothing
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import multiprocessing
import sys
import traceback
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import wellcond as wc

HERE = Path(__file__).parent
WITHIN = 0.1
"""Share of a run's length within which the step of a finding is right."""


def checksums(examination: str) -> dict[str, str]:
    """sha256 of every file with cases, by its name."""
    paths = sorted((HERE / examination).glob("*.py"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def load(examination: str) -> None:
    """Register the cases; examinations have files of the same names, so each needs its own process."""
    torch.set_num_threads(1)
    sys.path[:0] = [str(HERE / examination), str(HERE)]
    importlib.import_module("all")


def names() -> tuple[list[str], list[str]]:
    """Names of the faults and of the healthy runs; call it in a process that has loaded them."""
    program = importlib.import_module("program")
    return list(program.FAULTS), list(program.HEALTHY)


def findings_of(run: Any) -> dict[str, Any]:
    """The findings of all recorders of a run, worst first; an exception counts as none, and is shown."""
    recorders: list[wc.Recorder] = []

    def record(*args: Any, **options: Any) -> wc.Recorder:
        recorders.append(wc.Recorder(*args, **options))
        return recorders[-1]

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(record)
            for each in recorders:
                each.close()
    except Exception as error:
        return {
            "findings": [],
            "error": f"{type(error).__name__}: {error}"[:300],
            "where": traceback.format_exc().replace(f"{HERE.parents[1]}/", "")[-600:],
        }
    findings = sorted((each for one in recorders for each in one.findings), key=lambda each: each.severity != "severe")
    keys = ("rule", "layer", "severity", "basis", "step", "until")
    listed = [
        {key: getattr(each, key) for key in keys} | {"explains": [other.rule for other in each.consequences]}
        for each in findings
    ]
    return {"findings": listed, "problems": [each for one in recorders for each in one.problems]}


def examine_fault(name: str) -> dict[str, Any]:
    """What was found in a run with a fault, and whether rule, layer and step are right."""
    fault = importlib.import_module("program").FAULTS[name]
    row: dict[str, Any] = {"name": name, "what": fault.what, "step": fault.step, "steps": fault.steps}
    row |= {"rules": list(fault.rules), "layers": list(fault.layers), **findings_of(fault.run)}
    findings = row["findings"]
    right = [each for each in findings[:3] if each["rule"] in fault.rules]
    first = right[0] if right else None
    return row | {
        "first": bool(findings) and findings[0]["rule"] in fault.rules,
        "three": first is not None,
        "silent": not any(each["severity"] != "note" for each in findings),
        "layer": first is not None
        and (not fault.layers or any(_is_in(first["layer"], layer) for layer in fault.layers)),
        "in_time": first is not None and abs(first["step"] - fault.step) <= WITHIN * fault.steps,
    }


def _is_in(layer: str, name: str) -> bool:
    return layer == name or layer.startswith(f"{name}.")


def examine_healthy(name: str) -> dict[str, Any]:
    """What was found in a healthy run: nothing severe, and at most one warning."""
    healthy = importlib.import_module("program").HEALTHY[name]
    return {"name": name, "what": healthy.what, "steps": healthy.steps, **findings_of(healthy.run)}


def examine(examination: str, jobs: int, only: Sequence[str] = ()) -> dict[str, list[dict[str, Any]]]:
    """Rows of all runs, in their order, printed as they come."""
    results: dict[str, list[dict[str, Any]]] = {}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), load, (examination,)) as pool:
        for kind, function, every in zip(
            ("faults", "healthy"), (examine_fault, examine_healthy), pool.submit(names).result(), strict=True
        ):
            chosen = [name for name in every if not only or name.startswith(tuple(only))]
            results[kind] = []
            for row in pool.map(function, chosen):
                results[kind].append(row)
                print(line(row), flush=True)
    return results


def line(row: dict[str, Any]) -> str:
    """A row in words."""
    findings = [f"{f['severity']} {f['rule']} {f['layer']}@{f['step']}" for f in row["findings"]]
    words = findings or [row.get("error", "–")]
    marks = "".join("✓" if row[key] else "✗" for key in ("first", "layer", "in_time")) if "first" in row else "   "
    accepted = f"   accepted: {', '.join(row['rules'])} {row['layers']}@{row['step']}" if "rules" in row else ""
    return f"{marks} {row['name']}: {'; '.join(words)}{accepted}"


def shares(results: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[int, int]]:
    """How often each goal was met, of how many."""
    faults, healthy = results["faults"], results["healthy"]
    located = [row for row in faults if row["layers"]]
    counts = {
        kind: [sum(each["severity"] == kind for each in row["findings"]) for row in healthy]
        for kind in ("severe", "warning")
    }
    return {
        "right rule first": (sum(row["first"] for row in faults), len(faults)),
        "right rule in the first three": (sum(row["three"] for row in faults), len(faults)),
        "right layer": (sum(row["layer"] for row in located), len(located)),
        "right step": (sum(row["in_time"] for row in faults), len(faults)),
        "silent": (sum(row["silent"] for row in faults), len(faults)),
        "healthy runs severely accused": (sum(count > 0 for count in counts["severe"]), len(healthy)),
        "healthy runs with more than one warning": (sum(count > 1 for count in counts["warning"]), len(healthy)),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("examination")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    results = examine(options.examination, options.jobs, options.only)
    for goal, (count, of) in shares(results).items():
        print(f"{goal}: {count} of {of}")
    if not options.only:
        folder = HERE / options.examination
        target = folder / ("second.json" if (folder / "first.json").exists() else "first.json")
        versions = {"wellcond": wc.__version__, "torch": torch.__version__}
        content = {"sha256": checksums(options.examination), "versions": versions, **results}
        target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
