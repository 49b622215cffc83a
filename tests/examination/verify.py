"""`python verify.py FOLDER [names]`: trains its cases on two seeds, writes `verified.json`; with names, those only."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch

torch.set_num_threads(1)
HERE = Path(sys.argv[1]).resolve()
sys.path[:0] = [str(HERE), str(Path(__file__).resolve().parent)]

import all  # noqa: E402, F401
from program import FAULTS, SOUND  # noqa: E402

SEEDS = (0, 1)


def run(build, steps: int, seed: int) -> tuple[float, float, float]:
    """Score before, score after, milliseconds of one core a step."""
    torch.manual_seed(seed)
    program = build()
    before = program.scored()
    start = time.process_time()
    program.train(steps)
    took = 1000 * (time.process_time() - start) / steps
    return round(before, 4), round(program.scored(), 4), round(took, 2)


def check_fault(case) -> dict:
    row = {"seeds": []}
    gains = []
    for seed in SEEDS:
        fb, fa, ft = run(lambda: case.build(True), case.steps, seed)
        rb, ra, rt = run(lambda: case.build(False), case.steps, seed)
        row["seeds"].append({"seed": seed, "faulty": fa, "faulty_before": fb, "repaired": ra, "repaired_before": rb})
        row["ms_per_step"] = max(ft, rt, row.get("ms_per_step", 0.0))
        gains.append((fa - fb, ra - rb))
    share = sum(f for f, _ in gains) / max(1e-9, sum(r for _, r in gains))
    row["share_of_gain"] = round(share, 3)
    row["fails"] = case.fails
    problems = []
    if min(s["repaired"] - s["faulty"] for s in row["seeds"]) < 0.1:
        problems.append("gap below 0.1")
    if min(s["repaired"] for s in row["seeds"]) < 0.6 or min(r for _, r in gains) < 0.1:
        problems.append("repaired form does not do its task")
    if (share < 0.25) != case.fails:
        problems.append(f"fails should be {share < 0.25}")
    return row, problems


def check_sound(case) -> dict:
    row = {"seeds": [], "least": case.least}
    for seed in SEEDS:
        before, after, took = run(case.build, case.steps, seed)
        row["seeds"].append({"seed": seed, "before": before, "after": after})
        row["ms_per_step"] = max(took, row.get("ms_per_step", 0.0))
    problems = []
    if min(s["after"] for s in row["seeds"]) < case.least:
        problems.append("below its least")
    if case.least < 0.6:
        problems.append("least is low")
    return row, problems


def main() -> None:
    chosen = sys.argv[2:]
    names = [*FAULTS, *SOUND]
    result: dict = {"faults": {}, "sound": {}}
    start = time.perf_counter()
    bad = 0
    for name in names:
        if chosen and not any(c in name for c in chosen):
            continue
        is_fault = name in FAULTS
        case = FAULTS[name] if is_fault else SOUND[name]
        row, problems = (check_fault if is_fault else check_sound)(case)
        if case.steps > 600:
            problems.append("too many steps")
        if row["ms_per_step"] > 10:
            problems.append("slow")
        if is_fault:
            shown = " ".join(f"{s['faulty']:.2f}({s['faulty_before']:.2f})/{s['repaired']:.2f}" for s in row["seeds"])
            shown += f" share {row['share_of_gain']:.2f}"
        else:
            shown = " ".join(f"{s['before']:.2f}->{s['after']:.2f}" for s in row["seeds"]) + f" least {case.least}"
        bad += bool(problems)
        print(
            f"{'BAD ' if problems else 'ok  '} {name:40s} {shown} {row['ms_per_step']}ms {'; '.join(problems)}",
            flush=True,
        )
        result["faults" if is_fault else "sound"][name] = row
    print(
        f"{len(result['faults'])} faults, {len(result['sound'])} sound, {bad} bad, {time.perf_counter() - start:.0f} s"
    )
    if not chosen:
        result["seconds"] = round(time.perf_counter() - start)
        (HERE / "verified.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
