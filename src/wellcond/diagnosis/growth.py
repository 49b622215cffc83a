"""Activations that grow from layer to layer by more than the weights explain: what comes between layers adds up.

A layer of independent weights multiplies the size of what it takes by rms·√fan_in, whatever its inputs have in common.
If its outputs are far larger than that times the outputs of the layer before it, something in between has made them
larger, as a sum over neighbors that is not divided by their number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspection import Inspection
from wellcond.diagnosis.inspection.signal import Signal
from wellcond.diagnosis.reading import is_embedding, is_trained
from wellcond.diagnosis.trial_result import OUT_OF_HAND

LARGE = 5.0
"""RMS of a layer's outputs up to which they are of ordinary size, as for `bad-initialisation`."""
FACTOR = 3.0
"""Growth beyond the weights' that counts. Of 3,000 small set-ups, sound or with other faults, none has two layers above
2 on one path; sums over 10 to 30 neighbors have 3.5 to 14."""
LAYERS = 2
"""Layers with such growth on one path, from which on it is no single pooling or scale."""


@dataclass(frozen=True)
class Growth:
    """A layer whose outputs are larger than those of the layer before it.

    Attributes:
        before: The layer before it, on the path of the largest activations.
        layer: The layer.
        gain: How its weights scale signals: 1 at least.
    """

    before: Signal
    layer: Signal
    gain: float

    @property
    def ratio(self) -> float:
        """RMS of the outputs over that of those before."""
        return self.layer.rms / self.before.rms

    @property
    def unexplained(self) -> float:
        """The part of it that the weights do not make."""
        return self.ratio / self.gain


def growing_layers(inspection: Inspection) -> list[Growth]:
    """Layers of one path whose large outputs grow threefold or more beyond their weights, first to last.

    Of all paths, the one with most of them; empty if that has a single one. Layers that training has aligned are not
    counted.
    """
    signals = {s.name: s for s in inspection.weighted()}
    gains = _gains(inspection)
    longest: list[Growth] = []
    for name in signals:
        path, at, passed = list[Growth](), signals[name], {name}
        while above := [signals[each] for each in at.after if each in signals and each not in passed]:
            before = max(above, key=lambda s: s.rms)
            passed.add(before.name)
            gain = gains.get(at.name)
            if gain is not None and LARGE < at.rms < math.inf and before.rms > 0 and not is_embedding(before):
                step = Growth(before, at, gain)
                path += [step] * (step.unexplained >= FACTOR)
            at = before
        longest = max(longest, path[::-1], key=len)
    longest = max(longest, _in_modules_by_hand(inspection), key=len)
    return longest if len(longest) >= LAYERS else []


def _in_modules_by_hand(inspection: Inspection) -> list[Growth]:
    """The same of modules of one class that hold a matrix themselves, one after the other as they are called."""
    gains: dict[str, float] = {}
    for w in inspection.weights:
        if w.role == "other" and len(w.shape) > 1 and w.is_trainable and not w.not_finite:
            gains[w.layer] = max(gains.get(w.layer, 1.0), w.rms * math.sqrt(max(w.shape)))
    calls = [s for s in inspection.signals if s.name in gains and not s.is_nonlinearity and 0 < s.rms < math.inf]
    longest: list[Growth] = []
    for kind in {s.kind for s in calls}:
        steps = [Growth(a, b, gains[b.name]) for a, b in pairwise(s for s in calls if s.kind == kind)]
        growing = [step for step in steps if step.layer.rms > LARGE and step.unexplained >= FACTOR]
        longest = max(longest, growing, key=len)
    return longest


def grows_by_layers(evidence: Evidence) -> bool:
    """Whether there is such growth, and no trial shows that the network trains well, without a loss that shoots up."""
    trial = evidence.trial
    if evidence.inspection is None or (trial is not None and trial.trains_well and trial.spike < OUT_OF_HAND):
        return False
    return bool(growing_layers(evidence.inspection))


def _gains(inspection: Inspection) -> dict[str, float]:
    """How layers with one matrix scale signals, 1 at least; without those that have been trained."""
    weights = [w for w in inspection.weights if w.role == "weight" and w.gain is not None]
    layers = [w.layer for w in weights]
    return {
        w.layer: max(w.gain or 0.0, abs(w.mean) * w.fan_in, 1.0)
        for w in weights
        if layers.count(w.layer) == 1 and w.is_trainable and not w.not_finite and not is_trained(w)
    }
