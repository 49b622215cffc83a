"""Since when the running statistics of a BatchNorm stand still, by the momentum that code has set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wellcond.diagnosis.threshold import Condition
from wellcond.recording.judging.levels import finite
from wellcond.recording.judging.run_rule import RunEvidence
from wellcond.results.quantities import STATISTICS_MOMENTUM

RENEWED = Condition(
    "Σ momentum over the steps since", 0.7, origin="theory: ln 2, at which half of the statistics is of batches since"
)
BY_ONE = Condition("momentum / before", 0.1, origin="a schedule lowers it in smaller steps")
STEADY = Condition("steps", 100, origin="a momentum of 0.1 forgets the first statistics in some 50 steps")


@dataclass(frozen=True)
class Stop:
    """The end of a BatchNorm's averaging.

    Attributes:
        step: Batches since then replace less than half of the statistics.
        is_at_once: Whether one change of the momentum did it; a schedule lowers it by and by.
    """

    step: int
    is_at_once: bool


def stopped_at(evidence: RunEvidence, layer: str) -> Stop | None:
    """When the running statistics of a layer were stopped; None if they move.

    Those that have never moved in the run, as of a pretrained network, are not meant.
    """
    momenta = finite(evidence.history.series(STATISTICS_MOMENTUM, layer))
    lengths = np.diff(np.append(momenta.steps, evidence.step))
    since = np.cumsum((momenta.values * lengths)[::-1])[::-1]  # Σ momentum from each change on
    places = 1 + np.flatnonzero(since[1:] <= RENEWED.at)
    if not len(places) or evidence.step - int(momenta.steps[places[0]]) < STEADY.at:
        return None
    place = int(places[0])
    return Stop(int(momenta.steps[place]), bool(momenta.values[place] < BY_ONE.at * momenta.values[place - 1]))
