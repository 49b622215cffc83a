"""Remedies of the step: another rate, another optimizer, and what is done to its gradients, rates and decay."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from wellcond.errors import Unsupported
from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup, made_anew
from wellcond.training.optimizers import is_adaptive

USUAL_CLIP = 0.9
"""The quantile of gradient norms at which to clip (Google's tuning playbook)."""
WARM_UP = 0.1
"""The share of the steps over which the rate rises; as in BERT's recipe."""
NEEDS_SGD = "it is for SGD with one parameter group, and the optimizer is {found}."


@remedy(
    "rate",
    "rate",
    rules=("learning-rate-too-high", "learning-rate-too-low", "diverging", "non-finite", "loss-not-decreasing"),
)
def rate(setup: Setup) -> Setup | None:
    """Changes the learning rate alone, to the one that a race of rates finds."""
    return None if setup.optimizer is None else setup


@remedy(
    "adam",
    "optimizer",
    rules=("vanishing-gradient", "learning-rate-too-low", "unscaled-input", "ill-conditioned-input"),
)
def adam(setup: Setup) -> Setup | None:
    """Takes Adam in place of SGD, AdamW where there is weight decay: a step per weight of its gradient's own size."""
    if setup.optimizer is not None and is_adaptive(setup.optimizer):
        return None
    decay = (
        0.0 if setup.optimizer is None else max(float(g.get("weight_decay", 0)) for g in setup.optimizer.param_groups)
    )
    params = _held(setup)
    chosen: Optimizer = AdamW(params, 1e-3, weight_decay=decay) if decay else Adam(params, 1e-3)
    return setup.with_optimizer(chosen, made_anew(chosen))


@remedy("sgd", "optimizer", rules=())
def sgd(setup: Setup) -> Setup | None:
    """Takes SGD with momentum 0.9 in place of an adaptive optimizer, whose ε or second moments may be off."""
    if setup.optimizer is None or not is_adaptive(setup.optimizer):
        return None
    chosen = SGD(_held(setup), 0.01, momentum=0.9)
    return setup.with_optimizer(chosen, made_anew(chosen))


@remedy("clip", "clipping", rules=("exploding-gradient", "diverging", "non-finite", "learning-rate-too-high"))
def clip(setup: Setup) -> Setup | None:
    """Clips the gradient's norm at the 90th percentile of those of the batches: one bad batch then moves no further."""
    norms = _gradient_norms(setup)
    if not norms:
        return None
    most = float(torch.tensor(norms).quantile(USUAL_CLIP))

    def clipped(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
        params = [p for group in optimizer.param_groups for p in group["params"]]

        def before(*_: Any) -> None:
            torch.nn.utils.clip_grad_norm_(params, most)

        optimizer.register_step_pre_hook(before)

    line = f"# before each optimizer.step():\ntorch.nn.utils.clip_grad_norm_(model.parameters(), {most:.3g})"
    return setup.prepared(clipped, line)


@remedy(
    "warm-up", "schedule", rules=("attention-saturation", "exploding-gradient", "diverging", "learning-rate-too-high")
)
def warm_up(setup: Setup) -> Setup | None:
    """Lets the rate rise linearly over the first tenth of the steps.

    The curvature is largest in the first steps, and Adam's second moments are then of few gradients.
    """
    rise = max(1, round(WARM_UP * setup.steps))

    def ramped(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        taken = [0]

        def before(*_: Any) -> None:
            taken[0] += 1
            for group, own in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = own * min(1.0, taken[0] / rise)

        optimizer.register_step_pre_hook(before)

    line = (
        f"schedule = torch.optim.lr_scheduler.LinearLR(optimizer, {1 / rise:.3g}, total_iters={max(rise - 1, 1)})\n"
        "# after each optimizer.step():  schedule.step()"
    )
    return setup.prepared(ramped, line) if rise > 1 else None


@remedy("no-weight-decay", "decay", rules=("weight-decay-dominates",))
def no_weight_decay(setup: Setup) -> Setup | None:
    """Takes the weight decay off: where λ‖w‖ exceeds the gradient of the loss, the weights shrink and learn nothing."""
    groups = [] if setup.optimizer is None else setup.optimizer.param_groups
    return setup.with_setting("weight_decay", 0.0) if any(group.get("weight_decay") for group in groups) else None


@remedy("larger-eps", "eps", rules=("non-finite", "learning-rate-too-high"))
def larger_eps(setup: Setup) -> Setup | None:
    """Raises Adam's ε to 1e-4 where its square is lost in half precision, or where it is below 1e-12.

    A gradient that underflows leaves 0/(0 + ε): with an ε that is itself 0 in this precision, NaN.
    """
    groups = [] if setup.optimizer is None else setup.optimizer.param_groups
    least = 1e-6 if setup.problem.dtype in (torch.float16, torch.bfloat16) else 1e-12
    return setup.with_setting("eps", 1e-4) if any(group.get("eps", 1.0) < least for group in groups) else None


@remedy("scale-amended", "optimizer", rules=("vanishing-gradient", "exploding-gradient"))
def scale_amended(setup: Setup) -> Setup | None:
    """Takes SGD with every layer's gradient in the scale of its own local Hessian (zhang2018), in a chain of layers."""
    if setup.optimizer is not None and is_adaptive(setup.optimizer):
        return None
    settings = _sgd_settings(setup)
    model = setup.problem.model
    chosen = ScaleAmendedSGD(model, 0.1, **settings, inputs=setup.inputs)
    line = "".join(f", {name}={value}" for name, value in settings.items())
    return setup.with_optimizer(chosen, f"optimizer = wc.ScaleAmendedSGD(model, lr={{lr}}{line})")


def _held(setup: Setup) -> list[Tensor]:
    if setup.optimizer is None:
        return list(setup.problem.params.values())
    return [p for group in setup.optimizer.param_groups for p in group["params"]]


def _sgd_settings(setup: Setup) -> dict[str, Any]:
    """Momentum, and what else both SGD and ScaleAmendedSGD know, where it is not the default."""
    if setup.optimizer is None:
        return {"momentum": setup.momentum} if setup.momentum else {}
    found, groups = type(setup.optimizer).__name__, setup.optimizer.param_groups
    if len(groups) > 1:
        raise Unsupported(NEEDS_SGD.format(found=f"{found} with {len(groups)} groups"))
    if type(setup.optimizer) is not SGD:
        raise Unsupported(NEEDS_SGD.format(found=found))
    if others := [name for name in ("dampening", "maximize") if groups[0][name]]:
        raise Unsupported(NEEDS_SGD.format(found=f"{found} with {' and '.join(others)}"))
    return {name: groups[0][name] for name in ("momentum", "nesterov", "weight_decay") if groups[0][name]}


def _gradient_norms(setup: Setup) -> list[float]:
    """Of every batch, at the present weights; those that are not finite are left out."""
    problem = setup.problem
    found = []
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        for index, batch in data:
            loss = problem.evaluate(index, batch).loss
            gradients = problem.gradient(loss, list(problem.params.values()), allow_unused=True)
            norm = float(torch.stack([g.norm() for g in gradients if g is not None]).norm())
            found += [norm] if torch.isfinite(torch.tensor(norm)) else []
    return found
