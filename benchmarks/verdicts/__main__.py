"""What `diagnose`, torchmortem and torch-audit say of real faults and of healthy networks.

python -m benchmarks.verdicts                        # all cases and controls, all tools
python -m benchmarks.verdicts --quick                # some of each, `diagnose` alone
python -m benchmarks.verdicts --only relu-logit GPT  # those whose names begin so
python -m benchmarks.verdicts --show relu-logit      # the whole verdict on one
python -m benchmarks.verdicts --tools wellcond       # one tool anew; what the others said stays
python -m benchmarks.verdicts --verify               # train both forms of every case, and every control
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

import wellcond as wc
from benchmarks.timing import environment
from benchmarks.verdicts.case import Program
from benchmarks.verdicts.cases import CASES
from benchmarks.verdicts.controls import CONTROLS, FAMILIES
from benchmarks.verdicts.judge import GOALS, judge_case, judge_control, shares
from benchmarks.verdicts.tools import TOOLS
from benchmarks.verdicts.verify import verify_case, verify_control

Task = Callable[[str], dict[str, Any]]
RESULTS = Path(__file__).parents[1] / "results"
QUICK_CASES = ("iris-sigmoid", "houses-raw", "log-of-logits", "broadcast-targets", "constant-weights", "strong-decay",
               "branch-not-added")  # fmt: skip
QUICK_CONTROLS = ("MLP, SGD, initialization", "logistic regression, Nesterov, trained",
                  "embedding bag, Adagrad, initialization", "regression, SGD, half-trained",
                  "houses-raw, repaired")  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases and controls whose names begin so")
    parser.add_argument("--quick", action="store_true", help="some cases and controls, diagnose alone")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--show", metavar="NAME", help="print the diagnosis of one case or control")
    parser.add_argument("--verify", action="store_true", help="train both forms of every case, and every control")
    parser.add_argument("--out", type=Path, help="folder for the results; else benchmarks/results, of a whole run")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.show:
        show(options.show)
        return
    wanted = [*QUICK_CASES, *QUICK_CONTROLS] if options.quick else options.only
    cases, controls = (_chosen(names, wanted) for names in (CASES, CONTROLS))
    if not cases and not controls:
        parser.error(
            f"no case or control begins with {' or '.join(wanted)}; there are {', '.join([*CASES, *CONTROLS])}."
        )
    path = _path(options.out, is_whole=not wanted, stem="verdicts_verified" if options.verify else "verdicts_cpu")
    if options.verify:
        families = [name for name in controls if name in FAMILIES]
        results = run(options.jobs, cases, verify_case, families, verify_control)
    else:
        tools = ["wellcond"] if options.quick else options.tools
        judges = (functools.partial(judge, tools=tools) for judge in (judge_case, judge_control))
        results = _with_shares(run(options.jobs, cases, next(judges), controls, next(judges)), path)
    if path is not None:
        about = environment("cpu") | {"time": "wall seconds of one thread"}
        path.write_text(json.dumps({"environment": about, "results": results}, indent=1) + "\n")
        print(f"in {path}", flush=True)


def _path(out: Path | None, is_whole: bool, stem: str) -> Path | None:
    folder = out or (RESULTS if is_whole else None)
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{stem}.json"


def _with_shares(results: dict[str, Any], path: Path | None) -> dict[str, Any]:
    """The shares of every tool; what tools that were not run this time have said before stays."""
    if path is not None and path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))["results"]
        for kind in ("cases", "controls"):
            known = {row["name"]: row for row in before[kind]}
            results[kind] = [known.get(row["name"], {}) | row for row in results[kind]]
    rows = results["cases"] + results["controls"]
    tools = [tool for tool in TOOLS if all(tool in row for row in rows)]
    results["shares"] = {tool: shares(results["cases"], results["controls"], tool) for tool in tools}
    for tool, share in results["shares"].items():
        print(f"{tool:12s} {summary(share)}", flush=True)
    return results


def _chosen(names: dict[str, Any], wanted: Sequence[str] | None) -> list[str]:
    return [name for name in names if wanted is None or name in wanted or name.startswith(tuple(wanted))]


def run(jobs: int, cases: Sequence[str], on_case: Task, controls: Sequence[str], on_control: Task) -> dict[str, Any]:
    """Rows of all cases and controls, in their order, printed as they come."""
    tasks = [(on_case, name) for name in cases] + [(on_control, name) for name in controls]

    def finished() -> Iterator[dict[str, Any]]:
        if jobs == 1:
            for task, name in tasks:
                yield task(name)
            return
        with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            for future in as_completed([pool.submit(task, name) for task, name in tasks]):
                yield future.result()

    begin, found = time.perf_counter(), {}
    for row in finished():
        found[row["name"]] = row
        print(
            f"[{len(found)}/{len(tasks)}, {time.perf_counter() - begin:.0f} s] {row['name']}: {line(row)}", flush=True
        )
    return {"cases": [found[name] for name in cases], "controls": [found[name] for name in controls]}


def line(row: dict[str, Any]) -> str:
    """A row in words."""
    if "hurts" in row:
        return f"{row['faulty']} → {row['repaired']}{'' if row['hurts'] else ', not clearly worse'}"
    if "trains" in row:
        return f"{row['before']} → {row['after']}{'' if row['trains'] else ', does not train'}"
    told = []
    for tool, found in ((tool, row[tool]) for tool in TOOLS if tool in row):
        first = found["findings"][0] if found["findings"] else {"severity": found.get("error", ""), "rule": "nothing"}
        mark = "" if "first" not in found else "✓ " if found["first"] else "(✓) " if found["three"] else "✗ "
        told.append(f"{mark}{tool} {first['severity']} {first['rule']} ({found['seconds']:.1f} s)")
    return "; ".join(told)


def summary(share: dict[str, Any]) -> str:
    """Shares in words, with the goals."""
    parts = [f"{key} {share[key]}/{share['cases']} (goal {goal:.0%})" for key, goal in GOALS.items()]
    return ", ".join(parts) + f"; {share['controls_severe']} of {share['controls']} healthy networks severe"


def show(name: str) -> None:
    """Print what `diagnose` finds, and what was expected."""
    made: Program = CASES[name].build(True) if name in CASES else CONTROLS[name].build()
    found = wc.diagnose(wc.Problem(made.model, made.loss, made.loader), made.optimizer)
    print(found.verdict(), end="\n\n")
    for finding in found.findings:
        print(f"{finding} [{finding.basis}] {finding.evidence}")
        for consequence in finding.consequences:
            print(f"    and so {consequence}")
    if name in CASES:
        print(f"\nexpected: {' or '.join(CASES[name].rules) or 'nothing severe'}, at {CASES[name].layers}")


if __name__ == "__main__":
    main()
