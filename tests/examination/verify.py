"""Train the cases of a part of an examination on two seeds, and write what they score to its `verified.json`.

python tests/examination/verify.py 2026-11-f/sequences            # all cases, which must show what they say
python tests/examination/verify.py 2026-11-f/sequences NAME …     # those whose names hold one of these; writes nothing
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import program  # noqa: E402  # the cases import it by this name

SEEDS = (0, 1)
GAP, SCORE, GAIN = 0.1, 0.6, 0.1
"""How far a fault pulls the score down, and what a repaired or sound form scores and gains, at least."""
OUTRIGHT = 0.25
"""Share of the repaired form's gain below which training fails outright."""
MOST_STEPS, MOST_MILLISECONDS = 600, 10.0


def trained(build: Callable[[], program.Program], steps: int, seed: int) -> tuple[float, float, float]:
    """The score before and after, and the milliseconds of one core per step."""
    torch.manual_seed(seed)
    one = build()
    before, began = one.scored(), time.process_time()
    one.train(steps)
    took = 1000 * (time.process_time() - began) / steps
    return round(before, 4), round(one.scored(), 4), round(took, 2)


def check_fault(case: program.Fault) -> tuple[dict[str, Any], list[str]]:
    """The scores of both forms, and what is wrong with the case."""
    faulty = [trained(lambda: case.build(True), case.steps, seed) for seed in SEEDS]
    repaired = [trained(lambda: case.build(False), case.steps, seed) for seed in SEEDS]
    gains = [[after - before for before, after, _ in form] for form in (faulty, repaired)]
    share = sum(gains[0]) / max(1e-9, sum(gains[1]))
    row = {
        "seeds": [
            {"seed": seed, "faulty": f[1], "faulty_before": f[0], "repaired": r[1], "repaired_before": r[0]}
            for seed, f, r in zip(SEEDS, faulty, repaired, strict=True)
        ],
        "ms_per_step": max(took for *_, took in faulty + repaired),
        "share_of_gain": round(share, 3),
        "fails": case.fails,
    }
    complaints = []
    if min(r[1] - f[1] for f, r in zip(faulty, repaired, strict=True)) < GAP:
        complaints.append("the fault does not show")
    if min(after for _, after, _ in repaired) < SCORE or min(gains[1]) < GAIN:
        complaints.append("the repaired form does not do its task")
    if (share < OUTRIGHT) != case.fails:
        complaints.append(f"fails should be {share < OUTRIGHT}")
    return row, complaints


def check_sound(case: program.Sound) -> tuple[dict[str, Any], list[str]]:
    """The scores, and what is wrong with the case."""
    runs = [trained(case.build, case.steps, seed) for seed in SEEDS]
    row = {
        "seeds": [{"seed": seed, "before": run[0], "after": run[1]} for seed, run in zip(SEEDS, runs, strict=True)],
        "least": case.least,
        "ms_per_step": max(took for *_, took in runs),
    }
    is_low = min(after for _, after, _ in runs) < case.least or case.least < SCORE
    return row, ["it does not do its task"] if is_low else []


def main() -> None:
    """Check the cases of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="with an all.py")
    parser.add_argument("names", nargs="*", help="parts of names of the only cases to check")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = next(path for path in (HERE / options.folder, Path(options.folder)) if path.is_dir())
    sys.path.insert(0, str(folder.resolve()))
    importlib.import_module("all")
    result: dict[str, dict[str, Any]] = {"faults": {}, "sound": {}}
    for kind, cases, check in (("faults", program.FAULTS, check_fault), ("sound", program.SOUND, check_sound)):
        for name, case in cases.items():
            if options.names and not any(part in name for part in options.names):
                continue
            row, complaints = check(case)  # type: ignore[operator]
            complaints += ["too many steps"] * (case.steps > MOST_STEPS)
            complaints += ["too slow"] * (row["ms_per_step"] > MOST_MILLISECONDS)
            result[kind][name] = row
            print(f"{'✗' if complaints else '✓'} {name}: {row['seeds']} {'; '.join(complaints)}", flush=True)
    if not options.names:
        (folder / "verified.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
