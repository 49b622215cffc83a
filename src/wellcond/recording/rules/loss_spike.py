"""loss-spike: one batch whose loss is far above all others, and steps that recover from it.

Wrong:
    loss.backward()  # of a batch with a corrupt file
    optimizer.step()
Right:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # and look at that batch
    optimizer.step()
"""

from __future__ import annotations

from collections.abc import Iterator

from wellcond.diagnosis.finding import Finding
from wellcond.recording.judging.layer_changes import growths
from wellcond.recording.judging.rates import at
from wellcond.recording.judging.run_rule import RunEvidence, run_rule
from wellcond.recording.judging.spikes import Spike, spikes
from wellcond.results import number
from wellcond.results.quantities import GRADIENT_NORM, LR, MAX_LR, TRAINING_LOSS


@run_rule("loss-spike", quantity=TRAINING_LOSS)
def loss_spike(evidence: RunEvidence) -> Iterator[Finding]:
    """A loss that lies five times as high above the median of 200 before as any of these, and comes back.

    A warning, or a note if there was a higher one before. It must be as high as a quarter of what the loss has fallen
    since the start, at its highest within three steps. The losses right after that are back half of the way, unless the
    step hurt the weights: otherwise it is not one batch. One right after the rate was doubled is not the batch's. The
    finding holds what else was seen at that step: layers whose gradients grew most, and the rate next to its limit.
    """
    for spike in spikes(evidence):
        if not spike.is_of_the_rate:
            yield _finding(evidence, spike)


def _finding(evidence: RunEvidence, spike: Spike) -> Finding:
    step, level = spike.step, spike.level
    jumps = growths(evidence, GRADIENT_NORM, step, within=16)
    layers = sorted((layer for layer in jumps if jumps[layer] > 2), key=lambda layer: -jumps[layer])[:3]
    lr, limit = at(evidence.history.series(LR), step), at(evidence.history.series(MAX_LR), step)
    snapshot: dict[str, float | str] = {"loss": spike.value, "level before": level, "back at step": float(spike.back)}
    if layers:
        snapshot["gradients that grew most"] = ", ".join(f"{layer} (× {number(jumps[layer])})" for layer in layers)
    if lr > 0:
        snapshot["lr"] = lr
    if limit > 0:
        snapshot["largest stable lr"] = limit
    where = f"; of the gradients that of {layers[0]} grew most, {number(jumps[layers[0]])} times" if layers else ""
    return Finding(
        rule="loss-spike",
        severity="warning" if spike.is_highest else "note",
        basis="measured",
        summary=f"the loss jumps from {number(level)} to {number(spike.value)} at step {step} and is back at step "
        f"{spike.back}{where}.",
        evidence=snapshot,
        limits={"level before": level},
        reason="No loss before it is a fifth as far above their median, so it is this batch, not noise.",
        remedy="nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # before optimizer.step(); and look at the batch of "
        f"step {step}",
        step=step,
        until=spike.back,
    )
