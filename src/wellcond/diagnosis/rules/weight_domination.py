"""weight-domination: a weight that has grown until its updates hardly change it.

Wrong:
    nn.init.normal_(conv.weight, std=10.0)  # before a BatchNorm, which hides it
Right:
    nn.init.kaiming_normal_(conv.weight)
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch.optim import SGD

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number
from wellcond.training.optimizers import is_adaptive

UPDATE = Threshold(
    "lr·‖∂L/∂W‖/‖W‖ / that of the median layer", 1e-3, math.nan, bad="below",
    origin="the layer needs a thousand steps for what others do in one (huang2020, section 4.1)",
)  # fmt: skip
GAIN = Threshold(
    "rms·√fan_in of a weight", 10.0, math.nan, healthy=("gain, weight", "gain, recurrent"),
    origin="seven times what He gives; healthy networks reach 7.9",
)  # fmt: skip
ADAPTIVE_UPDATE = Threshold(
    "lr / RMS of a weight / that of the median layer, where steps do not depend on the size of gradients", 0.01,
    math.nan, bad="below",
    origin="the layer needs a hundred steps for what others do in one, a whole run of a few thousand for their start",
)  # fmt: skip
LAYERS = Condition("layers", 3, origin="a median needs others to compare with")


@rule("weight-domination")
def weight_domination(evidence: Evidence) -> Iterator[Finding]:
    """A layer whose weight has grown until its updates are negligible (huang2020, section 4.1).

    rms·√fan_in of the weight is above 10, and what a step changes of it a thousandth or less of what it changes of the
    median layer, among those that have no such weight: lr·‖∂L/∂W‖/‖W‖ for plain SGD, whose updates are proportional to
    gradients. Adam and its kind change every entry by about lr, of which a hundredth of the median layer's counts.
    """
    inspection, optimizer = evidence.inspection, evidence.optimizer
    by_size = optimizer is not None and is_adaptive(optimizer)
    if inspection is None or not (by_size or isinstance(optimizer, SGD)):
        return
    weights = [w for w in inspection.weights if w.role == "weight" and w.gradient and w.rms and w.lr]
    relative = {w.name: (w.lr or 0.0) * (1.0 if by_size else w.gradient or 0.0) / w.rms for w in weights}
    update = ADAPTIVE_UPDATE if by_size else UPDATE
    if len(relative) < LAYERS.at:
        return
    # of those with ordinary weights, because most of a network's may be too large
    ordinary = [relative[w.name] for w in weights if not GAIN.is_warning(w.gain or 0.0)] or [*relative.values()]
    median = sorted(ordinary)[len(ordinary) // 2]
    for w in weights:
        if GAIN.is_warning(w.gain or 0.0) and relative[w.name] < update.warn * median:
            yield Finding(
                rule="weight-domination",
                layer=w.layer,
                severity="warning",
                basis="measured",
                summary=f"a step changes the weight of {w.layer} by {number(relative[w.name])} of its size, but those "
                f"of other layers by {number(median)}: it scales its inputs by {number(w.gain or 0.0)}.",
                evidence={"relative update": relative[w.name], "median of all layers": median, "gain": w.gain or 0.0},
                reason="A step of Adam changes every entry by about lr, and a norm passes on the direction of a weight "
                "alone: the larger the weight, the less it turns."
                if by_size
                else "Before a norm the gradient of W is proportional to 1/‖W‖: the larger a weight, the less it moves "
                "(huang2020, theorem 2).",
                remedy=f"model.get_parameter({w.name!r}).data /= {w.gain:.2g}",
            )
