"""`clip`: gradients clipped by their norm."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

QUANTILE = 0.9
"""Quantile of the batches' gradient norms at which to clip: most steps stay as they are (Google's tuning playbook)."""


@remedy("clip", "clipping", rules=("exploding-gradient", "diverging", "non-finite", "learning-rate-too-high"))
def clip(setup: Setup) -> Setup | None:
    """Clips the gradient's norm at the 90th percentile over the batches: one bad batch then moves no further.

    A fixed norm such as 1 does nothing to small gradients, and to large ones it changes every step (Pascanu et al. 2013
    set it by the average norm, too).
    """
    norms = _gradient_norms(setup)
    if not norms:
        return None
    limit = float(f"{torch.tensor(norms).quantile(QUANTILE):.3g}")

    def clip_steps(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
        params = [p for group in optimizer.param_groups for p in group["params"]]

        def before_step(*_: Any) -> None:
            nn.utils.clip_grad_norm_(params, limit)

        optimizer.register_step_pre_hook(before_step)

    line = f"nn.utils.clip_grad_norm_(model.parameters(), {limit:g})"
    return setup.prepared(clip_steps, before_step=[line])


def _gradient_norms(setup: Setup) -> list[float]:
    """Norms of the batches' gradients at the present weights; those that are not finite are left out."""
    problem = setup.problem
    norms = []
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        for index, batch in data:
            loss = problem.evaluate(index, batch).loss
            gradients = problem.gradient(loss, list(problem.params.values()), allow_unused=True)
            norms.append(float(torch.stack([g.norm() for g in gradients if g is not None]).norm()))
    return [norm for norm in norms if math.isfinite(norm)]
