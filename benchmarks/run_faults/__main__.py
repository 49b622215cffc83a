"""Trains every case, judges it as it goes on and prints what was reported of it.

python -m benchmarks.run_faults             # all
python -m benchmarks.run_faults spike       # cases with a word in their names
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import wellcond as wc
from benchmarks.run_faults import faults, healthy, more_faults, more_healthy, training
from benchmarks.run_faults.rows import RowRecorder
from benchmarks.run_faults.training import FAULTS, HEALTHY, Case
from wellcond.diagnosis.finding import Finding
from wellcond.recording.history import History
from wellcond.recording.judging.course import Course
from wellcond.recording.judging.run_rule import RunEvidence
from wellcond.recording.logbook import FindingWarning
from wellcond.results import Row

MODULES = {module.__name__: module for module in (faults, healthy, more_faults, more_healthy)}
FLUSH = 50
"""Steps between two judgments."""
NEAR = 0.1
"""Share of the true step by which a step may differ."""


def recorded(case: Case, seed: int, folder: Path | None) -> tuple[list[Row], list[str]]:
    """Rows and layers of a case, from a file if it was trained before."""
    code = b"".join(Path(module.__file__ or "").read_bytes() for module in (training, MODULES[case.run.__module__]))
    key = hashlib.sha1(code + f"{case.name} {seed}".encode()).hexdigest()[:16]
    path = None if folder is None else folder / f"{key}.pickle"
    if path is not None and path.exists():
        rows, layers = pickle.loads(path.read_bytes())
        return rows, layers
    torch.manual_seed(seed)
    recorders: list[RowRecorder] = []

    def record(*setup: Any) -> RowRecorder:
        recorders.append(RowRecorder(*setup))
        return recorders[-1]

    case.run(record)
    result = recorders[0].rows, recorders[0].layers
    if path is not None:
        path.write_bytes(pickle.dumps(result))
    return result


def found_by_recorder(case: Case, seed: int, budget: float) -> tuple[Finding, ...]:
    """What a recorder in the loop reports."""
    torch.manual_seed(seed)
    recorders: list[wc.Recorder] = []

    def record(model: nn.Module, optimizer: Optimizer, loss: Any, scaler: Any = None) -> wc.Recorder:
        recorders.append(wc.Recorder(model, optimizer, loss, budget=budget, scaler=scaler))
        return recorders[-1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)
        case.run(record)
        recorders[0].close()
    return recorders[0].findings


def judged(rows: list[Row], layers: list[str], flush: int = FLUSH) -> Course:
    """The course of a run whose rows come in parts."""
    rows = sorted(rows, key=lambda row: row.step or 0)
    course, history, part = Course(), History(), list[Row]()
    for row in rows:
        if part and row.step != part[-1].step and (row.step or 0) % flush == 1:
            history.add(part)
            course.update(RunEvidence(history, part[-1].step or 0, tuple(layers)))
            part = []
        part.append(row)
    history.add(part)
    course.update(RunEvidence(history, part[-1].step or 0, tuple(layers)))
    return course


def flat(findings: tuple[Finding, ...]) -> list[Finding]:
    """Findings with those that they explain."""
    return [each for finding in findings for each in (finding, *flat(finding.consequences))]


def is_right(case: Case, finding: Finding) -> bool:
    """Whether a finding is the case's fault, at its layer and about its step."""
    is_near = case.step is None or abs((finding.step or 0) - case.step) <= max(NEAR * case.step, 10)
    return finding.rule in case.rules and (case.layer is None or finding.layer == case.layer) and is_near


def words(finding: Finding, indent: str = "    ") -> str:
    """A finding in a line, and what it explains below it."""
    until = "" if finding.until is None else f"–{finding.until}"
    line = f"{indent}{finding.severity} {finding.rule} {finding.layer} @{finding.step}{until}: {finding.summary}"
    return "\n".join([line, *(words(each, indent + "    > ") for each in finding.consequences)])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="folder for rows, so that nothing is trained twice")
    parser.add_argument("--flush", type=int, default=FLUSH)
    parser.add_argument("--recorder", action="store_true", help="by wc.Recorder as it is, in its share of the time")
    parser.add_argument("--budget", type=float, default=0.05, help="share of the time, of the recorder")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    right = first = calm = total_faults = total_healthy = 0
    for case in (*FAULTS, *HEALTHY):
        if arguments.word not in case.name:
            continue
        for seed in range(arguments.seeds):
            if arguments.recorder:
                findings = found_by_recorder(case, seed, arguments.budget)
            else:
                findings = judged(*recorded(case, seed, arguments.keep), arguments.flush).findings
            counted = {level: sum(each.severity == level for each in findings) for level in ("severe", "warning")}
            if case.rules:
                total_faults += 1
                is_first = bool(findings) and is_right(case, findings[0])
                is_there = any(is_right(case, each) for each in flat(findings))
                first += is_first
                right += is_there
                verdict = "right" if is_first else "among" if is_there else "WRONG"
                truth = f"{case.rules[0]} {case.layer or ''} @{case.step or '?'}"
            else:
                total_healthy += 1
                is_calm = not counted["severe"] and counted["warning"] <= 1
                calm += is_calm
                verdict = ("calm" if not counted["warning"] else "one") if is_calm else "WRONG"
                truth = f"{counted['severe']} severe, {counted['warning']} warnings"
            print(f"{verdict:6} {case.name} ({seed}): {truth}")
            if arguments.verbose or verdict in ("WRONG", "among", "one"):
                print("\n".join(map(words, findings)))
    print(f"faults: {first} first, {right} reported, of {total_faults}; healthy: {calm} of {total_healthy} calm")


if __name__ == "__main__":
    main()
