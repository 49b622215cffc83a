"""Rules about the optimizer's other settings: weight decay, ε, betas; what is not finite after its steps; dropout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.trial import STRONG_DROPOUT
from wellcond.network.norms import is_norm
from wellcond.results import number
from wellcond.training.optimizers import adds_penalty, is_decoupled, nonzero_lr, shrinking_steps

MUCH_LOWER, LOWER = 0.5, 0.85
"""Of the loss with decay or dropout: what the run without it must reach for it to dominate, or to cost speed."""
SMALL_SCALE = 0.02
"""RMS of a norm's scales, which start at 1 (or at 0 on purpose, at the end of a residual branch)."""
LARGE_EPSILON = 1e-3
"""Adam's ε. It is added to √v, the size of a gradient's entry, some 10⁻⁴ to 10⁻²: a larger one divides by itself."""
FEW_DIGITS = 1e-15
"""ε that float32's rounding of √v, 10⁻⁷ of it, hides: entries with a gradient near zero step as far as any."""
DECAY_EFFECTS = (
    "loss-not-decreasing", "learning-rate-too-high", "learning-rate-too-low", "vanishing-gradient", "dying-neurons",
    "bad-initialisation", "diverging", "rank-collapse",
)  # fmt: skip


@rule("weight-decay-dominates", explains=DECAY_EFFECTS)
def decay_dominates(evidence: Evidence) -> Iterator[Finding]:
    """Weight decay that keeps the network from learning: the same steps without it end far lower.

    Asked where decay alone shrinks a weight to 1/e in 1,000 steps or fewer, (1−μ)/(lr·wd), or where an adaptive
    optimizer adds a penalty above 1e-3 to its gradient; ordinary settings take 2,000 (SGD 0.1, momentum 0.9, 5e-4) to
    100,000 (AdamW 1e-3, 0.01). Severe if the loss without decay ends below half of that with it, or if it learns where
    that with it falls by less than a quarter as much; a warning from 0.85 of it. If the run is too short to show it, a
    warning where the pull of decay outweighs what pulls against it in most weights of a network that has not learned:
    wd·|θ| against the gradient where decay is added to it, and against Adam's largest step, 1, where it is decoupled.
    """
    trial, optimizer = evidence.trial, evidence.optimizer
    if trial is None or trial.own is None or optimizer is None or "no weight decay" not in trial.variants:
        return
    own, without = trial.own, trial.variants["no weight decay"]
    if not trial.falls(without):
        return
    pulled = _outweighed(evidence, optimizer)
    is_seen = without.loss < LOWER * own.loss
    if not is_seen and not (pulled > 0.5 and not trial.trains and without.loss < own.loss):
        return
    learns_without = trial.learns(without) and not trial.learns(own)
    is_far = without.loss < MUCH_LOWER * own.loss or (
        learns_without and trial.fall(own)[0] < trial.fall(without)[0] / 4
    )
    groups = [group for group in optimizer.param_groups if group.get("weight_decay")]
    group = min(groups, key=lambda each: (shrinking_steps(optimizer, each), -float(each["weight_decay"])))
    decay, steps = float(group["weight_decay"]), shrinking_steps(optimizer, group)
    index = next(i for i, each in enumerate(optimizer.param_groups) if each is group)
    layer = _layer_of(evidence.problem.model, group, is_only=len(optimizer.param_groups) > 1)
    in_steps = f", which alone shrinks weights to 1/e in {number(steps)} steps," if steps < math.inf else ""
    pull = f", where its pull outweighs the gradient in {pulled:.0%} of all weights" if pulled > 0.5 else ""
    yield Finding(
        rule="weight-decay-dominates",
        layer=layer,
        severity="severe" if is_far else "warning",
        confidence=0.95 if is_seen else 0.7,
        summary=f"with weight decay {number(decay)}{in_steps} the loss is {number(own.loss)} after {len(own.run.losses)} "
        f"steps; without it {number(without.loss)}{pull}.",
        evidence={
            "weight decay": decay,
            "steps to shrink to 1/e": steps,
            "share of weights it outweighs": pulled,
            "loss before": trial.loss,
            "loss with decay": own.loss,
            "loss without": without.loss,
        },
        reason="L + wd/2·‖θ‖² has its least value where ∇L = −wd·θ: a strong decay keeps θ near zero, where a deep network's "
        "gradient vanishes. Both runs saw the same batches.",
        remedy=f'optimizer.param_groups[{index}]["weight_decay"] = {_ordinary(optimizer, group):g}',
    )


def _outweighed(evidence: Evidence, optimizer: Optimizer) -> float:
    """The share of all weights in which decay pulls harder than what moves them against it."""
    weights = [] if evidence.inspection is None else evidence.inspection.weights
    moved = [w for w in weights if w.role in ("weight", "recurrent") and w.gradient is not None and w.lr]
    decouples = all(is_decoupled(optimizer, group) for group in optimizer.param_groups)
    lost = [w for w in moved if (w.weight_decay or 0.0) * w.rms > (1.0 if decouples else w.gradient or 0.0)]
    return sum(w.numel for w in lost) / max(1, sum(w.numel for w in moved))


