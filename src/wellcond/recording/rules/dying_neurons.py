"""dying-neurons: ReLUs that are switched off for good while training goes on.

Wrong:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # one long step kills units
Right:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before every optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.shares import DEAD, dying_units
from wellcond.results.quantities import DEAD_SHARE
from wellcond.results.text import named


@run_rule("dying-neurons", quantity=DEAD_SHARE)
def dying_neurons(evidence: RunEvidence) -> Iterator[Finding]:
    """The share of ReLUs that are off on a whole batch has risen by 0.2 or more, above 0.7.

    Severe from 0.95 if the loss does not fall; a warning, or a note while the loss falls and it is below 0.95.
    """
    for each in dying_units(evidence):
        yield Finding(
            rule="dying-neurons",
            layer=each.layer,
            severity=each.severity,
            basis="measured",
            summary=f"{each.now:.0%} of the ReLUs after {named(each.layer)} are off on a whole batch; until step "
            f"{each.step} they were {each.before:.0%}.",
            evidence=each.numbers,
            limits=DEAD.limits(),
            reason="Where a ReLU is off its slope is 0, so the weights before it get no gradient and it stays off.",
            remedy=f"# go back to weights from before step {each.step}, at a lower rate or with clipped gradients; a "
            f"leaky ReLU after {named(each.layer)} lets units come back",
            step=each.step,
        )
