"""Whether the lines that a finding prints repair the network: pasted as they are, trained, and compared.

python -m benchmarks.verdicts.repair                    # all cases; writes benchmarks/results/repairs_cpu.json
python -m benchmarks.verdicts.repair --only relu-logit  # those whose names begin so; rows of the others stay
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import wellcond as wc
from benchmarks.timing import environment
from benchmarks.verdicts.case import Case, Program
from benchmarks.verdicts.cases import CASES
from benchmarks.verdicts.repairs import REPAIRS
from benchmarks.verdicts.verify import CLEARLY
from wellcond.diagnosis.finding import Finding, flat
from wellcond.remedies.setup import AFTER_STEP, BEFORE_STEP

RESULT = Path(__file__).parents[1] / "results" / "repairs_cpu.json"
ENOUGH = 0.7
"""Share of what the repaired form scores above the faulty one that the lines must bring to count as a repair."""
ROUNDS = 3
"""Times that somebody pastes: the network that is not repaired is diagnosed again."""


def repair_case(case: Case) -> dict[str, Any]:
    """The rule of the finding that is pasted, its lines, and the scores of the faulty, pasted and repaired forms."""
    row: dict[str, Any] = {"name": case.name, "title": case.title}
    faulty, right = (_trained(case.build(is_faulty), case) for is_faulty in (True, False))
    row |= {"faulty": faulty, "repaired": right, "rounds": []}
    pasted: list[str] = []
    for _ in range(ROUNDS):
        finding = _finding(_built(case, pasted), case.rules if not pasted else ())
        entry: dict[str, Any] = {"rule": "" if finding is None else finding.rule}
        row["rounds"].append(entry)
        if finding is None:
            break
        entry |= {"treatment": finding.treatment, "lines": finding.remedy}
        if not any(line.strip() and not line.lstrip().startswith("#") for line in finding.remedy.splitlines()):
            break  # it says what to look at
        pasted.append(finding.remedy)
        try:
            entry["score"] = _trained(_built(case, pasted), case)
        except Exception as error:
            entry["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            break
        entry["share"] = round((entry["score"] - faulty) / (right - faulty), 3) if right > faulty else 0.0
        if entry["share"] >= ENOUGH:
            break
    first = row["rounds"][0]
    row |= {"rule": first["rule"], "outcome": _outcome(first, right - faulty)}
    row["rounds needed"] = next((i for i, e in enumerate(row["rounds"], 1) if e.get("share", 0) >= ENOUGH), None)
    return row


def _outcome(first: dict[str, Any], gap: float) -> str:
    if gap <= CLEARLY:
        return "no fault"
    if not first["rule"]:
        return "nothing found"
    if "error" in first:
        return "fails"
    if "score" not in first:
        return "says what to look at"
    return "repaired" if first["share"] >= ENOUGH else "not repaired"


def _finding(program: Program, rules: Sequence[str]) -> Finding | None:
    """The first finding of one of these rules, or else the first that is more than a note."""
    torch.manual_seed(0)
    parts = program.model, program.loss, program.loader, program.optimizer, program.scheduler
    diagnosis = _diagnosed(*parts)
    findings = [each for each in diagnosis.findings if each.severity != "note"]
    return next((each for each in flat(findings) if each.rule in rules), next(iter(findings), None))


def _diagnosed(model: Any, loss: Any, loader: Any, optimizer: Any, scheduler: Any) -> wc.Diagnosis:
    """A diagnosis whose lines have the names of these arguments, which are those of the script they are pasted into."""
    return wc.diagnose(wc.Problem(model, loss, loader), optimizer, scheduler=scheduler)


def _built(case: Case, pasted: Sequence[str]) -> Program:
    """The faulty form, with lines pasted below its script and into its training loop."""
    program = case.build(True)
    names: dict[str, Any] = {
        "model": program.model, "loss": program.loss, "loader": program.loader, "optimizer": program.optimizer,
        "scheduler": program.scheduler, "torch": torch, "nn": nn, "wc": wc,
    }  # fmt: skip
    before, after = "", ""
    for lines in pasted:
        once, _, after_step = lines.partition(AFTER_STEP)
        once, _, before_step = once.partition(BEFORE_STEP)
        exec(once, names)
        before, after = f"{before}\n{before_step}", f"{after}\n{after_step}"
    score = program.score
    return replace(
        program,
        **{name: names[name] for name in ("model", "loss", "loader", "optimizer", "scheduler")},
        score=lambda model: score(names.get("predict", model)),
        before_step=lambda: exec(before, names),
        after_step=lambda: exec(after, names),
    )


def _trained(program: Program, case: Case) -> float:
    torch.manual_seed(0)
    program.train(case.steps)
    return round(program.scored(), 4)


def chosen() -> dict[str, Case]:
    """The real faults that training shows, and the small ones."""
    return {name: case for name, case in (CASES | REPAIRS).items() if case.is_shown and case.rules}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose names begin so")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # some of the faults warn
    only = tuple(options.only or [""])
    known = {row["name"]: row for row in json.loads(options.out.read_text())["results"]} if options.out.exists() else {}
    for row in _rows([case for name, case in chosen().items() if name.startswith(only)]):
        known[row["name"]] = row
        rows = [known[name] for name in chosen() if name in known]
        about = environment("cpu") | {"share that counts as repaired": ENOUGH}
        options.out.write_text(json.dumps({"environment": about, "results": rows}, indent=1) + "\n")
    print(summary(rows))


def _rows(cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    for i, case in enumerate(cases, 1):
        begin = time.perf_counter()
        row = repair_case(case)
        last = row["rounds"][-1]
        what = last.get("error", row["outcome"])
        shares = [entry.get("share") for entry in row["rounds"]]
        print(f"[{i}/{len(cases)}, {time.perf_counter() - begin:.0f} s] {row['name']}: {row['rule']} {what} {shares}",
              flush=True)  # fmt: skip
        yield row


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """How many of the networks whose finding prints code are repaired by it."""
    with_code = [row for row in rows if row["outcome"] in ("repaired", "not repaired", "fails")]
    first = sum(row["outcome"] == "repaired" for row in with_code)
    later = sum(row["rounds needed"] is not None for row in with_code)
    return f"repaired by the first finding: {first} of {len(with_code)}; within {ROUNDS} rounds: {later}"


if __name__ == "__main__":
    main()