@rule("weight-decay-dominates", explains=DECAY_EFFECTS)
def decayed_scales(evidence: Evidence) -> Iterator[Finding]:
    """Scales of norms that decay has driven to zero: an RMS below 0.02, and none of them exactly zero.

    Scales start at 1. Those that start at 0 on purpose are exactly zero, or have a group without decay.
    """
    inspection, optimizer = evidence.inspection, evidence.optimizer
    if inspection is None or optimizer is None:
        return
    scales = [w for w in inspection.weights if w.role == "norm" and w.name.endswith("weight") and w.is_trainable]
    small = [w for w in scales if 0 < w.rms < SMALL_SCALE and w.weight_decay and w.lr]
    if not small:
        return
    is_most = 2 * len(small) > len(scales)
    worst = min(small, key=lambda w: w.rms)
    yield Finding(
        rule="weight-decay-dominates",
        layer=worst.layer,
        severity="severe" if is_most and evidence.trial is not None and evidence.trial.trains is False else "warning",
        confidence=0.8,
        summary=f"weight decay {number(worst.weight_decay or 0)} has driven the scales of {len(small)} of {len(scales)} norms "
        f"to zero: their RMS is {number(worst.rms)} at {worst.layer}.",
        evidence={"RMS of scales": worst.rms, "norms": float(len(small)), "weight decay": worst.weight_decay or 0.0},
        reason="The scale of a norm is the size of its layer's signal, and with it of the gradient of all layers before.",
        remedy="norms = [p for m in model.modules() if 'Norm' in type(m).__name__ for p in m.parameters(recurse=False)]\n"
        "others = [p for p in model.parameters() if all(p is not q for q in norms)]\n"
        'groups = [{"params": others}, {"params": norms, "weight_decay": 0.0}]',
    )


@rule("non-finite", explains=("diverging", "loss-not-decreasing"))
def not_finite_after_steps(evidence: Evidence) -> Iterator[Finding]:
    """The loss is NaN or infinite after the first steps at every rate, though it is finite before.

    In half precision Adam's ε below 6·10⁻⁸, the least number there, is zero, and 0/0 where a gradient is zero is NaN
    after one step. Otherwise what the run says was not finite is named.
    """
    trial, optimizer = evidence.trial, evidence.optimizer
    if trial is None or trial.own is None or optimizer is None or trial.own.run.diverged_at is None:
        return
    if any(trial.falls(each) for each in trial.others) or trial.uphill:
        return
    at = trial.own.run.diverged_at
    vanished = _vanished_epsilon(evidence.problem.params, optimizer)
    if vanished is not None:
        name, epsilon, dtype, least = vanished
        yield Finding(
            rule="non-finite",
            layer="",
            severity="severe",
            confidence=0.97,
            summary=f"the loss is NaN at step {at}: eps={epsilon:g} is zero in {dtype}, whose least number is {least:.1g}, and "
            "0/0 where a gradient is zero.",
            evidence={"eps": epsilon, "least number": least, "step": float(at), "first such parameter": name},
            reason="Adam divides by √v + ε in the precision of the parameter.",
            remedy='for group in optimizer.param_groups: group["eps"] = 1e-4  # or float32 weights, and autocast',
        )
        return
    lowest = min((each.lr for each in trial.attempts), default=trial.own.lr)
    cause = f": {trial.own.run.cause.rstrip('.')}" if trial.own.run.cause else ""
    yield Finding(
        rule="non-finite",
        layer="",
        severity="severe",
        confidence=0.85,
        summary=f"the loss is NaN or infinite at step {at}, and at every rate down to {number(lowest)}{cause}.",
        evidence={"loss before": trial.loss, "step": float(at), "lowest lr tried": lowest},
        reason="A loss that no rate keeps finite has a logarithm, a division or a root at the end of its range, or overflows.",
        remedy="torch.autograd.set_detect_anomaly(True)  # names the operation in the next backward pass",
    )


