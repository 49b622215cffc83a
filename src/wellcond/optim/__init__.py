"""Optimizers that are remedies: BNP over any optimizer, scale-amended SGD, LARS and LSALR.

In: a model, an optimizer and the passes of a training loop. Out: steps. The update rules are pure functions (those in
`algorithm`, `amending_scales`, `lars_scales`, `lsalr_scales`); the optimizers are thin classes around them.
"""

from __future__ import annotations

from wellcond.optim.bnp import BNP
from wellcond.optim.scale_amended import ScaleAmendedSGD
from wellcond.optim.scaled_sgd import LARS, LSALR

__all__ = ["BNP", "LARS", "LSALR", "ScaleAmendedSGD"]
