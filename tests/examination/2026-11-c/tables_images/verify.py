"""Train everything; write verified.json. Arguments: names to verify (again) only; the others' results are kept."""

import json
import os
import sys
import time

import torch

torch.set_num_threads(1)
import all as _  # noqa
from program import FAULTS, SOUND


def run(build, steps):
    p = build()
    first = p.scored()
    t = time.process_time()
    p.train(steps)
    ms = (time.process_time() - t) / steps * 1000
    n = sum(q.numel() for q in p.model.parameters())
    return first, p.scored(), ms, n


def main(only):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "verified.json")
    out, bad = {"faults": {}, "sound": {}}, []
    if only and os.path.exists(path):
        out = json.load(open(path))
    for f in FAULTS.values():
        if only and f.name not in only:
            continue
        seeds = []
        for seed in ("0", "1"):
            os.environ["EXAM_SEED"] = seed
            a0, a, ms, n = run(lambda: f.build(True), f.steps)
            b0, b, ms2, _ = run(lambda: f.build(False), f.steps)
            seeds.append(dict(faulty_start=a0, faulty=a, repaired_start=b0, repaired=b, ms=ms, ms_repaired=ms2, params=n))
        fails = all(s["faulty"] - s["faulty_start"] < 0.25 * (s["repaired"] - s["repaired_start"]) for s in seeds)
        ok = all(s["repaired"] - s["faulty"] >= 0.1 and s["repaired"] >= 0.7 for s in seeds)
        out["faults"][f.name] = dict(seeds=seeds, fails=fails, declared=f.fails, ok=ok and fails == f.fails)
        if not (ok and fails == f.fails):
            bad.append(f.name)
        print(f"{f.name:34s} {'ok ' if ok else 'BAD'} fails {fails!s:5} {'' if fails == f.fails else '(declared ' + str(f.fails) + ')'} "
              + " | ".join(f"{s['faulty_start']:.2f}>{s['faulty']:.3f} {s['repaired_start']:.2f}>{s['repaired']:.3f} {s['ms']:.1f}/{s['ms_repaired']:.1f}ms" for s in seeds)
              + f" {seeds[0]['params']}", flush=True)
    for s in SOUND.values():
        if only and s.name not in only:
            continue
        vals = []
        for seed in ("0", "1"):
            os.environ["EXAM_SEED"] = seed
            vals.append(run(s.build, s.steps))
        ok = all(v[1] >= s.least for v in vals)
        out["sound"][s.name] = dict(start=[v[0] for v in vals], score=[v[1] for v in vals], least=s.least, ms=[v[2] for v in vals], params=vals[0][3], ok=ok)
        if not ok:
            bad.append(s.name)
        print(f"S {s.name:34s} {'ok ' if ok else 'BAD'} least {s.least} " + " | ".join(f"{v[0]:.2f}>{v[1]:.3f} {v[2]:.1f}ms" for v in vals) + f" {vals[0][3]}", flush=True)
    os.environ["EXAM_SEED"] = "0"
    out["faults"] = {n: out["faults"][n] for n in FAULTS if n in out["faults"]}
    out["sound"] = {n: out["sound"][n] for n in SOUND if n in out["sound"]}
    out["bad"] = [n for part in ("faults", "sound") for n, r in out[part].items() if not r["ok"]]
    json.dump(out, open(path, "w"), indent=1)
    print("bad:", bad)


main(sys.argv[1:])
