"""saturated-activation: tanhs and sigmoids that become flat while training goes on.

Wrong:
    hidden = torch.tanh(self.fc(x))  # while nothing limits how far weights grow
Right:
    hidden = torch.tanh(self.norm(self.fc(x)))  # or a smaller rate, or scaled inputs
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.shares import shares_that_rose
from wellcond.results.quantities import SATURATED_SHARE
from wellcond.results.text import named

SHARE = Threshold(
    "share of values at which the slope is below a tenth of its largest", 0.8, 0.95,
    origin="the medians of healthy networks are 0.23 (tanh) and 0.33 (sigmoid)",
)  # fmt: skip
RISE = Condition("rise of the share", 0.2, origin="what was flat from the start is no event: diagnose reports it")


@run_rule("saturated-activation", quantity=SATURATED_SHARE)
def saturated_activation(evidence: RunEvidence) -> Iterator[Finding]:
    """The share of values at which a tanh or sigmoid is flat has risen by 0.2 or more, above 0.8.

    Severe from 0.95 if the loss does not fall; a warning, or a note while the loss falls and it is below 0.95.
    """
    for each in shares_that_rose(evidence, SATURATED_SHARE, SHARE, RISE):
        yield Finding(
            rule="saturated-activation",
            layer=each.layer,
            severity=each.severity,
            basis="measured",
            summary=f"the activation after {named(each.layer)} is flat at {each.now:.0%} of its values; until step "
            f"{each.step} at {each.before:.0%}.",
            evidence=each.numbers,
            limits=SHARE.limits(),
            reason="A gradient is multiplied by the slope, so little of it gets through.",
            remedy=f"# lower the rate or decay the weights of {named(each.layer)}, or put a norm after it",
            step=each.step,
        )
