"""What `diagnose` says of faults and sound set-ups that its rules were not written with.

`unseen.py` was written by somebody who knew neither the rules nor the other cases, and frozen before `diagnose` saw it
(its sha256 is stored with the results). The first result is the one that is reported:

python -m benchmarks.verdicts.examination --jobs 2     # writes benchmarks/results/verdicts_unseen.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import wellcond as wc
from benchmarks.timing import environment
from benchmarks.verdicts import unseen
from benchmarks.verdicts.unseen import CASES, HEALTHY, Case, Program

RESULT = Path(__file__).parents[1] / "results" / "verdicts_unseen.json"


def findings_of(program: Program) -> list[dict[str, str]]:
    """Rule, layer, severity and basis of every finding, worst first; consequences are not listed."""
    diagnosis = wc.diagnose(wc.Problem(program.model, program.loss, program.loader), program.optimizer)
    return [{key: getattr(each, key) for key in ("rule", "layer", "severity", "basis")} for each in diagnosis.findings]


def examine_case(name: str) -> dict[str, Any]:
    """The findings on the faulty form, and whether they are right."""
    torch.set_num_threads(1)
    case = CASES[name]
    row: dict[str, Any] = {"name": name, "what": case.what, "rules": list(case.rules), "layers": list(case.layers)}
    try:
        findings = findings_of(case.build(True, 0))
    except Exception as error:  # counts as silent, and is shown
        findings, row["error"] = [], f"{type(error).__name__}: {error}"[:300]
    right = [finding for finding in findings[:3] if finding["rule"] in case.rules]
    return row | {
        "findings": findings,
        "severe": any(finding["severity"] == "severe" for finding in findings),
        "first": findings[:1] == right[:1] != [],
        "strictly_first": bool(findings) and findings[0]["rule"] == case.rules[0],
        "three": bool(right),
        "layer": bool(right) and is_right_layer(case, right[0]["layer"]),
    }


def is_right_layer(case: Case, layer: str) -> bool:
    """A name among the case's layers also covers what is below it; without any, the whole network is to blame."""
    return (
        layer in ("", *case.layers)
        if not case.layers
        else any(layer == name or layer.startswith(f"{name}.") for name in case.layers)
    )


def examine_healthy(name: str) -> dict[str, Any]:
    """The findings on a sound set-up, of which none is to be severe."""
    torch.set_num_threads(1)
    row: dict[str, Any] = {"name": name}
    try:
        findings = findings_of(HEALTHY[name](0))
    except Exception as error:
        findings, row["error"] = [], f"{type(error).__name__}: {error}"[:300]
    severe, warnings = (sum(finding["severity"] == kind for finding in findings) for kind in ("severe", "warning"))
    return row | {"findings": findings, "severe": severe, "warnings": warnings}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        cases = list(pool.map(examine_case, CASES))
        controls = list(pool.map(examine_healthy, HEALTHY))
    for row in (*cases, *controls):
        first = row["findings"][0] if row["findings"] else {"rule": row.get("error", "nothing"), "severity": ""}
        mark = {True: "✓", False: "✗"}.get(row.get("first"), " ")
        print(f"{mark} {row['name']}: {first['severity']} {first['rule']}  {row.get('rules', '')}")
    count = len(cases)
    for key in ("severe", "first", "strictly_first", "three", "layer"):
        print(f"{key}: {sum(row[key] for row in cases)} of {count}")
    print(f"severe on {sum(bool(row['severe']) for row in controls)} of {len(controls)} sound set-ups")
    digest = hashlib.sha256(Path(unseen.__file__).read_bytes()).hexdigest()
    content = {"environment": environment("cpu") | {"sha256 of unseen.py": digest}}
    content["results"] = {"cases": cases, "controls": controls}
    options.out.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
