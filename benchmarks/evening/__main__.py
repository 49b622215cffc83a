"""Run what is left of the reproduction book at the sources' own settings, for some minutes on one GPU.

python -m benchmarks.evening --list                           # what is done, what is left and its minutes
python -m benchmarks.evening --minutes 9 --out carried        # run; what leaves the machine lies in carried/
python -m benchmarks.evening --take carried                   # at home: add what finished to the committed rows
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.evening.evening import Evening
from benchmarks.evening.packing import take
from benchmarks.evening.plan import Plan
from benchmarks.evening.queue import QUEUE
from wellcond_papers.data.locate import data_root
from wellcond_papers.experiments.reproduce import missing_data

ROWS = Path(__file__).parents[2] / "docs" / "reproduction" / "rows"


def table(plan: Plan, data: Path, device: str) -> str:
    """What is done and left of every entry, in 80 columns."""
    lines = [f"{'experiment':<19} {'scale':<8} {'done':>8} {'minutes':>7}  decides"]
    is_missing = {name: bool(missing_data(name, data)) for entry in plan.entries for name in entry.data()}
    total = 0.0
    for entry in plan.entries:
        left, count = plan.left(entry, device), len(entry.cells())
        minutes = sum(each.seconds for each in left) / 60 / entry.sharing
        absent = [name for name in entry.data() if left and is_missing[name]]
        what = f"needs {', '.join(absent)}" if absent else entry.decides
        lines.append(f"{entry.name:<19} {entry.scale:<8} {f'{count - len(left)}/{count}':>8} {minutes:7.1f}  {what}")
        total += minutes
    lines.append(f"{'together':<37} {total:7.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evening", description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="say what is done and what is left, and run nothing")
    parser.add_argument("--minutes", type=float, default=9.0, help="how long to run, all included (default 9)")
    parser.add_argument("--data", type=Path, help="the folder with the data sets (default $WELLCOND_DATA, else data)")
    parser.add_argument("--out", type=Path, help="pack results into at most 8 files of 16 MiB here, to take them along")
    parser.add_argument("--stays", action="store_true", help="with --out: another evening follows on this machine")
    parser.add_argument("--take", type=Path, metavar="DIR", help="add the packed results of an evening to the rows")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=10, help="cells that run at once (default 10)")
    parser.add_argument("--runs", type=Path, default=Path("runs/evening"), help="cells and checkpoints (%(default)s)")
    parser.add_argument("--rows", type=Path, default=ROWS, help="the rows of all experiments (default: this book's)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="run these experiments alone")
    parser.add_argument("--scale", help="run this scale of them alone, such as gpu")
    options = parser.parse_args()
    entries = [entry for entry in QUEUE if not options.only or entry.name in options.only]
    entries = [entry for entry in entries if options.scale in (None, entry.scale)]
    plan = Plan(entries, options.rows, options.runs.absolute())
    data = data_root(options.data).absolute()
    if options.take:
        archives = sorted(path for path in options.take.iterdir() if path.name.endswith((".tar.gz", ".tgz")))
        print("\n".join(take(archives, plan)))
    elif not options.list:
        if options.device.startswith("cuda") and not torch.cuda.is_available():
            parser.error("torch finds no GPU here; write --device cpu to try it without one.")
        is_kept = options.stays or options.out is None
        Evening(plan, data, options.device, options.workers, options.out, is_kept).run(options.minutes)
    print(table(plan, data, options.device))


if __name__ == "__main__":
    main()