@rule("optimizer-setting")
def odd_settings(evidence: Evidence) -> Iterator[Finding]:
    """Settings of an optimizer that are outside of ordinary use: ε, betas, momentum.

    ε ≥ 10⁻³ makes Adam plain momentum with the rate lr/ε; ε ≤ 10⁻¹⁵ lets entries without gradient step as far as any;
    β₂ ≤ β₁² diverges on simple problems (Reddi et al. 2018); a momentum of 0.999 forgets in a thousand steps.
    """
    if evidence.optimizer is None:
        return
    group: dict[str, Any] = max(evidence.optimizer.param_groups, key=nonzero_lr)
    found: list[tuple[str, float, str]] = []
    epsilon = group.get("eps")
    is_adam = "betas" in group and isinstance(group["betas"], (tuple, list)) and len(group["betas"]) == 2
    if is_adam and epsilon is not None and float(epsilon) >= LARGE_EPSILON:
        found.append((f"eps={float(epsilon):g} outweighs √v: Adam steps like momentum with lr/eps", float(epsilon),
                      'group["eps"] = 1e-8'))  # fmt: skip
    if is_adam and epsilon is not None and float(epsilon) <= FEW_DIGITS:
        found.append((f"eps={float(epsilon):g} is lost beside √v: entries with next to no gradient step as far as any",
                      float(epsilon), 'group["eps"] = 1e-8'))  # fmt: skip
    if is_adam:
        first, second = map(float, group["betas"])
        if second <= first**2:
            found.append((f"betas are ({first:g}, {second:g}): β₂ ≤ β₁²", second, 'group["betas"] = (0.9, 0.999)'))
    momentum = float(group.get("momentum") or 0.0)
    if momentum > 0.995:
        lasts = 1 / max(1 - momentum, 1e-9)
        found.append((f"momentum is {momentum:g}: a step goes on for {lasts:,.0f} steps", momentum,
                      'group["momentum"] = 0.9'))  # fmt: skip
    for what, value, write in found:
        hampers = evidence.trial is not None and evidence.trial.trains is False
        yield Finding(
            rule="optimizer-setting",
            layer="",
            severity="severe" if hampers and momentum >= 1 else "warning",
            confidence=0.7,
            summary=f"{what}.",
            evidence={"value": value},
            reason="Outside of ordinary use; the docstring of the rule gives the reason for each.",
            remedy=f"for group in optimizer.param_groups: {write}",
        )


@rule(
    "dropout-too-strong",
    explains=("loss-not-decreasing", "learning-rate-too-low", "learning-rate-too-high", "diverging"),
)
def dropout_too_strong(evidence: Evidence) -> Iterator[Finding]:
    """Dropout above 0.6: severe above 0.7, if the same steps without it learn and these do not, or halve the loss.

    Dropping a share p multiplies the variance of what the next layer adds up by 1/(1−p): twofold at 0.5, the most in
    ordinary use (Srivastava et al. 2014), fivefold at 0.8.
    """
    trial = evidence.trial
    strong = {
        name: module.p
        for name, module in evidence.problem.model.named_modules()
        if isinstance(module, _DropoutNd) and module.p > STRONG_DROPOUT
    }
    if not strong:
        return
    name, p = max(strong.items(), key=lambda each: each[1])
    numbers: dict[str, float | str] = {"p": p, "such layers": float(len(strong))}
    severity: Severity = "warning"
    costs = ""
    if trial is not None and trial.own is not None and "no dropout" in trial.variants:
        own, without = trial.own, trial.variants["no dropout"]
        numbers |= {"loss with dropout": own.loss, "loss without": without.loss}
        costs = f": after {len(own.run.losses)} steps the loss is {number(own.loss)}, without it {number(without.loss)}"
        is_much_lower = trial.falls(without) and without.loss < own.loss - (1 - MUCH_LOWER) * abs(own.loss)
        if p > 0.7 and (is_much_lower or (trial.learns(without) and not trial.learns(own))):
            severity = "severe"
    yield Finding(
        rule="dropout-too-strong",
        layer=name,
        severity=severity,
        confidence=0.85,
        summary=f"{name} drops {p:.0%} of its inputs{f', and {len(strong) - 1} more do' if len(strong) > 1 else ''}{costs}.",
        evidence=numbers,
        reason=f"What is left is scaled by 1/(1−p) = {1 / max(1 - p, 1e-9):.2g}, and so is the variance of sums after it.",
        remedy="for m in model.modules():\n    if isinstance(m, torch.nn.Dropout): m.p = 0.2",
    )


def _ordinary(optimizer: Optimizer, group: dict[str, Any]) -> float:
    return 1e-4 if adds_penalty(optimizer, group) else 1e-2 if "betas" in group else 5e-4


def _layer_of(model: nn.Module, group: dict[str, Any], *, is_only: bool) -> str:
    """The first norm of a group that holds norms alone; nothing where the group holds layers of all kinds."""
    if not is_only:
        return ""
    held = {id(p) for p in group["params"]}
    owners = [(n, m) for n, m in model.named_modules() if any(id(p) in held for p in m.parameters(recurse=False))]
    return owners[0][0] if owners and all(is_norm(module) for _, module in owners) else ""


def _vanished_epsilon(params: dict[str, nn.Parameter], optimizer: Any) -> tuple[str, float, torch.dtype, float] | None:
    """The first parameter in whose precision its group's ε is zero."""
    names = {id(p): name for name, p in params.items()}
    for group in optimizer.param_groups:
        epsilon = group.get("eps")
        for p in group["params"]:
            if epsilon is not None and p.is_floating_point() and not torch.tensor(float(epsilon)).to(p.dtype) > 0:
                return names.get(id(p), ""), float(epsilon), p.dtype, torch.finfo(p.dtype).smallest_normal / 1024
    return None
