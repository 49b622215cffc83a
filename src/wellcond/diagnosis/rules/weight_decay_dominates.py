"""weight-decay-dominates: weight decay that keeps the network from learning.

Wrong:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
Right:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=5e-4)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.learned import LEARNED
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.rules.term_dominates import ALONE
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import FALLING
from wellcond.network.norms import is_norm
from wellcond.remedies.optimizer_settings import usual_weight_decay
from wellcond.results import number
from wellcond.results.quantities import TRAINING_LOSS
from wellcond.training.optimizers import is_decoupled, shrinking_steps

LOSS = Threshold(
    "loss without decay / loss with it, after the same steps", 0.85, 0.5, bad="below",
    origin="15 % are beyond the noise between two seeds; half is the difference between learning and not",
)  # fmt: skip
FALL = Condition(
    "fall with decay / fall without it", 0.25, origin="a quarter of the speed, if only the run without it learns"
)
APART = Condition(
    "loss with decay − loss without it, over the loss at the start or a constant's",
    0.02,
    origin="below it both runs have learned nearly all there is; 0.002 for a sound network under Muon",
)
MOST = Condition("share of weights in which decay outweighs the gradient", 0.5, origin="more than half of the network")
NEARLY_ALL = Condition("the same, without any doubt", 0.9, origin="what is left of the network is too little to learn")
AT_CONSTANT = Condition("loss with decay / that of a constant", 0.98, origin="nothing has been learned")
SCALE = Threshold(
    "RMS of a norm's scales", 0.02, math.nan, bad="below", origin="they start at 1, or at exactly 0 on purpose"
)


@rule("weight-decay-dominates", quantity=TRAINING_LOSS)
def decay_dominates(evidence: Evidence) -> Iterator[Finding]:
    """Weight decay that keeps the network from learning: the same steps without it end far lower.

    Asked if decay alone shrinks a weight to 1/e in 1,000 steps or fewer, (1−μ)/(lr·wd), or if an adaptive optimizer
    adds a penalty above 1e-3 to its gradient; ordinary settings take 2,000 (SGD 0.1, momentum 0.9, 5e-4) to 100,000
    (AdamW 1e-3, 0.01). Severe if the loss without decay ends below half of that with it, if it learns where that with
    it falls by less than a quarter of that, or ends no lower than a constant's; a warning from 0.85. Not asked where
    the two differ by less than a fiftieth of the loss at the start, or of a constant's: then both have learned. If the
    run is too short to show it, a warning if the pull of decay outweighs the pull against it in most weights of a
    network that has not learned: wd·|θ| against the gradient if decay is added to it, and against Adam's largest step,
    1, if it is decoupled; severe if that is so in nine of ten and the network does not train.
    """
    trial, optimizer = evidence.trial, evidence.optimizer
    if trial is None or trial.own is None or optimizer is None or "no weight decay" not in trial.variants:
        return
    own, without = trial.own, trial.variants["no weight decay"]
    if trial.outcome(without) not in FALLING:
        return
    pulled = _outweighed(evidence, optimizer)
    outweighs = pulled > MOST.at
    reference = min(abs(trial.loss), trial.constant or abs(trial.loss))
    is_seen = without.loss < LOSS.warn * own.loss and own.loss - without.loss > APART.at * reference
    if not is_seen and not (outweighs and not trial.trains and without.loss < own.loss):
        return
    only_without = trial.outcome(without) == "learns" != trial.outcome(own)
    is_slow = only_without and trial.fall(own)[0] < FALL.at * trial.fall(without)[0]
    constant = 0.0 if trial.constant is None else trial.constant
    at_constant = own.loss > AT_CONSTANT.at * constant > 0 and without.loss < LEARNED * constant
    is_lost = pulled > NEARLY_ALL.at and not trial.trains
    groups = [group for group in optimizer.param_groups if group.get("weight_decay")]
    group = min(groups, key=lambda each: (shrinking_steps(optimizer, each), -float(each["weight_decay"])))
    decay, steps = float(group["weight_decay"]), shrinking_steps(optimizer, group)
    index = next(i for i, each in enumerate(optimizer.param_groups) if each is group)
    in_steps = f", which alone shrinks weights to 1/e in {number(steps)} steps," if steps < math.inf else ""
    pull = f"; its pull outweighs the gradient in {pulled:.0%} of all weights" if outweighs else ""
    yield Finding(
        rule="weight-decay-dominates",
        layer=_norm_of(evidence.problem.model, group) if len(optimizer.param_groups) > 1 else "",
        severity="severe" if without.loss < LOSS.severe * own.loss or is_slow or at_constant or is_lost else "warning",
        basis="tried",
        summary=f"with weight decay {number(decay)}{in_steps} the loss is {number(own.loss)} after "
        f"{len(own.run.losses)} steps; without it {number(without.loss)}{pull}.",
        evidence={
            "weight decay": decay,
            "steps to shrink to 1/e": steps,
            "share of weights it outweighs": pulled,
            "loss before": trial.loss,
            "loss with decay": own.loss,
            "loss without": without.loss,
        },
        reason="L + wd/2·‖θ‖² is smallest where ∇L = −wd·θ: strong decay keeps θ near zero, where the gradient of a "
        "deep network vanishes. Both runs saw the same batches.",
        treatment="less-weight-decay",
        remedy=f'optimizer.param_groups[{index}]["weight_decay"] = {usual_weight_decay(optimizer, group):g}',
    )


@rule("weight-decay-dominates", quantity=TRAINING_LOSS)
def penalty_dominates(evidence: Evidence) -> Iterator[Finding]:
    """A term of the loss that depends on the weights alone, and keeps the others from being learned.

    It falls to half or less while what depends on the data does not fall, also if the run goes on for half its length;
    or it outweighs that at the start. Without it, that falls to 0.75 or less in the same number of steps. Severe.
    """
    swamped = None if evidence.trial is None else evidence.trial.swamped
    if swamped is None or not swamped.are_of_weights or not ALONE.is_severe(swamped.alone / swamped.together):
        return
    yield Finding(
        rule="weight-decay-dominates",
        severity="severe",
        basis="tried",
        summary=f"a penalty of the weights falls from {number(swamped.others_before)} to "
        f"{number(swamped.others_after)}, and the rest of the loss is at {number(swamped.together)}; without the "
        f"penalty it falls from {number(swamped.before)} to {number(swamped.alone)} in the same number of steps.",
        evidence={
            "penalty before": swamped.others_before,
            "penalty after": swamped.others_after,
            "rest with the penalty": swamped.together,
            "rest without": swamped.alone,
        },
        limits=ALONE.limits(),
        reason="L + λ‖θ‖² is smallest where ∇L = −2λθ: a strong penalty keeps θ near zero, where the gradient of a "
        "deep network vanishes.",
        remedy="# multiply the penalty by 1e-4 or less, or use the optimizer's weight_decay",
    )


def _outweighed(evidence: Evidence, optimizer: Optimizer) -> float:
    """The share of all weights in which decay pulls harder than what moves them against it."""
    weights = [] if evidence.inspection is None else evidence.inspection.weights
    moved = [w for w in weights if w.role in ("weight", "recurrent") and w.gradient is not None and w.lr]
    decouples = all(is_decoupled(optimizer, group) for group in optimizer.param_groups)
    lost = [w for w in moved if (w.weight_decay or 0.0) * w.rms > (1.0 if decouples else w.gradient or 0.0)]
    return sum(w.numel for w in lost) / max(1, sum(w.numel for w in moved))


def _norm_of(model: nn.Module, group: dict[str, Any]) -> str:
    """The first norm of a group that holds norms alone; "" if the group holds other layers too."""
    held = {id(p) for p in group["params"]}
    owners = [(n, m) for n, m in model.named_modules() if any(id(p) in held for p in m.parameters(recurse=False))]
    return owners[0][0] if owners and all(is_norm(module) for _, module in owners) else ""


@rule("weight-decay-dominates", quantity=TRAINING_LOSS)
def decayed_scales(evidence: Evidence) -> Iterator[Finding]:
    """Scales of norms that decay has driven to zero: an RMS below 0.02, but not exactly zero.

    Scales start at 1. Those that start at 0 on purpose are exactly zero, or have a group without decay.
    """
    inspection, optimizer = evidence.inspection, evidence.optimizer
    if inspection is None or optimizer is None:
        return
    scales = [w for w in inspection.weights if w.role == "norm" and w.name.endswith("weight") and w.is_trainable]
    small = [w for w in scales if w.rms > 0 and SCALE.is_warning(w.rms) and w.weight_decay and w.lr]
    if not small:
        return
    are_most = 2 * len(small) > len(scales)
    worst = min(small, key=lambda w: w.rms)
    does_not_train = evidence.trial is not None and evidence.trial.trains is False
    yield Finding(
        rule="weight-decay-dominates",
        layer=worst.layer,
        severity="severe" if are_most and does_not_train else "warning",
        basis="measured",
        summary=f"weight decay {number(worst.weight_decay or 0)} has driven the scales of {len(small)} of "
        f"{len(scales)} norms to zero: their RMS is {number(worst.rms)} at {worst.layer}.",
        evidence={"RMS of scales": worst.rms, "norms": float(len(small)), "weight decay": worst.weight_decay or 0.0},
        reason="The scale of a norm is the size of its layer's outputs, and of the gradient of all layers before it.",
        treatment="no-decay-of-norms",
        remedy="# give the scales of norms a parameter group of their own, with weight_decay=0",
    )
