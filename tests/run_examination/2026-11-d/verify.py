"""Train every run with a recorder that only listens, and check what it claims."""

import time

import torch


class Listener:
    def __init__(self, model, optimizer, loss):
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.losses, self.grads, self.norms, self.vals, self.marks, self.weights = [], [], [], [], [], {}
        self.batches, self.lrs = {}, []

    def step(self, value, batch):
        assert isinstance(value, float)
        inputs, targets = batch
        s = len(self.losses)
        self.losses.append(value)
        self.lrs.append(self.optimizer.param_groups[0]["lr"])
        with torch.no_grad():
            g = [p.grad for p in self.model.parameters() if p.grad is not None]
            self.grads.append(float(torch.stack(torch._foreach_norm(g)).norm()) if g else 0.0)
            self.marks.append((round(float(inputs.double().sum()), 5), round(float(targets.double().sum()), 5)))
            if s % 50 == 49:
                self.weights[s + 1] = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
                self.batches[s + 1] = (inputs.clone(), targets.clone())

    def validation(self, value):
        assert isinstance(value, float)
        self.vals.append((len(self.losses), value))


def train(run, broken):
    recorders = []

    def record(model, optimizer, loss):
        recorders.append(Listener(model, optimizer, loss))
        return recorders[-1]

    start = time.process_time()
    run(record) if broken is None else run(record, broken=broken)
    used = time.process_time() - start
    return recorders, 1000 * used / sum(len(r.losses) for r in recorders)


def mean(values, first, last):
    part = values[first:last]
    return sum(part) / len(part)


def moved(recorder, prefix, first, last):
    """How far the weights of a module went between two steps, relative to their size."""
    a, b = recorder.weights[first], recorder.weights[last]
    names = [k for k in a if k.startswith(prefix) and a[k].is_floating_point()]
    far = sum(float((a[k] - b[k]).square().sum()) for k in names) ** 0.5
    return far / sum(float(a[k].square().sum()) for k in names) ** 0.5


def size(recorder, step):
    return sum(float(v.square().sum()) for v in recorder.weights[step].values()) ** 0.5


def at(recorder, step):
    recorder.model.load_state_dict(recorder.weights[step])
    return recorder.model


def examples(recorder, last, count=4):
    return torch.cat([recorder.batches[last - 50 * k][0] for k in range(count)])


def dead(recorder, step, x):
    """Share of rectified units that are off on all of some examples."""
    model, off = at(recorder, step), []
    hooks = [
        m.register_forward_hook(lambda _m, _i, out: off.append((out <= 0).all(0)))
        for m in model.modules()
        if isinstance(m, torch.nn.ReLU)
    ]
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return float(torch.cat(off).float().mean())


def same(a, b, upto):
    return a.losses[:upto] == b.losses[:upto]


def held(recorder, first, last):
    values = [v for s, v in recorder.vals if first < s <= last]
    return sum(values) / len(values)


def end(recorder, share=0.1):
    n = len(recorder.losses)
    return mean(recorder.losses, int(n * (1 - share)), n)


def onset(b, h, width=10, far=6.0):
    """First step from which the loss lies clearly outside of what the healthy form shows."""
    n = len(h.losses)
    d = torch.tensor([x - y for x, y in zip(b.losses, h.losses)]).nan_to_num(1e9, 1e9)
    d = d.unfold(0, width, 1).mean(1).abs()
    first = int(n * 0.05)
    noise = torch.tensor(h.losses)[first:].unfold(0, width, 1).mean(1).diff().abs().median() + 1e-9
    out = (d > far * noise).nonzero()
    return int(out[0]) + width if len(out) else None


def spread(recorder, step, x):
    with torch.no_grad():
        return float(at(recorder, step)(x).std(0).mean())


def resumed_without_clearing(b, h):
    return {
        "same before": same(b, h, 400),
        "gradients grow": mean(b.grads, 410, 500) > 2 * mean(h.grads, 410, 500),
        "loss worse": end(b) > 3 * end(h),
    }


def clipping_lost(b, h):
    return {
        "same before": same(b, h, 500),
        "gradients burst": max(b.grads[500:600]) > 5 * max(h.grads[500:600]),
        "loss worse soon": mean(b.losses, 530, 600) > 1.5 * mean(h.losses, 530, 600),
        "loss worse": end(b) > 2 * end(h),
    }


def decay_at_every_step(b, h):
    return {
        "same before": same(b, h, 400),
        "rate gone": b.lrs[520] < 0.01 * h.lrs[520],
        "weights stay": moved(b, "", 550, 1500) < 0.001 < 0.03 < moved(h, "", 550, 1500),
        "loss worse": end(b) > 1.15 * end(h),
        "not at an optimum": mean(b.grads, 1400, 1500) > 0.1,
    }


def embedding_left_out(b, h):
    return {
        "same before": same(b, h, 350),
        "embedding stays": moved(b, "embedding", 350, 1200) == 0 < 0.05 < moved(h, "embedding", 350, 1200),
        "others move": moved(b, "hidden", 350, 1200) > 0.05,
        "loss worse soon": mean(b.losses, 450, 500) > 1.05 * mean(h.losses, 450, 500),
        "loss worse": end(b) > 1.3 * end(h),
    }


