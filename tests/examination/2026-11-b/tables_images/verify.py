"""Train everything; `verify.py` without arguments writes verified.json. With names: only those, merged into it.

The model's seed comes from the environment variable EXAM_SEED: verify.py starts itself once per seed."""

import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
HERE = Path(__file__).parent


def child(names):
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    import torch

    torch.set_num_threads(1)
    import all  # noqa: F401
    from program import FAULTS, SOUND

    for name, f in FAULTS.items():
        if names and name not in names:
            continue
        row = {"kind": "fault", "name": name, "declared": f.fails}
        for key, faulty in (("faulty", True), ("repaired", False)):
            p = f.build(faulty)
            row[key + "_start"] = round(p.scored(), 3)
            t = time.time()
            p.train(f.steps)
            row[key + "_ms"] = round(1000 * (time.time() - t) / f.steps, 1)
            row[key] = round(p.scored(), 3)
            row["parameters"] = sum(q.numel() for q in p.model.parameters())
        print(json.dumps(row), flush=True)
    for name, s in SOUND.items():
        if names and name not in names:
            continue
        p = s.build()
        row = {"kind": "sound", "name": name, "least": s.least, "start": round(p.scored(), 3)}
        t = time.time()
        if s.trained:
            p.train(s.trained)
            row["shown"] = round(p.scored(), 3)
        p.train(s.steps - s.trained)
        row["ms"] = round(1000 * (time.time() - t) / s.steps, 1)
        row["end"] = round(p.scored(), 3)
        row["parameters"] = sum(q.numel() for q in p.model.parameters())
        print(json.dumps(row), flush=True)


def main():
    if os.environ.get("EXAM_CHILD"):
        return child(sys.argv[1:])
    rows = {}
    for seed in ("0", "1"):
        env = dict(os.environ, EXAM_SEED=seed, EXAM_CHILD="1", OMP_NUM_THREADS="1")
        out = subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], env=env, stdout=subprocess.PIPE, text=True)
        for line in out.stdout:
            row = json.loads(line)
            rows.setdefault(row["name"], []).append(row)
            if row["kind"] == "fault":
                gain, best = row["faulty"] - row["repaired_start"], row["repaired"] - row["repaired_start"]
                row["fails"] = gain < best / 4
                row["ok"] = row["repaired"] - row["faulty"] >= 0.1 and row["repaired"] >= 0.7
                print(f'{"" if row["ok"] else "BAD "}{seed} {row["name"]}: {row["faulty_start"]}->{row["faulty"]} | {row["repaired_start"]}->{row["repaired"]} fails={row["fails"]} declared={row["declared"]} {row["faulty_ms"]}/{row["repaired_ms"]} ms {row["parameters"]}', flush=True)
            else:
                row["ok"] = row["end"] >= row["least"]
                print(f'{"" if row["ok"] else "BAD "}{seed} {row["name"]}: {row["start"]}->{row.get("shown")}->{row["end"]} least {row["least"]} {row["ms"]} ms {row["parameters"]}', flush=True)
        out.wait()
    path = HERE / "verified.json"
    kept = json.loads(path.read_text()) if sys.argv[1:] and path.exists() else {}
    path.write_text(json.dumps({**kept, **rows}, indent=1))


main()
