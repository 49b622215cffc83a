"""Layers with weights that no optimizer holds, from the start or since a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wellcond.recording.judging.levels import halfway
from wellcond.recording.judging.run_rule import RunEvidence
from wellcond.results.quantities import UNHELD_SHARE, WEIGHT_NORM


@dataclass(frozen=True)
class Unheld:
    """A layer with weights that no optimizer holds.

    Attributes:
        layer: The layer.
        share: Share of its weights.
        step: Since when; 1 if they never were held.
    """

    layer: str
    share: float
    step: int


def unheld_layers(evidence: RunEvidence) -> Iterator[Unheld]:
    """Those of which some weights are not held now, in the model's order."""
    looks = _looks(evidence)
    for layer in evidence.history.layers(UNHELD_SHARE):
        series = evidence.history.series(UNHELD_SHARE, layer)
        if series.values[-1] > 0:
            zeros = np.flatnonzero(series.values == 0)
            seen = int(series.steps[zeros[-1] + 1 if len(zeros) else 0])
            before = looks[looks < seen]
            step = 1
            if len(before):
                step = evidence.loss.jump_between(int(before[-1]), seen) or halfway(int(before[-1]), seen)
            yield Unheld(layer, float(series.values[-1]), step)


def _looks(evidence: RunEvidence) -> NDArray[np.int64]:
    """Steps at which weights were read; of a large network, those of some layers at each."""
    layers = evidence.history.layers(WEIGHT_NORM)
    steps = [evidence.history.series(WEIGHT_NORM, layer).steps for layer in ("", *layers)]
    return np.unique(np.concatenate(steps))
