"""`usual-settings`: settings of the optimizer that are outside of ordinary use, back to it."""

from __future__ import annotations

from typing import Any

from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup

LARGE_EPS = 1e-3
"""An ε of Adam from which on it outweighs √v: the steps are those of momentum with the rate lr/ε."""
LONG_MOMENTUM = 0.995
"""A momentum above which a step goes on for more than 200 steps."""


@remedy("usual-settings", "settings", rules=("optimizer-setting", "diverging"))
def usual_settings(setup: Setup) -> Setup | None:
    """Sets ε, betas, momentum and `maximize` of the optimizer back to their usual values, if they are far from them.

    An ε of 1e-3 or more turns Adam into momentum, β₂ ≤ β₁² diverges on simple problems (Reddi et al. 2018), a momentum
    above 0.995 overshoots for hundreds of steps, and `maximize=True` goes uphill.
    """
    groups = [] if setup.optimizer is None else setup.optimizer.param_groups
    changes: dict[str, Any] = {}
    for group in groups:
        changes |= _unusual(group)
    return setup.with_settings([changes] * len(groups)) if changes else None


def _unusual(group: dict[str, Any]) -> dict[str, Any]:
    """The usual values of those settings of a group that are far from them."""
    changes: dict[str, Any] = {}
    betas = group.get("betas")
    if isinstance(betas, (tuple, list)) and len(betas) == 2:
        if float(group.get("eps", 0.0)) >= LARGE_EPS:
            changes["eps"] = 1e-8
        if float(betas[1]) <= float(betas[0]) ** 2:
            changes["betas"] = (0.9, 0.999)
    if float(group.get("momentum") or 0.0) > LONG_MOMENTUM:
        changes["momentum"] = 0.9
    if group.get("maximize"):
        changes["maximize"] = False
    return changes
