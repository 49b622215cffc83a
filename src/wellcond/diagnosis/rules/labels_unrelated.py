"""labels-unrelated: inputs that do not predict the targets.

Wrong:
    inputs = inputs[torch.randperm(n)]  # and the labels stay where they are
Right:
    order = torch.randperm(n)
    inputs, labels = inputs[order], labels[order]
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
    "the best of four probes, in standard deviations of shuffled targets", math.nan, 4.0, bad="below",
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

    Three leave-one-out probes, by the nearest neighbor, a linear and a smooth fit, and the correlation of every single
    feature lie within four standard deviations of shuffled targets, for at least 128 examples (256: severe); if one
    class has more than half of them, the others count twice. The inputs must have structure beyond the Marchenko-Pastur
    edge, or, for targets that are numbers, at least 16 examples per feature, with which a smooth fit has power. Of
    sequences of tokens with a label for every position, it is compared how often each token and each label occurs in a
    sequence. For one label of a whole sequence, the features are tokens, tokens at their places, and pairs of
    neighbors; without structure in the tokens, as in an exercise like parity, it is a warning, since such a label may
    depend on more. Not reported for classes of noise, and if the network has learned something; a warning if what it
    learns of half of the batches is of no use for the others.
    """
    trial = evidence.trial
    relation = None if trial is None else trial.relation or trial.token_relation
    if trial is None or relation is None or trial.has_learned:
        return
    is_dense = relation.is_regression and relation.examples >= max(EXAMPLES.severe, PER_FEATURE.at * relation.features)
    is_structured = relation.structure >= STRUCTURE.at or is_dense
    is_open = relation.is_of_whole and not is_structured
    has_power = relation.effective >= (EXAMPLES.severe if is_open else EXAMPLES.warn) and (is_structured or is_open)
    is_slow = relation.slow is not None and relation.slow.rest > SLOW.at
    if not has_power or relation.best > CHANCE.severe or is_slow:
        return
    is_learned = trial.own is not None and trial.outcome(trial.own) == "learns"
    if is_learned and not (trial.held_out is not None and trial.held_out.is_memorized):
        return
    yield Finding(
        rule="labels-unrelated",
        severity="severe" if relation.effective >= EXAMPLES.severe and not is_open and not is_learned else "warning",
        basis="measured",
        summary=f"over {relation.examples} examples the inputs do not predict the targets: the nearest neighbor's "
        f"target is {number(relation.neighbor)}, a linear fit {number(relation.linear)} and a smooth fit "
        f"{number(relation.smooth)} standard deviations better than chance, and no single feature is correlated with "
        "them.",
        evidence={
            "examples": float(relation.examples),
            "nearest neighbor, in σ": relation.neighbor,
            "linear fit, in σ": relation.linear,
            "smooth fit, in σ": relation.smooth,
            "most correlated feature, in σ": relation.single,
            "structure of the inputs, in noise edges": relation.structure,
        },
        reason="Targets that can be learned from inputs are similar for neighbors; shuffled or sorted targets are "
        "not. The usual cause is an index that shuffles or sorts one of the two.",
        remedy="# look at some inputs next to their labels: are both in one order, and shuffled by one index?",
    )
