"""How large weights, outputs and the first loss may be."""

from __future__ import annotations

import math

from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import Trial

LOSS_RATIO = Threshold(
    "loss / loss of the best constant", math.nan, 3.0, healthy=("loss / loss of the best constant",),
    origin="logits of standard deviation s cost s²/2 nats more than log C; 95 % of healthy networks are below 1.43",
    inside_healthy_because="the labels of those beyond it hardly vary, as a GAN's: the condition on the constant "
    "excludes them",
)  # fmt: skip
BACK = Condition(
    "loss after the trial / loss of the best constant", 1.5, origin="half of the way from three times it, or more"
)
LARGE_GAIN = Threshold(
    "rms·√fan_in of a weight", 8.0, 16.0, healthy=("gain, weight", "gain, recurrent"),
    origin="He starts at 1.4; healthy networks, fresh and trained, reach 7.9",
)  # fmt: skip
LARGE_SIGNAL = Condition(
    "RMS of a layer's outputs", 5.0, origin="below it weights fit their inputs, whatever their scale"
)
OWN_GAIN = Condition(
    "rms·√(the smaller side) of a matrix in a module of one's own", 5.0, origin="torch starts at 0.58, Glorot at 1"
)


def recovers(trial: Trial, constant: float) -> bool:
    """Whether the network trains nevertheless, or its own run takes it back to about a constant's loss."""
    return bool(trial.trains) or (trial.own is not None and trial.own.loss < BACK.at * constant)
