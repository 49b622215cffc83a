"""Runs everything with a dummy recorder and checks what the cases claim; writes verified.json beside itself.

nice env OMP_NUM_THREADS=1 python verify.py
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
sys.dont_write_bytecode = True
import data  # noqa: E402
import program  # noqa: E402

_spec = importlib.util.spec_from_file_location("exam_all", HERE / "all.py")
assert _spec and _spec.loader
_spec.loader.exec_module(importlib.util.module_from_spec(_spec))


class Dummy:
    """Keeps losses, held-out losses, the last batch and, where asked, what became of the parameters in each step."""

    def __init__(self, model: nn.Module, optimizer: Any, loss: Any, look: str) -> None:
        self.model, self.optimizer, self.loss, self.look = model, optimizer, loss, look
        self.losses: list[float] = []
        self.held: list[tuple[int, float]] = []
        self.same: list[bool] = []
        self.seen: list[Any] = []
        self.before = self._state() if look == "moves" else None
        self.batch: Any = None

    def _state(self) -> dict[str, torch.Tensor]:
        return {k: p.detach().clone() for k, p in self.model.named_parameters()}

    def step(self, value: float, batch: Any) -> None:
        assert isinstance(value, float)
        inputs, _ = batch
        self.same.append(self.batch is not None and torch.equal(inputs, self.batch[0]))
        self.losses.append(value)
        self.batch = batch
        if self.before is not None:
            now = self._state()
            self.seen.append({k: ((now[k] != self.before[k]).sum().item(), now[k].numel()) for k in now})
            self.before = now
        if self.look == "dead" and len(self.losses) % 10 == 0:
            self.seen.append((len(self.losses), dead(self.model, self.batch[0])))

    def validation(self, value: float) -> None:
        assert isinstance(value, float)
        self.held.append((len(self.losses), value))


def dead(model: nn.Module, inputs: torch.Tensor) -> list[float]:
    """Of every ReLU, module or function, the part of its units that are silent on the whole batch."""
    found: list[float] = []

    relu, torch_relu = F.relu, torch.relu

    def logged(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        out = torch.clamp(x, min=0)
        units = out.flatten(2).amax(2) if out.dim() > 2 else out
        found.append(units.le(0).all(0).float().mean().item())
        return out

    F.relu = torch.relu = logged  # type: ignore[assignment]
    with torch.no_grad():
        state = torch.get_rng_state()
        model(inputs)
        torch.set_rng_state(state)
    F.relu, torch.relu = relu, torch_relu
    return found


def play(case: Any, look: str = "", **options: bool) -> tuple[list[Dummy], float, tuple[float, float]]:
    made: list[Dummy] = []

    def record(model: nn.Module, optimizer: Any, loss: Any) -> Dummy:
        made.append(Dummy(model, optimizer, loss, look))
        return made[-1]

    data.SCORES.pop(case.name, None)
    start = time.perf_counter(), time.process_time()
    case.run(record, **options)
    return made, data.SCORES[case.name], (time.perf_counter() - start[0], time.process_time() - start[1])


def times(seconds: tuple[float, float], steps: int) -> dict[str, float]:
    """The machine is shared: the seconds of the core are what a run costs, those of the clock what it took."""
    wall, core = seconds
    return {"seconds": round(core, 2), "wall seconds": round(wall, 2), "ms per step": round(1000 * core / steps, 2)}


def finite(x: float) -> float:
    return x if math.isfinite(x) else math.inf


# how many times worse the held-out score must be with the fault
WORSE = {
    "mixup_branch_without_zero_grad": 2.0, "second_optimizer_never_cleared": 1.5, "range_test_kills_units": 3.0,
    "decay_in_percent": 2.5, "schedule_ended_early": 1.2, "ported_batchnorm_momentum": 10.0, "too_few_images": 2.0,
    "one_batch_not_rescaled": 1.5, "bfloat16_weights": 1.5, "loss_scale_collapses": 1.4, "gamma_of_ten": 2.0,
    "evaluation_freezes_gru": 1.4, "crowd_labels_enter": 1.5, "exhausted_iterator": 3.0,
}
EVENTS = {
    "mixup_branch_without_zero_grad", "second_optimizer_never_cleared", "range_test_kills_units", "decay_in_percent",
    "one_batch_not_rescaled", "gamma_of_ten", "evaluation_freezes_gru", "crowd_labels_enter", "exhausted_iterator",
    "loss_scale_collapses",
}
LOOK = {
    "range_test_kills_units": "dead", "schedule_ended_early": "moves", "bfloat16_weights": "moves",
    "loss_scale_collapses": "moves", "evaluation_freezes_gru": "moves",
}
# the score that a healthy run must reach (see each run for what it measures; guessing gives far more)
REACHED = {
    "warmup_cosine_gpt": 0.45, "one_cycle_cnn": 0.1, "warm_restarts": 0.6, "step_decay_dropout": 0.1,
    "edge_of_stability": 0.1, "curriculum_gets_harder": 1.1, "batches_of_two": 0.5, "heavy_tails": 0.1,
    "rare_positives": 0.6, "several_losses": 0.28, "sparse_rows": 0.6, "accumulation": 0.25, "always_clipped": 0.05,
    "interpolation": 0.005, "reinforce": -0.7, "dqn": -0.7, "fine_tuning": 0.6, "frozen_backbone": 0.4, "lbfgs": 0.05,
    "gan_ring": 0.15, "vae_annealed": 0.7, "contrastive": 0.6,
}


def check_fault(case: program.RunFault) -> dict[str, Any]:
    plain, _, seconds = play(case)
    name, s = case.name, case.step
    bad, bad_score, _ = play(case, LOOK.get(name, ""))
    good, good_score, _ = play(case, LOOK.get(name, ""), mistake=False)
    b, a = bad[-1], good[-1]
    checks: dict[str, bool] = {}
    facts: dict[str, Any] = {"score with the fault": bad_score, "score without": good_score}
    checks["steps as declared"] = all(len(d.losses) == case.steps for d in bad)
    checks["repeats exactly"] = [repr(x) for d in plain for x in d.losses] == [repr(x) for d in bad for x in d.losses]
    checks["clearly worse"] = finite(bad_score) > WORSE[name] * good_score
    if name in EVENTS:
        parted = next(i for i, (x, y) in enumerate(zip(b.losses, a.losses, strict=True)) if x != y)
        facts["losses part at"] = parted
        checks["same run before the step, another after it"] = s <= parted <= s + 2
    before, after = b.losses[max(0, s - 100) : s], b.losses[s : s + 100]
    if before and after:
        facts["mean loss 100 before / 100 after"] = [statistics.fmean(before), statistics.fmean(after)]
    facts["mean loss of the last 100, with and without"] = [statistics.fmean(d.losses[-100:]) for d in (b, a)]
    if name == "range_test_kills_units":
        early = [v for n, v in b.seen if n == s][0]
        late = [v for n, v in b.seen if n == s + 50][0]
        facts["dead units per ReLU at 800 / 850 / end"] = [early, late, b.seen[-1][1]]
        facts["the same without"] = a.seen[-1][1]
        checks["units die"] = max(late) > 0.5 > 4 * max(early) and max(a.seen[-1][1]) < 0.2
    if name == "schedule_ended_early":
        moved = [i for i, step in enumerate(b.seen) if any(n for n, _ in step.values())]
        facts["last step that moved a weight"] = moved[-1]
        checks["rate is zero from the step on"] = moved[-1] == s - 1
    if name == "loss_scale_collapses":
        moved = [i for i, step in enumerate(b.seen) if any(n for n, _ in step.values())]
        facts["last step that moved a weight"] = moved[-1]
        checks["no weight moves from the step on, the loss is finite"] = moved[-1] == s - 1 and all(
            map(math.isfinite, b.losses)
        )
    if name == "evaluation_freezes_gru":
        moved = [i for i, step in enumerate(b.seen) if any(n for k, (n, _) in step.items() if "gru" in k)]
        rest = [i for i, step in enumerate(b.seen) if any(n for k, (n, _) in step.items() if "gru" not in k)]
        checks["the GRU stops at the step, the rest goes on"] = moved[-1] == s - 1 and rest[-1] == case.steps - 1
    if name == "bfloat16_weights":
        lost = [1 - sum(n for n, _ in d.seen[i].values()) / sum(m for _, m in d.seen[i].values()) for d in (b, a)
                for i in range(100, 2000)]
        facts["weights left as they were in a step, with and without"] = [
            statistics.fmean(lost[:1900]), statistics.fmean(lost[1900:])
        ]
        checks["updates are lost"] = statistics.fmean(lost[:1900]) > 0.9 and statistics.fmean(lost[1900:]) < 0.1
    if name == "ported_batchnorm_momentum":
        gap = []
        for d in (b, a):
            with torch.no_grad():
                x, y = d.batch
                gap.append([d.loss(d.model.train(mode)(x), y).item() for mode in (True, False)])
        facts["loss in train / eval mode, with and without"] = gap
        checks["only eval mode is bad"] = gap[0][1] > 20 * gap[0][0] and gap[1][1] < 3 * gap[1][0] + 0.05
        checks["training itself does not differ"] = b.losses == a.losses
    if name == "too_few_images":
        low = min(b.held, key=lambda p: p[1])
        facts["lowest held-out loss"] = low
        checks["held-out loss lowest at the step, then up by half"] = low[0] == s and b.held[-1][1] > 1.5 * low[1]
        low = min(a.held, key=lambda p: p[1])
        checks["not so with enough images"] = a.held[-1][1] < 1.05 * low[1]
    if name == "one_batch_not_rescaled":
        facts["loss of the step"] = b.losses[s]
        checks["spike"] = b.losses[s] > 20 * statistics.median(before)
        checks["damage stays"] = statistics.fmean(b.losses[-100:]) > 1.5 * statistics.fmean(a.losses[-100:])
    if name == "exhausted_iterator":
        checks["same batch after the first pass, never before"] = all(b.same[s + 1 :]) and not any(b.same[: s + 1])
    if name == "crowd_labels_enter":
        checks["another level that stays"] = (
            statistics.fmean(after) > 1.8 * statistics.fmean(before)
            and statistics.fmean(b.losses[-300:]) > 1.8 * statistics.fmean(before)
        )
    if name == "second_optimizer_never_cleared":
        checks["the autoencoder is not touched"] = bad[0].losses == good[0].losses
    return {
        "kind": "fault", "what": case.what, "rules": case.rules, "layers": case.layers, "step": s, "steps": case.steps,
        **times(seconds, case.steps), "facts": facts,
        "checks": checks,
    }


def check_healthy(case: program.HealthyRun) -> dict[str, Any]:
    norms: list[tuple[float, float]] = []
    clip = nn.utils.clip_grad_norm_

    def logged(parameters: Any, max_norm: float, *rest: Any, **options: Any) -> torch.Tensor:
        norm = clip(parameters, max_norm, *rest, **options)
        norms.append((float(norm), max_norm))
        return norm

    first, score, seconds = play(case)
    nn.utils.clip_grad_norm_ = logged
    again, _, _ = play(case)
    nn.utils.clip_grad_norm_ = clip
    checks: dict[str, bool] = {}
    facts: dict[str, Any] = {"score": score, "needed": REACHED[case.name]}
    facts.update({k: v for k, v in data.SCORES.items() if k.startswith(case.name + " ")})
    checks["steps as declared"] = all(len(d.losses) == case.steps for d in first)
    checks["repeats exactly"] = [d.losses for d in first] == [d.losses for d in again]
    checks["finite"] = all(math.isfinite(x) for d in first for x in d.losses) and all(
        p.isfinite().all().item() for d in first for p in d.model.parameters()
    )
    checks["learns"] = score <= REACHED[case.name]
    silent = [x for d in first for x in dead(d.model, d.batch[0])]
    if silent:
        facts["units silent on the last batch, per ReLU"] = [round(x, 2) for x in silent]
    checks["few dead units"] = all(x < 0.35 for x in silent)
    facts["mean loss of the first / last 100"] = [
        [statistics.fmean(d.losses[:100]), statistics.fmean(d.losses[-100:])] for d in first
    ]
    for d in first:
        if d.held:
            values = [v for _, v in d.held]
            facts["held-out loss: lowest, last"] = [min(values), values[-1]]
            checks["held-out loss ends at its lowest"] = values[-1] <= 1.06 * min(values)
        gap = [m for m in d.model.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
        if gap and case.name != "frozen_backbone":
            with torch.no_grad():
                x, y = d.batch
                train, evaluate = (d.loss(d.model.train(mode)(x), y).item() for mode in (True, False))
            facts["last batch in train / eval mode"] = [train, evaluate]
            checks["train and eval mode agree"] = evaluate < 1.5 * train + 0.1
    if case.name == "edge_of_stability":
        v = first[0].losses[500:]
        facts["part of the steps after 500 that raise the loss"] = sum(q > p for p, q in zip(v, v[1:])) / len(v)
        checks["at the edge"] = facts["part of the steps after 500 that raise the loss"] > 0.2
    if case.name == "always_clipped":
        facts["steps clipped"] = sum(n > m for n, m in norms) / len(norms)
        checks["always clipped"] = facts["steps clipped"] > 0.95
    if case.name == "gan_ring":
        checks["all clouds"] = data.SCORES["gan_ring clouds"] == 8
    if case.name == "vae_annealed":
        checks["no collapse"] = data.SCORES["vae_annealed used"] >= 4
    return {
        "kind": "healthy", "what": case.what, "steps": case.steps, **times(seconds, case.steps), "facts": facts, "checks": checks,
    }


def main() -> int:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    only = sys.argv[1:]
    report: dict[str, Any] = {}
    for cases, check in ((program.FAULTS, check_fault), (program.HEALTHY, check_healthy)):
        for name, case in cases.items():
            if only and name not in only:
                continue
            report[name] = result = check(case)  # type: ignore[operator]
            wrong = [k for k, ok in result["checks"].items() if not ok]
            print(f"{name}: {result['seconds']} s, {result['facts']} {'WRONG ' + str(wrong) if wrong else 'ok'}", flush=True)
    bad = [n for n, r in report.items() if not all(r["checks"].values())]
    summary = {
        "torch": torch.__version__, "faults": len(program.FAULTS), "healthy": len(program.HEALTHY), "failed": bad,
        "seconds of all runs once": round(sum(r["seconds"] for r in report.values()), 1),
    }
    print(json.dumps(summary))
    if not only:
        (HERE / "verified.json").write_text(json.dumps({"summary": summary, "cases": report}, indent=1) + "\n")
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(main())
