"""`rate`: another learning rate."""

from __future__ import annotations

from wellcond.remedies.remedy import remedy
from wellcond.remedies.setup import Setup


@remedy(
    "rate",
    "rate",
    rules=("learning-rate-too-high", "learning-rate-too-low", "diverging", "non-finite", "loss-not-decreasing"),
)
def rate(setup: Setup) -> Setup | None:
    """Changes the learning rate alone, to the one that wins a race of rates."""
    return None if setup.optimizer is None else setup