def loss_scale_collapses(b, h):
    return {
        "same before": same(b, h, 500),
        "gradients 0": max(b.grads[560:]) == 0 < min(h.grads[560:]),
        "weights stay": moved(b, "", 700, 1200) < 1e-4 < 1e-2 < moved(h, "", 700, 1200),
        "loss worse": end(b) > 1.1 * end(h),
    }


def restart_kills_units(b, h):
    x = examples(b, 750)
    return {
        "same before": same(b, h, 600),
        f"units die {dead(b, 650, x):.2f} {dead(b, 1500, x):.2f}": dead(b, 650, x) > 0.5 and dead(b, 1500, x) > 0.5,
        "units lived": dead(b, 600, x) < 0.2 and dead(h, 650, x) < 0.2,
        "loss worse": end(b) > 1.5 * end(h),
    }


def decay_in_percent(b, h):
    return {
        "same before": same(b, h, 700),
        "weights shrink": size(b, 800) < 0.5 * size(b, 700) and size(h, 800) > 0.9 * size(h, 700),
        "loss worse soon": mean(b.losses, 760, 840) > 2 * mean(h.losses, 760, 840),
        "loss worse": end(b) > 3 * end(h),
    }


def helper_thaws_body(b, h):
    return {
        "same before": same(b, h, 600),
        "body stays": moved(b, "body", 50, 600) == 0 == moved(h, "body", 50, 1300),
        "body moves": moved(b, "body", 600, 650) > 0.005,
        "held-out loss worse": held(b, 900, 1300) > 1.3 * held(h, 900, 1300),
        "training loss better": end(b) < 0.5 * end(h),
    }


def norm_momentum_annealed(b, h):
    k = "1.running_var"
    gaps = {}
    for name, r in (("b", b), ("h", h)):
        model, x = at(r, 450), examples(r, 450, 8)
        y = torch.cat([r.batches[450 - 50 * i][1] for i in range(8)])
        with torch.no_grad():
            model.eval()
            e = float(r.loss(model(x), y))
            model.train()
            gaps[name] = e / float(r.loss(model(x), y))
    return {
        "same training before and after": same(b, h, 1200),
        "statistics stay": bool((b.weights[300][k] == b.weights[1200][k]).all()) and not bool((h.weights[300][k] == h.weights[1200][k]).all()),
        f"modes differ {gaps}": gaps["b"] > 1.5 * gaps["h"],
        "held-out loss worse soon": held(b, 300, 420) > 1.25 * held(h, 300, 420),
        "held-out loss worse": held(b, 420, 1200) > 2 * held(h, 420, 1200),
    }


def few_examples(b, h):
    v = [x for _, x in b.vals]
    smooth = [sum(v[i - 2 : i + 3]) / 5 for i in range(2, len(v) - 2)]
    best = min(range(len(smooth)), key=smooth.__getitem__)
    turn = b.vals[best + 2][0]
    return {
        f"turns at {turn}": abs(turn - 425) <= 50,
        "held-out loss rises": v[-1] > 1.3 * min(v),
        "training loss falls": end(b) < 0.3 * mean(b.losses, 375, 475),
        "healthy form does not": h.vals[-1][1] < 1.05 * min(x for _, x in h.vals),
    }


def loader_made_anew(b, h):
    return {
        "same before": same(b, h, 600),
        "three batches": len(set(b.marks[600:])) == 3,
        "others differ": len(set(h.marks)) == 1300 and len(set(b.marks[:600])) == 600,
        "training loss better": end(b) < 0.1 * end(h),
        "held-out loss worse": held(b, 800, 1300) > 1.15 * held(h, 800, 1300) and b.vals[-1][1] > 1.1 * held(b, 500, 600),
    }


def batch_in_another_unit(b, h):
    return {
        "same before": same(b, h, 700),
        "spike": b.losses[700] > 1000 * max(b.losses[600:700]),
        "recovers": mean(b.losses, 705, 800) > 2 * mean(h.losses, 705, 800) and end(b) < 0.2 * mean(b.losses, 705, 730),
    }


def silent_recording(b, h):
    nan = [s for s, v in enumerate(b.losses) if v != v]
    return {
        "about the same before": max(abs(p - q) for p, q in zip(b.losses[:620], h.losses[:620])) < 0.02,
        "forward finite": b.losses[620] == b.losses[620],
        "NaN after": nan == list(range(621, 1000)),
        "gradient NaN first": b.grads[620] != b.grads[620] and all(v == v for v in b.grads[:620]),
        "encoder is lost, head not": bool(b.weights[650]["encoder.0.weight"].isnan().all()),
    }


def labels_slip_a_row(b, h):
    return {
        "same before": same(b, h, 800),
        "jumps": mean(b.losses, 800, 810) > 2 * mean(b.losses, 700, 800),
        "stays": end(b) > 2 * end(h) and min(b.losses[800:]) > max(b.losses[700:800]),
        "held-out loss worse": held(b, 900, 1400) > 1.5 * held(h, 900, 1400),
    }


