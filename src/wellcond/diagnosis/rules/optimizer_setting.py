"""optimizer-setting: betas, momentum or ε outside of ordinary use.

Wrong:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.9), eps=1e-16)
Right:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import network_has_learned
from wellcond.diagnosis.threshold import Threshold
from wellcond.diagnosis.trial_result import Trial
from wellcond.remedies.usual_settings import LARGE_EPS, LONG_MOMENTUM
from wellcond.training.optimizers import nonzero_lr

LARGE_EPSILON = Threshold(
    "Adam's ε", LARGE_EPS, 0.1, origin="it is added to √v, the size of a gradient's entry, some 1e-4 to 1e-2"
)
SMALL_EPSILON = Threshold(
    "Adam's ε", 1e-15, math.nan, bad="below", origin="float32 rounds √v to 1e-7 of its size: 1e-22 for entries of 1e-15"
)
MOMENTUM = Threshold(
    "momentum", LONG_MOMENTUM, 0.999,
    origin="a step lasts for 1/(1−μ) steps: 200; oscillations last for 2/(1−μ): 2000, longer than many runs",
)  # fmt: skip


@rule("optimizer-setting")
def odd_settings(evidence: Evidence) -> Iterator[Finding]:
    """Settings of an optimizer outside of ordinary use: ε, betas, momentum.

    ε ≥ 10⁻³ makes Adam plain momentum with the rate lr/ε; ε ≤ 10⁻¹⁵ lets entries with almost no gradient take full
    steps; β₂ ≤ β₁² diverges on simple problems (Reddi et al. 2018); a momentum of 0.999 forgets in a thousand steps.
    Severe if the momentum is 0.999 or more, unless the network has learned before: what it overshoots by lasts for
    thousands of steps. Severe, too, if ε is 0.1 or more and the network does not learn in the trial.
    """
    if evidence.optimizer is None:
        return
    group: dict[str, Any] = max(evidence.optimizer.param_groups, key=nonzero_lr)
    momentum = float(group.get("momentum") or 0.0)
    is_slowed = LARGE_EPSILON.is_severe(float(group.get("eps") or 0.0)) and _learns(evidence.trial) is False
    is_severe = (momentum >= MOMENTUM.severe and not network_has_learned(evidence)) or is_slowed
    for what, value, reason, write in _odd(group, momentum):
        yield Finding(
            rule="optimizer-setting",
            severity="severe" if is_severe else "warning",
            basis="proven",
            summary=f"{what}.",
            evidence={"value": value},
            reason=reason,
            treatment="larger-eps" if value <= SMALL_EPSILON.warn else "usual-settings",
            remedy=f"for group in optimizer.param_groups:\n    {write}",
        )


def _learns(trial: Trial | None) -> bool | None:
    return None if trial is None or trial.own is None else trial.outcome(trial.own) == "learns" or trial.has_learned


def _odd(group: dict[str, Any], momentum: float) -> Iterator[tuple[str, float, str, str]]:
    """What is odd, its value, why that matters, and what to write."""
    if isinstance(betas := group.get("betas"), (tuple, list)) and len(betas) == 2:
        epsilon = float(group.get("eps", 1e-8))
        usual = 'group["eps"] = 1e-8'
        if epsilon >= LARGE_EPSILON.warn:
            what = f"eps={epsilon:g} is larger than √v: Adam steps like momentum with the rate lr/eps"
            yield (
                what,
                epsilon,
                "Adam divides by √v + ε, and √v, the size of a gradient's entry, is 1e-4 to 1e-2.",
                usual,
            )
        if epsilon <= SMALL_EPSILON.warn:
            what = f"eps={epsilon:g} is so small that parameters with almost no gradient still take full steps"
            yield what, epsilon, "Adam divides by √v + ε: without ε noise is scaled up to the size of a step.", usual
        first, second = map(float, betas)
        if second <= first**2:
            what = f"betas are ({first:g}, {second:g}), and β₂ ≤ β₁²"
            reason = "Adam then diverges on simple problems (Reddi et al. 2018)."
            yield what, second, reason, 'group["betas"] = (0.9, 0.999)'
    if MOMENTUM.is_warning(momentum):
        lasts = 1 / max(1 - momentum, 1e-9)
        what = f"momentum is {momentum:g}: a step lasts for {lasts:,.0f} steps"
        yield what, momentum, "The sum of past steps is 1/(1−μ) times a step.", 'group["momentum"] = 0.9'
