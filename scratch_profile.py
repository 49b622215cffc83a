"""Where recording's time goes on a GPU."""
import collections, json, os, random, sys, time, gc
import torch
from benchmarks import recording as R
from benchmarks.recorders import PLAIN, WELLCOND, Wellcond, installed
from benchmarks.timing import Clock
from wellcond.recording import allowance as A
log = None
for name in ("charge","spend","start_up","pass_pause"):
    real = getattr(A.Allowance, name)
    def patched(self, *args, _real=real, _name=name):
        if log is not None:
            key = args[0] if _name == "charge" else _name
            sec = args[1] if _name == "charge" else args[0]
            log[key][0] += 1; log[key][1] += sec
        return _real(self, *args)
    setattr(A.Allowance, name, patched)
device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 500
class Tiny(Wellcond):
    pass
tools = {PLAIN: installed(device)[PLAIN], WELLCOND: Wellcond}
for case in R.CASES:
    arms = {}
    log = collections.defaultdict(lambda: [0, 0.0])
    for name, tool in tools.items():
        arms[name] = R._arm(tool, case, device, "eager")
        arms[name].start = Clock(device).wall(lambda arm=arms[name]: next(arm.steps))
    first = {k: tuple(v) for k, v in log.items()}
    log.clear()
    order = random.Random(0)
    slow = []
    with R._short_pauses():
        for turn in range(steps // 5):
            for name in order.sample(list(arms), len(arms)):
                before = arms[name].wall
                was = {k: v[1] for k, v in log.items()}
                R._take_turn(arms[name], device)
                if name == WELLCOND:
                    d = {k: round(1e3 * (v[1] - was.get(k, 0)), 2) for k, v in log.items() if v[1] - was.get(k, 0) > 1e-4}
                    slow.append((round(1e3 * (arms[name].wall - before), 2), turn * 5, d))
    during = {a: arms[a].wall for a in arms}
    for a in arms.values():
        R._timed(a, device, a.tool.close)
    rec = arms[WELLCOND].tool.recorder
    print(case.name, "ratio before close", during[WELLCOND] / during[PLAIN], "after", arms[WELLCOND].wall / arms[PLAIN].wall,
          "close s", arms[WELLCOND].wall - during[WELLCOND], "plain s", during[PLAIN], "share", rec._turns._allowance.share)
    print("  first step", {k: (n, round(1e3 * s, 1)) for k, (n, s) in first.items()})
    print("  during ms", {k: (n, round(1e3 * s, 1)) for k, (n, s) in log.items()})
    base = sorted(s for s, _, _ in slow)[len(slow) // 4]
    slow.sort(key=lambda x: -x[0])
    print("  quartile of turns", base, "median", sorted(s for s, _, _ in slow)[len(slow) // 2], "plain/turn", 1e3 * during[PLAIN] / (steps // 5))
    for s in slow[:25]: print("   ", s)