def sampler_in_order(b, h):
    single = [len(b.batches[s][1].unique()) == 1 for s in range(650, 1301, 50)]
    return {
        "same before": same(b, h, 600),
        "one class": sum(single) >= 0.8 * len(single) and len(b.batches[600][1].unique()) > 3,
        "held-out loss worse": min(v for s, v in b.vals if s > 620) > 3 * held(h, 600, 1300),
    }


def points_fall_together(b, h):
    x = examples(b, 500, 8)
    return {
        "same before": same(b, h, 500),
        "points lay apart": spread(b, 500, x) > 0.5 and spread(h, 1200, x) > 0.5,
        "points are one": spread(b, 600, x) < 0.3 * spread(b, 500, x) and spread(b, 1200, x) < 0.1 * spread(b, 500, x),
    }


def learns(r):
    n = len(r.losses)
    v = [x for _, x in r.vals]
    done = {"finite": all(x == x and abs(x) < 1e6 for x in r.losses + v + r.grads)}
    if v:
        smooth = [sum(v[i : i + 3]) / 3 for i in range(len(v) - 2)]
        done[f"held-out loss falls {v[0]:.3g} {smooth[-1]:.3g}"] = smooth[-1] < 0.93 * max(v[0], mean(r.losses, 0, 5))
        done[f"and stays down {min(smooth):.3g}"] = smooth[-1] < 1.2 * min(smooth)
    else:
        done["loss falls"] = end(r) < 0.93 * mean(r.losses, 0, n // 20)
    return done


def generator_and_critic(rs):
    with torch.no_grad():
        p = rs[0].model(torch.randn(4000, 4, generator=torch.Generator().manual_seed(5))) - 0.5
    radius = p.norm(dim=1)
    corner = torch.atan2(p[:, 1], p[:, 0])
    share = torch.histc(corner, 8, -torch.pi, torch.pi) / 4000
    return {
        f"radius {radius.mean():.2f} {radius.std():.2f}": abs(float(radius.mean()) - 1.5) < 0.2 and float(radius.std()) < 0.35,
        f"all around {share.min():.3f}": float(share.min()) > 0.04,
        "finite": all(x == x for r in rs for x in r.losses),
    }


def values_of_actions(rs):
    with torch.no_grad():
        q = rs[0].model(torch.eye(12))
    s = torch.arange(12)
    good = torch.where(s < 6, 0, 1)
    right = (q.argmax(1) == good)[[1, 2, 3, 4, 5, 7, 8, 9, 10, 11]]
    late = [mean(rs[0].losses, a, a + 10) / mean(rs[0].losses, a + 100, a + 120) for a in range(120, 1680, 120)]
    return {
        f"policy {int(right.sum())} of 10, value {q.max():.1f}": int(right.sum()) == 10 and float(q.max()) > 4,
        f"jumps {late[0]:.1f}": late[0] > 1.5,
        "finite": all(x == x for x in rs[0].losses),
    }


def main():
    import json
    import sys
    from pathlib import Path

    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here.parent)]
    torch.set_num_threads(1)
    import all as _cases  # noqa: F401
    from program import FAULTS, HEALTHY

    names = sys.argv[1:]
    path = here / "verified.json"
    report = json.loads(path.read_text()) if names and path.exists() else {}
    for name, case in {**FAULTS, **HEALTHY}.items():
        if names and name not in names:
            continue
        if name in FAULTS:
            (broken,), ms = train(case.run, True)
            (sound,), _ = train(case.run, False)
            checks = {f"claim: {k}": ok for k, ok in globals()[name](broken, sound).items()}
            checks |= {f"sound: {k}": ok for k, ok in learns(sound).items()}
            runs = [broken, sound]
            checks["step well inside"] = 0.15 * case.steps <= case.step <= 0.75 * case.steps
            more = {"step": case.step, "loss leaves at": onset(broken, sound), "end": [end(broken), end(sound)]}
        else:
            runs, ms = train(case.run, None)
            checks = globals()[name](runs) if name in globals() else learns(runs[0])
            more = {"end": [end(r) for r in runs]}
        checks["steps"] = all(len(r.losses) == case.steps for r in runs)
        checks = {k: bool(ok) for k, ok in checks.items()}
        report[name] = {"kind": "fault" if name in FAULTS else "healthy", "passed": all(checks.values()), "ms": round(ms, 2), **more, "checks": checks}
        wrong = [k for k, ok in checks.items() if not ok]
        print(name, "ok" if not wrong else f"WRONG {wrong}", f"{ms:.2f} ms", more, flush=True)
        path.write_text(json.dumps(report, indent=1).replace("NaN", "null"))
    stale = [n for n in report if n not in FAULTS and n not in HEALTHY]
    for n in stale:
        del report[n]
    path.write_text(json.dumps(report, indent=1).replace("NaN", "null"))
    kinds = [r["kind"] for r in report.values()]
    good = sum(r["passed"] for r in report.values())
    print(f"{kinds.count('fault')} faults, {kinds.count('healthy')} healthy, {good} passed of {len(kinds)}")


if __name__ == "__main__":
    main()
