"""Whether a network has learned: the one definition, for the trial, the rules and the judge."""

from __future__ import annotations

LEARNED = 0.9
"""Loss over that of the best constant prediction. A network below it has learned from its inputs: a fresh one starts at
1 or above, and rounding or the noise of a mini-batch is far less than a tenth."""


def has_learned(loss: float | None, constant: float | None) -> bool:
    """Whether a loss is clearly below that of the best constant prediction; False if one of them is unknown.

    Example:
        >>> has_learned(0.5, 2.3), has_learned(2.2, 2.3), has_learned(0.5, None)
        (True, False, False)
    """
    return loss is not None and constant is not None and 0 <= loss < LEARNED * constant
