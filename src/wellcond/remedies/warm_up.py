"""`warm-up`: a learning rate that rises in the first steps."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

SHARE = 0.1
"""Share of the steps over which the rate rises, as in BERT's recipe."""


@remedy(
    "warm-up", "schedule", rules=("attention-saturation", "exploding-gradient", "diverging", "learning-rate-too-high")
)
def warm_up(setup: Setup) -> Setup | None:
    """Lets the rate rise linearly over the first tenth of the steps.

    The curvature is largest in the first steps, and Adam's second moments are then means of few gradients.
    """
    rise = max(1, round(SHARE * setup.steps))
    if rise == 1:
        return None

    def ramp(model: nn.Module, optimizer: Optimizer, seed: int) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        count = 0

        def before_step(*_: Any) -> None:
            nonlocal count
            count += 1
            for group, lr in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = lr * min(1.0, count / rise)

        optimizer.register_step_pre_hook(before_step)

    line = f"schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / {rise}, total_iters={rise - 1})"
    return setup.prepared(ramp, line, after_step=["schedule.step()"])
