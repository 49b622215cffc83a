"""`python -m stress`: named cases, random cases and rates of bounds; exit status 1 if anything failed."""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it deterministic mode refuses every product

import torch

from stress.bounds import rates, run_bound
from stress.named import NAMED, run_named
from stress.suite import SEEDS_APART, Report, run_case, run_random, run_rates

COMMAND = "python -m stress"


def main() -> int:
    options = arguments()
    torch.set_num_threads(1)
    if options.case is not None:
        text, outcomes = run_case(options.case, options.device)
        print(text)
        for outcome in outcomes:
            print(f"  {outcome.kind:9}{outcome.check}  {outcome.text}")
        return int(any(o.is_failure for o in outcomes))
    if options.bound is not None:
        print(*map(str, rates(run_bound(options.bound, options.device))), sep="\n")
        return 0
    started, report = time.time(), Report()
    for name in options.only or NAMED:
        for outcome in run_named(name, options.device):
            report.add(outcome, f"named case {name}", f"{COMMAND} --only {name} --device {options.device}")
    if not options.only:
        first = range(options.seed, options.seed + options.seeds)
        for count, run in ((options.cases, run_random), (options.bounds, run_rates)):
            run([s * SEEDS_APART + i for s in first for i in range(count)], options.device, options.jobs, report)
    print(report)
    for refusing in report.refusing():
        report.failures.append(refusing)
        print(refusing)
    print(f"{len(report.failures)} failures, {time.time() - started:.0f} s")
    return int(bool(report.failures))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="random cases for each seed")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--bounds", type=int, default=2000, help="runs of stated bounds for each seed")
    parser.add_argument("--only", nargs="+", choices=list(NAMED), metavar="NAME", help="named cases alone")
    parser.add_argument("--bound", type=int, help="repeat the one run of this seed")
    parser.add_argument("--case", type=int, help="repeat the one random case of this seed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
