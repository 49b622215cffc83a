"""saturated-activation: hidden tanhs and sigmoids that are flat nearly everywhere.

Wrong:
    hidden = torch.tanh(self.fc(x))  # on pixels from 0 to 255
Right:
    hidden = torch.tanh(self.fc(x / 255))
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.reading import layer_named
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.severity import limits_of_symptom, of_symptom
from wellcond.diagnosis.threshold import Threshold
from wellcond.results import number
from wellcond.results.quantities import SATURATED_SHARE

SHARE = Threshold(
    "share of values at which the slope is below a tenth of its largest", 0.8, 0.95,
    healthy=("saturated, tanh", "saturated, sigmoid"),
    origin="the medians of healthy networks are 0.23 (tanh) and 0.33 (sigmoid)",
    inside_healthy_because="the pooler of a trained BERT has 0.98, and trained gates may be all open; where the "
    "network has learned it is a note, and where it trains a warning",
)  # fmt: skip

SLOPE = Threshold(
    "mean slope of the tanhs of a recurrent layer, 1 − E h²", 0.1, 0.01, bad="below",
    origin="0.7 or more in 20 small recurrent networks that train; 0.04 where embeddings have a deviation of 60",
)  # fmt: skip


@rule("saturated-activation", quantity=SATURATED_SHARE)
def saturated_activation(evidence: Evidence) -> Iterator[Finding]:
    """Hidden tanhs and sigmoids that are flat nearly everywhere: their slope is below a tenth of the largest one.

    Severe from 95 % of all values, a warning from 80 %. The last operation of a model is judged by its loss.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    hidden = [s for s in inspection.signals if s.saturated is not None]
    if hidden and inspection.output is not None and inspection.output.tail[:1] in (("Sigmoid",), ("Tanh",)):
        hidden = hidden[:-1]
    for signal in hidden:
        share = signal.saturated or 0.0
        if share < SHARE.warn:
            continue
        yield Finding(
            rule="saturated-activation",
            layer=signal.name,
            severity=of_symptom(evidence, is_far=share >= SHARE.severe),
            basis="measured",
            summary=f"the {signal.kind} after {signal.name or 'the input'} is flat at {share:.0%} of its values: its "
            "slope is below a tenth of the largest.",
            evidence={"saturated share": share, "RMS of its output": signal.rms},
            limits=limits_of_symptom(evidence, SHARE.limits(), is_far=share >= SHARE.severe),
            reason="A gradient is multiplied by the slope, so little of it gets through.",
            treatment="batchnorm",
            remedy=f"# start {signal.name} from smaller weights, or scale its inputs",
        )


@rule("saturated-activation", quantity=SATURATED_SHARE)
def saturated_states(evidence: Evidence) -> Iterator[Finding]:
    """An `nn.RNN` or `nn.RNNCell` whose tanhs are flat: the mean of their slope, 1 − h² for outputs h, is below 0.1.

    Severe below 0.01.
    """
    inspection = evidence.inspection
    if inspection is None:
        return
    modules = dict(evidence.problem.model.named_modules())
    for signal in inspection.signals:
        module = modules.get(signal.name)
        if not isinstance(module, (nn.RNN, nn.RNNCell)) or module.nonlinearity != "tanh" or signal.not_finite:
            continue
        slope = 1 - signal.rms**2
        if SLOPE.is_warning(slope):
            yield Finding(
                rule="saturated-activation",
                layer=signal.name,
                severity=of_symptom(evidence, is_far=SLOPE.is_severe(slope)),
                basis="measured",
                summary=f"the tanhs of {layer_named(signal.name)} are flat: their mean slope is {number(slope)}.",
                evidence={"mean slope": slope, "RMS of its output": signal.rms},
                reason="A gradient is multiplied by the slope at every step, so that hardly any comes from the step "
                "before.",
                remedy=f"# scale what {layer_named(signal.name)} takes to an RMS of about 1, or start it from smaller "
                "weights",
            )
