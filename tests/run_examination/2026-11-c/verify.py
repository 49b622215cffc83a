"""Train every case with a recorder that only listens, check what the case claims, write verified.json.

A fault is trained twice, with and without its mistake (`broken=False`), and the two are compared.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import sys
import time
from pathlib import Path

import torch
from torch import nn

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from program import FAULTS, HEALTHY  # noqa: E402  (before `all`, which puts the folder above in front)

importlib.import_module("all")


class Listener:
    """Keeps losses, and norms of gradients and weights at every fifth step."""

    def __init__(self, model, optimizer, loss):
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.values, self.validations, self.gradients, self.weights, self.batches = [], [], [], [], []
        self.begin = [p.detach().clone() for p in model.parameters()]
        self.middle = None

    def step(self, value, batch):
        self.values.append(float(value.detach() if isinstance(value, torch.Tensor) else value))
        assert len(batch) == 2
        self.batches.append(float(batch[0].double().sum()))
        self.batch = batch
        if len(self.values) % 5 == 0:
            grads = [p.grad.coalesce().values() if p.grad.is_sparse else p.grad for p in self.model.parameters() if p.grad is not None]
            self.gradients.append(math.sqrt(sum(float(g.float().pow(2).sum()) for g in grads)))
            self.weights.append(math.sqrt(sum(float(p.detach().float().pow(2).sum()) for p in self.model.parameters())))
        if len(self.values) == self.mark:
            self.middle = {k: p.detach().clone() for k, p in self.model.named_parameters()}

    def validation(self, value):
        self.validations.append((len(self.values), float(value)))

    def mean(self, a, b=None):
        part = self.values[a:b]
        return sum(part) / len(part)

    def val(self, a, b=10**9):
        part = [v for s, v in self.validations if a <= s <= b]
        return sum(part) / len(part)

    def grad(self, a, b=10**9):
        part = self.gradients[a // 5 : b // 5]
        return sum(part) / len(part)

    def moved(self, prefix):
        return max(float((p.detach() - self.middle[k]).abs().max()) for k, p in self.model.named_parameters()
                   if k.startswith(prefix))  # fmt: skip


def play(run, mark=-1, **options):
    listeners = []

    def record(model, optimizer, loss):
        listeners.append(Listener(model, optimizer, loss))
        listeners[-1].mark = mark
        return listeners[-1]

    start = time.perf_counter()
    run(record, **options)
    return listeners, time.perf_counter() - start


def dead(model, layer, x):
    """Share of units of a ReLU that are off on all of x."""
    kept = []
    handle = dict(model.named_modules())[layer].register_forward_hook(lambda m, i, o: kept.append(o))
    with torch.no_grad():
        model(x)
    handle.remove()
    return float((kept[0] <= 0).all(0).float().mean())


def normed_gap(r):
    """How far running variances and means are from those of the last batch, in its standard deviations."""
    gaps, handles = [], []

    def look(module, inputs):
        mean, std = inputs[0].mean((0, 2, 3)), inputs[0].std((0, 2, 3))
        gaps.append(float((((module.running_mean - mean) / std).abs() + (module.running_var.sqrt() / std).log().abs()).mean()))

    for module in r.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            handles.append(module.register_forward_pre_hook(look))
    momenta = [m.momentum for m in r.model.modules() if isinstance(m, nn.BatchNorm2d)]
    r.model.train()
    for m in r.model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = 0.0
    with torch.no_grad():
        r.model(r.batch[0])
    for m, value in zip([m for m in r.model.modules() if isinstance(m, nn.BatchNorm2d)], momenta, strict=True):
        m.momentum = value
    for handle in handles:
        handle.remove()
    return max(gaps)


def spread(r):
    """Mean standard deviation of the means of latents over examples."""
    with torch.no_grad():
        return float(r.model(r.batch[0])[1].std(0).mean())


# For each fault: (with, without) -> {claim: (holds, numbers)}
def f_zero(b, c):
    return {
        "loss rises": (b.mean(-100) > 5 * c.mean(-100), [b.mean(-100), c.mean(-100)]),
        "gradients grow": (b.grad(1000) > 20 * c.grad(1000), [b.grad(1000), c.grad(1000)]),
        "soon": (b.mean(560, 700) > 1.3 * c.mean(560, 700), [b.mean(560, 700), c.mean(560, 700)]),
    }


def f_warm(b, c):
    return {
        "falls before": (b.mean(200, 260) < 0.3 * b.mean(0, 20), [b.mean(200, 260), b.mean(0, 20)]),
        "rises": (b.mean(320, 420) > 1.5 * b.mean(200, 260), [b.mean(320, 420)]),
        "ends at chance, without it well": (b.mean(-100) > 2.2 and c.mean(-100) < 0.3, [b.mean(-100), c.mean(-100)]),
        "ReLUs dead": (dead(b.model, "8", b.batch[0]) > 0.9, [dead(b.model, "8", b.batch[0]), dead(c.model, "8", c.batch[0])]),
    }


def f_clip(b, c):
    return {
        "healthy before": (b.mean(650, 700) < 0.15 * b.mean(0, 20), [b.mean(650, 700)]),
        "explodes within 10 steps": (max(b.values[700:712]) > 100 * b.mean(650, 700), [max(b.values[700:712])]),
        "without it not": (c.mean(-100) < c.mean(600, 700), [c.mean(-100)]),
        "non-finite": (not math.isfinite(b.values[-1]), [b.values[-1]]),
    }


def f_dead(b, c):
    return {
        "units dead": (dead(b.model, "act", b.batch[0]) > 0.9 and dead(c.model, "act", c.batch[0]) < 0.2,
                       [dead(b.model, "act", b.batch[0]), dead(c.model, "act", c.batch[0])]),
        "loss": (b.mean(-100) > 50 * c.mean(-100), [b.mean(-100), c.mean(-100)]),
        "healthy before": (b.mean(550, 600) < 0.02, [b.mean(550, 600)]),
    }  # fmt: skip


def f_thaw(b, c):
    return {
        "backbone moves": (b.moved("backbone") > 0.01 and c.moved("backbone") == 0, [b.moved("backbone"), c.moved("backbone")]),
        "did not before": (all(torch.equal(p, q) for (k, p), q in zip(b.middle.items(), b.begin, strict=True) if "backbone" in k), []),
        "validation rises, training falls": (b.val(1500) > 1.2 * b.val(600, 700) and b.mean(-100) < 0.4 * b.mean(600, 700),
                                             [b.val(600, 700), b.val(1500), b.mean(600, 700), b.mean(-100)]),
        "without it not": (c.val(1500) < 1.1 * c.val(600, 700), [c.val(600, 700), c.val(1500)]),
    }  # fmt: skip


def f_bn(b, c):
    return {
        "validation": (b.val(1000) > 4 * c.val(1000), [b.val(1000), c.val(1000)]),
        "training the same": (abs(b.mean(-100) / c.mean(-100) - 1) < 0.05, [b.mean(-100), c.mean(-100)]),
        "statistics": (normed_gap(b) > 2 * normed_gap(c), [normed_gap(b), normed_gap(c)]),
        "soon": (b.val(450, 800) > 2 * c.val(450, 800), [b.val(450, 800), c.val(450, 800)]),
    }


def f_augment(b, c):
    return {
        "validation rises": (b.val(1400) > 2 * b.val(400, 500), [b.val(400, 500), b.val(1400)]),
        "training falls": (b.mean(-100) < 0.1 * b.mean(400, 500), [b.mean(400, 500), b.mean(-100)]),
        "without it not": (c.val(1400) < 1.05 * c.val(400, 500), [c.val(1400)]),
    }


def f_raw(b, c):
    return {
        "spike": (b.values[800] > 100 * b.mean(750, 800), [b.values[800], b.mean(750, 800)]),
        "after it above": (b.mean(801, 811) > 1.5 * c.mean(801, 811), [b.mean(801, 811), c.mean(801, 811)]),
        "recovers": (b.mean(-200) < 1.2 * c.mean(-200), [b.mean(-200), c.mean(-200)]),
    }


def f_decay(b, c):
    return {
        "weights": (b.weights[-1] < 0.05 * b.weights[900 // 5 - 2], [b.weights[900 // 5 - 2], b.weights[-1]]),
        "loss at chance": (b.mean(-100) > 1.3 and c.mean(-100) < 0.05, [b.mean(-100), c.mean(-100)]),
        "healthy before": (b.mean(850, 900) < 0.05, [b.mean(850, 900)]),
    }


def f_scale(b, c):
    return {
        "gradients are 0": (max(b.gradients[-150:]) == 0 and sum(g > 0 for g in c.gradients[-150:]) > 140, [max(b.gradients[-150:]), sum(g > 0 for g in c.gradients[-150:])]),
        "loss stalls": (b.mean(-200) > 1.3 * c.mean(-200), [b.mean(-200), c.mean(-200), b.mean(660, 720)]),
        "begins there": (b.grad(600, 700) > 0 and min(b.gradients[146:162]) < 0.7 * b.grad(600, 700), [b.grad(600, 700), *b.gradients[144:160]]),
    }  # fmt: skip


def f_labels(b, c):
    return {
        "jumps": (b.values[800] > 20 * b.mean(750, 800), [b.mean(750, 800), b.values[800]]),
        "stays": (b.mean(-100) > 1.5 and c.mean(-100) < 0.05, [b.mean(-100), c.mean(-100)]),
    }


def f_first(b, c):
    return {
        "one batch": (len(set(b.batches[600:])) == 1 and len(set(c.batches[600:700])) > 90, []),
        "validation": (b.val(1000) > 1.3 * c.val(1000), [b.val(1000), c.val(1000), b.val(500, 600)]),
        "training": (b.mean(-100) < 0.01 * c.mean(-100), [b.mean(-100), c.mean(-100)]),
    }


def f_plateau(b, c):
    return {
        "rate": (b.optimizer.param_groups[0]["lr"] < 1e-5 < c.optimizer.param_groups[0]["lr"],
                 [b.optimizer.param_groups[0]["lr"], c.optimizer.param_groups[0]["lr"]]),
        "stalls": (b.val(1700) > 0.9 * b.val(500, 500) and b.val(1700) > 1.6 * c.val(1700), [b.val(500, 500), b.val(1700), c.val(1700)]),
        "fell before": (b.val(500, 500) < 0.6 * b.val(100, 100), [b.val(100, 100)]),
    }  # fmt: skip


def f_embed(b, c):
    held = {id(p) for g in b.optimizer.param_groups for p in g["params"]}
    fresh = b.model.embed.weight
    return {
        "not in the optimizer": (id(fresh) not in held, []),
        "does not move": (torch.equal(fresh[:400], b.middle["embed.weight"]), []),
        "moved in the other": (not torch.equal(c.model.embed.weight[:400], c.middle["embed.weight"]), []),
        "gradient piles up": (float(fresh.grad.norm()) > 5 * float(c.model.embed.weight.grad.norm()), [float(fresh.grad.norm())]),
        "loss": (b.mean(-100) > 1.8 * c.mean(-100) and b.mean(700, 705) > 3 * b.mean(650, 700),
                 [b.mean(650, 700), b.mean(700, 705), b.mean(-100), c.mean(-100)]),
    }  # fmt: skip


def f_vae(b, c):
    x = b.batch[0]
    with torch.no_grad():
        errors = [float(((r.model(x)[0] - x) ** 2).mean()) for r in (b, c)]
    return {
        "posterior collapses": (spread(b) < 0.1 * spread(c), [spread(b), spread(c)]),
        "reconstruction": (errors[0] > 2 * errors[1], errors),
        "level of the loss": (b.mean(-100) < 0.1 * b.mean(600, 700), [b.mean(600, 700), b.mean(-100)]),
    }


CLAIMS = {
    "tabular_zero_grad_in_warmup_block": f_zero,
    "cnn_warmup_to_unscaled_peak": f_warm,
    "lstm_forecaster_second_loop_without_clipping": f_clip,
    "sparse_autoencoder_units_die": f_dead,
    "transfer_backbone_thawed_by_plot": f_thaw,
    "cnn_batchnorm_momentum_decays_to_nothing": f_bn,
    "signals_augmentation_ends": f_augment,
    "sensor_gru_one_file_in_raw_counts": f_raw,
    "transformer_weight_decay_in_percent": f_decay,
    "denoiser_loss_scale_collapses": f_scale,
    "gru_second_shard_labels_shuffled_apart": f_labels,
    "set_transformer_always_first_batch": f_first,
    "residual_mlp_plateau_mode_max": f_plateau,
    "bag_of_words_grown_embedding_not_in_optimizer": f_embed,
    "vae_reconstruction_becomes_a_mean": f_vae,
}

# For each healthy run: the last losses over the first ones must be below this.
RATIOS = {
    "table_regression_adam": 0.1,
    "cnn_batchnorm_sgd_cosine": 0.3,
    "lstm_gated_sum": 0.02,
    "transformer_next_token": 0.45,
    "conv_autoencoder": 0.02,
    "gru_sentences_rmsprop": 0.1,
    "wide_and_deep_clicks": 0.6,
    "one_cycle_cnn": 0.1,
    "warm_restarts_mlp": 0.25,
    "tiny_batches_heavy_tails": 0.4,
    "curriculum_of_delays": 0.01,
    "gradient_accumulation": 0.1,
    "always_clipped_transformer": 0.3,
    "ema_evaluated": 0.3,
    "staged_unfreezing": 0.15,
    "lbfgs_full_batch": 0.05,
    "sparse_matrix_factorisation": 0.1,
    "loss_begins_at_noise_floor": 0.98,
    "strongly_regularized": 0.4,
    "tied_language_model_multistep": 0.6,
    "annealed_vae": 0.6,
}


def h_gan(rs):
    with torch.no_grad():
        points = rs[1].model(torch.randn(4000, 4))
    radius = points.norm(dim=1)
    sectors = torch.histc(torch.atan2(points[:, 1], points[:, 0]), 12, -math.pi, math.pi) / len(points)
    return {
        "radius": (abs(float(radius.mean()) - 1.4) < 0.2, [float(radius.mean()), float(radius.std())]),
        "covers the ring": (float(sectors.min()) > 0.025, [float(sectors.min()), float(sectors.max())]),
        "balanced": (0.5 < rs[0].mean(-200) < 0.75, [rs[0].mean(-200), rs[1].mean(-200)]),
    }


def h_floor(rs):
    x = torch.randn(20000, 20)
    signal = 0.15 * x[:, :1] - 0.1 * x[:, 1:2] + 0.1 * torch.tanh(2 * x[:, 2:3])
    with torch.no_grad():
        error = float(((rs[0].model(x) - signal) ** 2).mean())
    return {"signal found": (error < 0.6 * float(signal.var()), [error, float(signal.var())])}


def h_vae(rs):
    x = rs[0].batch[0]
    with torch.no_grad():
        error = float(((rs[0].model(x)[0] - x) ** 2).mean())
    return {"reconstructs": (error < 0.4 * float(x.var()), [error, float(x.var())])}


MORE = {"gan_ring": h_gan, "loss_begins_at_noise_floor": h_floor, "annealed_vae": h_vae}


def main():
    names = set(re.findall(r"^ (\S+)", (HERE.parent / "rules.txt").read_text(), re.M)) if (HERE.parent / "rules.txt").exists() else None
    results, good = {}, {"faults": 0, "healthy": 0}
    for case in FAULTS.values():
        (b,), seconds = play(case.run, mark=case.step)
        (c,), _ = play(case.run, mark=case.step, broken=False)
        claims = {"steps": (len(b.values) == len(c.values) == case.steps and 1000 <= case.steps <= 2000, [len(b.values)])}
        claims["rules exist"] = (names is None or set(case.rules) <= names, list(case.rules))
        modules = set(dict(b.model.named_modules()))
        claims["layers exist"] = (set(case.layers) <= modules, list(case.layers))
        claims["finite before"] = (all(map(math.isfinite, b.values[: case.step])), [])
        before = max(0, case.step - 100)
        claims["falls before"] = (b.mean(before, case.step) < 0.8 * b.mean(0, 10), [b.mean(0, 10), b.mean(before, case.step)])
        claims.update(CLAIMS[case.name](b, c))
        note(results, good, "faults", case, claims, seconds)
    for case in HEALTHY.values():
        rs, seconds = play(case.run)
        claims = {"steps": (all(len(r.values) == case.steps for r in rs) and 1000 <= case.steps <= 2000, [case.steps])}
        claims["finite"] = (all(math.isfinite(v) for r in rs for v in r.values), [])
        if case.name in RATIOS:
            # Batches of four with heavy tails: a hundred losses are too few for a mean; held-out loss is checked below.
            first, last = rs[0].mean(0, 15), rs[0].mean(-500 if case.name == "tiny_batches_heavy_tails" else -100)
            claims["loss falls"] = (last < RATIOS[case.name] * first, [first, last])
            values = [v for _, v in rs[0].validations]
            if values and case.name != "loss_begins_at_noise_floor":
                claims["validation does not rise"] = (values[-1] <= 1.1 * min(values) and values[-1] < values[0], [values[0], min(values), values[-1]])
        if case.name in MORE:
            claims.update(MORE[case.name](rs))
        note(results, good, "healthy", case, claims, seconds)
    ok = all(r["ok"] for r in results.values())
    (HERE / "verified.json").write_text(json.dumps({"ok": ok, **good, "cases": results}, indent=1) + "\n")
    print(good, "all ok" if ok else "NOT ok")
    return 0 if ok else 1


def note(results, good, kind, case, claims, seconds):
    ok = all(bool(holds) for holds, _ in claims.values())
    good[kind] += ok
    rounded = {k: {"ok": bool(holds), "numbers": [float(f"{n:.4g}") if isinstance(n, float) and math.isfinite(n) else str(n) if isinstance(n, float) else n for n in numbers]}
               for k, (holds, numbers) in claims.items()}  # fmt: skip
    results[case.name] = {"kind": kind, "ok": ok, "seconds": round(seconds, 1), "ms": round(1000 * seconds / case.steps, 2), "claims": rounded}
    print("ok  " if ok else "FAIL", case.name, f"{seconds:.1f} s, {1000 * seconds / case.steps:.2f} ms", flush=True)
    for k, v in rounded.items():
        if not v["ok"]:
            print("    ", k, v["numbers"])


if __name__ == "__main__":
    sys.exit(main())
