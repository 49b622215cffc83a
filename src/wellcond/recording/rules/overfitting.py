"""overfitting: a validation loss that rises while the training loss falls.

Wrong:
    for epoch in range(100):
        train(model)
    torch.save(model.state_dict(), "model.pt")  # the last weights
Right:
    for epoch in range(100):
        train(model)
        if (current := validate(model)) < lowest:
            lowest = current
            torch.save(model.state_dict(), "model.pt")  # the best weights
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.validation_rise import validation_rise
from wellcond.results import number
from wellcond.results.quantities import VALIDATION_LOSS


@run_rule("overfitting", quantity=VALIDATION_LOSS)
def overfitting(evidence: RunEvidence) -> Iterator[Finding]:
    """The validation loss rises after its lowest value, while the training loss falls.

    The latest three validations must lie above the lowest by 5 % of what the validation loss had fallen until then (or
    5 % of its value, if that is more) and by four times its noise; severe if half of the fall is lost for six
    validations. It begins where most validations lie above a tenth of the rise, or with a layer that thawed at its
    foot.
    """
    rise = validation_rise(evidence)
    if rise is None:
        return
    before, after = evidence.loss.level_at(rise.step), evidence.loss.level()
    yield Finding(
        rule="overfitting",
        severity=rise.severity,
        basis="measured",
        summary=f"since step {rise.step} the validation loss rises, from {number(rise.lowest)} to {number(rise.now)}, "
        f"while the training loss falls from {number(before)} to {number(after)}.",
        evidence={
            "lowest validation loss": rise.lowest,
            "validation loss now": rise.now,
            "training loss then": before,
            "training loss now": after,
        },
        limits={"lowest": rise.lowest},
        reason="What is still learned is particular to the training examples.",
        remedy=f"# use the weights of step {rise.step}; to go further, add data, augmentation, dropout or weight decay",
        step=rise.step,
    )
