"""labels-unrelated: inputs that do not predict the targets.

Wrong: `x = x[torch.randperm(n)]` with `y` left as it is. Right: one order for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.results import number
from wellcond.results.quantities import TRAINING_LOSS

CHANCE = Threshold(
    "the best of three probes, in standard deviations of shuffled targets", math.nan, 4.0, bad="below",
    origin="chance exceeds it once in 30,000 probes; data sets of the benchmarks have 5 to 230",
)  # fmt: skip
EXAMPLES = Threshold(
    "examples, or twice those that are not of the commonest class",
    128,
    256,
    origin="with fewer, the probes do not see the relation of the smallest data sets of the benchmarks",
)
STRUCTURE = Condition(
    "λ_max of the inputs' correlations / Marchenko-Pastur edge", 1.5,
    origin="inputs with no more in common than noise leave the probes nothing to go by",
)  # fmt: skip
PER_FEATURE = Condition(
    "examples per feature", 16, origin="with as few as that a smooth fit of numbers still has power"
)
SLOW = Condition("share of the targets' variance that slow directions predict", 0.1, origin="see ill-conditioned-input")


@rule("labels-unrelated", quantity=TRAINING_LOSS)
def labels_unrelated(evidence: Evidence) -> Iterator[Finding]:
    """Inputs that do not predict the targets: neither neighbors nor a fit do better than chance.

    Three leave-one-out probes, by the nearest neighbor, a linear and a smooth fit, lie within four standard deviations
    of shuffled targets, for at least 128 examples (256: severe); if one class has more than half of them, the others
    count twice. The inputs must have structure beyond the Marchenko-Pastur edge, or, for targets that are numbers, at
    least 16 examples per feature, with which a smooth fit has power. Of sequences of tokens with a label for every
    position, it is compared how often each token and each label occurs in a sequence. Not reported for labels of whole
    sequences of tokens, which may depend on their order alone, for classes of noise, and if the network has learned
    something.
    """
    trial = evidence.trial
    relation = None if trial is None else trial.relation or trial.token_relation
    if trial is None or relation is None or trial.has_learned:
        return
    is_dense = relation.is_regression and relation.examples >= max(EXAMPLES.severe, PER_FEATURE.at * relation.features)
    has_power = relation.effective >= EXAMPLES.warn and (relation.structure >= STRUCTURE.at or is_dense)
    is_slow = relation.slow is not None and relation.slow.rest > SLOW.at
    if not has_power or relation.best > CHANCE.severe or is_slow:
        return
    if trial.own is not None and trial.outcome(trial.own) == "learns":
        return
    yield Finding(
        rule="labels-unrelated",
        severity="severe" if relation.effective >= EXAMPLES.severe else "warning",
        basis="measured",
        summary=f"over {relation.examples} examples the inputs do not predict the targets: the nearest neighbor's "
        f"target is {number(relation.neighbor)}, a linear fit {number(relation.linear)} and a smooth fit "
        f"{number(relation.smooth)} standard deviations better than chance.",
        evidence={
            "examples": float(relation.examples),
            "nearest neighbor, in σ": relation.neighbor,
            "linear fit, in σ": relation.linear,
            "smooth fit, in σ": relation.smooth,
            "structure of the inputs, in noise edges": relation.structure,
        },
        reason="Targets that can be learned from inputs are similar for neighbors; shuffled or sorted targets are "
        "not. The usual cause is an index that shuffles or sorts one of the two.",
        remedy="# look at some inputs next to their labels: are both in one order, and shuffled by one index?",
    )
