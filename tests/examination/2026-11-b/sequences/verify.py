"""Train every case and write verified.json. `python verify.py [names...]` runs those only and keeps the others' results."""

import json
import os
import sys
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import all as cases  # noqa: F401
from program import FAULTS, SOUND


def run(program, steps):
    start = program.scored()
    begin = time.time()
    program.train(steps)
    ms = 1000 * (time.time() - begin) / steps
    return start, program.scored(), ms, sum(p.numel() for p in program.model.parameters())


def save(report, path):
    with open(path, "w") as file:
        json.dump(report, file, indent=1)


def main(names):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "verified.json")
    report = {"faults": {}, "sound": {}}
    if names and os.path.exists(path):  # the others as they were
        with open(path) as file:
            report = json.load(file)
    bad = []
    for name, f in FAULTS.items():
        if names and name not in names:
            continue
        rows, ratios, ok = [], [], True
        for s in range(2):
            os.environ["EXAM_SEED"] = str(s)
            f0, f1, fms, _ = run(f.build(True), f.steps)
            r0, r1, rms, size = run(f.build(False), f.steps)
            rows.append({"seed": s, "faulty": [round(f0, 3), round(f1, 3)], "repaired": [round(r0, 3), round(r1, 3)], "ms": round(max(fms, rms), 1), "parameters": size})
            ratios.append((f1 - f0) / max(r1 - r0, 1e-6))
            ok &= r1 - f1 >= 0.1 and r1 >= 0.75
        fails = all(r < 0.25 for r in ratios)
        mixed = len({r < 0.25 for r in ratios}) > 1
        good = ok and fails == f.fails
        report["faults"][name] = {"runs": rows, "rules": f.rules, "layers": f.layers, "steps": f.steps, "fails": fails, "verified": ok}
        save(report, path)
        print(("ok " if good else "BAD"), name, "fails" if fails else "-", "MIXED" if mixed else "", [round(r, 2) for r in ratios], [(r["faulty"], r["repaired"], r["ms"]) for r in rows], size, flush=True)
        if not good:
            bad.append(name)
    for name, c in SOUND.items():
        if names and name not in names:
            continue
        rows, ok = [], True
        for s in range(1):
            os.environ["EXAM_SEED"] = str(s)
            a, b, ms, size = run(c.build(), c.steps)
            rows.append({"seed": s, "score": [round(a, 3), round(b, 3)], "ms": round(ms, 1), "parameters": size})
            ok &= b >= c.least
        report["sound"][name] = {"runs": rows, "trained": c.trained, "steps": c.steps, "least": c.least, "verified": ok}
        save(report, path)
        print(("ok " if ok else "BAD"), name, c.least, c.trained, [(r["score"], r["ms"]) for r in rows], size, flush=True)
        if not ok:
            bad.append(name)
    os.environ["EXAM_SEED"] = "0"
    print(len(FAULTS), "faults", len(SOUND), "sound; bad:", bad)
    report["faults"] = {n: report["faults"][n] for n in FAULTS if n in report["faults"]}
    report["sound"] = {n: report["sound"][n] for n in SOUND if n in report["sound"]}
    with open(path, "w") as file:
        json.dump(report, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1:])
