"""How many weights without a gradient are too many."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wellcond.diagnosis.inspection.weights import Weight
from wellcond.diagnosis.threshold import Threshold

UNUSED = Threshold(
    "share of all weights that are called and get no gradient", 0.0, 0.1,
    origin="one spare layer, such as BERT's pooler before a head of one's own, is less; a branch that is never added "
    "is more",
)  # fmt: skip
NEVER_CALLED = Threshold(
    "share of all weights that are never called, or called under no_grad", math.nan, 0.5,
    origin="spare heads are ordinary, half of a network is not",
)  # fmt: skip


def share_of(some: Sequence[Weight], every: Sequence[Weight]) -> float:
    """The share of numbers that some of the weights hold."""
    return sum(w.numel for w in some) / (sum(w.numel for w in every) or 1)
