"""exploding-gradient: gradients that grow from layer to layer, or from step to step, on the way back.

Wrong:
    nn.init.normal_(rnn.weight_hh_l0)  # over a hundred steps
    loss.backward()
    optimizer.step()
Right:
    nn.init.orthogonal_(rnn.weight_hh_l0)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import hidden_layers, read_sequences
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import limits_of_symptom, of_symptom
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.network.norms import is_norm
from wellcond.results import number
from wellcond.results.quantities import SENSITIVITY

RATIO = Threshold(
    "largest ‖∂ℓ/∂h‖·‖h‖ of a hidden layer / that of the last hidden layer", 1e4, 1e6,
    healthy=("sensitivity: first / last layer",), origin="healthy networks reach 46",
)  # fmt: skip
GRADUAL = Condition(
    "logarithm of the growth half-way back in time / of all of it", 0.2,
    origin="0.5 where every step multiplies by the same factor, 0 where one place is read",
)  # fmt: skip


@rule("exploding-gradient", quantity=SENSITIVITY)
def exploding_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Gradients that grow on the way back, through layers or through time: severe from a million-fold.

    Through time they grow step by step. Those of a network that reads one place, such as a class token, are large there
    alone; and those of padded steps, if there are any, are small for a good reason, so time is left out.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    layers = hidden_layers(inspection)
    last = (layers[-1].sensitivity or 0.0) if layers else 0.0
    if len(layers) > 1 and last > 0:
        most = max(layers, key=lambda s: s.sensitivity or 0.0)
        ratio = (most.sensitivity or 0.0) / last
        if RATIO.is_warning(ratio):
            than = f"that of the last hidden layer, {layers[-1].name}"
            summary = f"the gradient at {most.name} is {number(ratio)} times {than}."
            has_norms = any(map(is_norm, evidence.problem.model.modules()))
            treatment = "unit-signals" if has_norms else "batchnorm"
            yield _finding(evidence, most.name, ratio, summary, treatment, RATIO.limits(last))
    is_padded = evidence.behavior is not None and evidence.behavior.padding is not None
    for name, over_time in () if is_padded else read_sequences(evidence):
        late = float(over_time[-max(1, len(over_time) // 10) :].max())
        ratio = float(over_time.max()) / late if late > 0 else 0.0
        half_way = float(over_time[len(over_time) // 4 : -(len(over_time) // 4) or None].median())
        if RATIO.is_warning(ratio) and half_way > late * ratio**GRADUAL.at:
            summary = (
                f"over the {len(over_time)} steps of {name or 'the sequence'} the gradient grows to {number(ratio)} "
                "times that of the last steps."
            )
            yield _finding(evidence, name, ratio, summary, "orthogonal-recurrence", {})


def _finding(
    evidence: Evidence, name: str, ratio: float, summary: str, treatment: str, limits: dict[str, float]
) -> Finding:
    return Finding(
        rule="exploding-gradient",
        layer=name,
        severity=of_symptom(evidence, is_far=RATIO.is_severe(ratio)),
        basis="measured",
        summary=summary,
        evidence={"ratio": ratio},
        limits=limits_of_symptom(evidence, limits, is_far=RATIO.is_severe(ratio)),
        reason="Every layer or step multiplies a gradient by its mean-field χ; a product of factors above 1 explodes.",
        treatment=treatment,
        remedy="# start from smaller weights, or put a norm after every layer",
    )
