"""learning-rate-too-high: a rate at which the loss rises or stalls, while it falls at a lower one.

Wrong:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
Right:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # see wc.suggest_lr
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import ASGD, SGD, Adam, Adamax, NAdam, Optimizer, RMSprop

from wellcond.diagnosis.attempts import ALIKE_RATES
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.reading import normalized_layers
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.runs import OTHER_LR, run_numbers, run_rows, set_lr
from wellcond.diagnosis.severity import network_has_learned
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import FALLING, HALF, Attempt, Trial
from wellcond.remedies.loss_code import wrapped_loss
from wellcond.results import Row, number
from wellcond.results.quantities import LR, TRAINING_LOSS
from wellcond.training.optimizers import begins_at_zero, configured_lr, nonzero_lr

RISE = Threshold(
    "rise of the loss / loss, in the trial's 24 to 64 steps", 0.02, 0.1,
    origin="steps around a minimum raise it by less than 0.02; a tenth is what a network must gain to have learned",
)  # fmt: skip
RISE_OF_LEARNED = Condition(
    "rise of the loss / loss of a network that has learned", 0.3, origin="a rate for the start may be high for the end"
)
LOWER_LOSS = Threshold(
    "loss at a lower rate / loss at its own, after the same steps", 2 / 3, 1 / 3, bad="below",
    origin="half as much again, or three times the loss: beyond the noise between two seeds",
)  # fmt: skip
JUMP = Threshold(
    "highest loss of the run / loss at the start", 2.0, math.nan, origin="a run at a good rate does not double its loss"
)
GAIN = Threshold(
    "fall of the loss / loss at a lower rate, where it stands still at its own", math.nan, 0.02,
    origin="four times what moves by chance (0.005 in some fifty steps)",
)  # fmt: skip
TIMES_AS_FAR = Condition("fall at a lower rate / fall at its own", 4.0, origin="beyond the noise between two seeds")
ABOVE_CONSTANT = Condition(
    "loss after its own run / loss of the best constant", 1.2, origin="of 310 sound set-ups none ends above 1.05"
)
BELOW_IT = Condition("loss at a lower rate / loss at its own", 0.85, origin="beyond the noise between two seeds")
BEYOND = Condition(
    "rate of a schedule / the configured one", 1e3, origin="a one-cycle rises 25 times, a warm-up to the configured one"
)
BELONGS = Condition(
    "(loss with the outputs of other examples − loss) / the larger", 0.2,
    origin="0.3 in a codebook whose loss rises before it falls; below 0.05 examples are not told apart",
)  # fmt: skip
NORMED = Condition(
    "share of the weights that a BatchNorm follows", 0.5,
    origin="most of the network: there steps that are too far make weights larger, and with them later steps smaller "
    "(Arora et al. 2019, on rate tuning by batch normalization)",
)  # fmt: skip
STREAM = Threshold(
    "N·lr·√fan_in of N post-norm layers", 0.1, 0.2,
    origin="6 layers of width 512, or 24 of width 32, at 1e-3 have 0.27 and fail without a warm-up; at 0.06 they "
    "train (Xiong et al. 2020; Wang et al. 2022)",
)  # fmt: skip
TRAINS = Condition("N·lr·√fan_in of post-norm layers that train", 0.06, origin="Xiong et al. 2020; Wang et al. 2022")
POST_NORMS = Condition(
    "LayerNorms on the residual stream", 4, origin="a pre-norm transformer has one, and one after its embeddings"
)


@rule("learning-rate-too-high", quantity=TRAINING_LOSS)
def rises_at_its_own_rate(evidence: Evidence) -> Iterator[Finding]:
    """The loss rises, is NaN or stalls in the trial's 24 to 64 steps, and falls at a lower rate.

    Severe if it does not come back, if it stands still while a lower rate gains 2 %, if it has learned nothing where a
    lower rate has, or if it ends above a constant's loss and a lower rate lower. If it comes back, a tenth of the rate
    is run for the same number of steps: severe if the loss rose twofold and ends more than three times as high as
    there, a warning from one and a half times. A catapult that ends as low is no fault; neither is a rate beyond
    2(1+μ)/λ_max by itself, at which cross-entropy trains; nor one that a schedule comes to from zero: what a warm-up is
    for is that it may be too high for the first steps. No more than a warning if it rises less than twofold and outputs
    belong to their examples, or it had fallen by a tenth before; or, as long as the loss is finite, with SGD without
    weight decay where a BatchNorm follows most of the weights: these grow until the rate suits them.
    """
    trial = evidence.trial
    if evidence.optimizer is None or trial is None or trial.own is None or not trial.own.lr > 0 or trial.uphill:
        return
    if begins_at_zero(evidence.optimizer):
        return
    lower = next((each for each in trial.others if each.factor < 1 and trial.outcome(each) in FALLING), None)
    if lower is not None and (stage := _how_it_fails(trial, trial.own, lower)) is not None:
        what, severity = stage
        comes_back = trial.own.run.diverged_at is None and _tunes_itself(evidence)
        yield _too_high(evidence, trial, trial.own, lower, what, "warning" if comes_back else severity)


def _tunes_itself(evidence: Evidence) -> bool:
    """Whether SGD trains a network whose BatchNorms make its steps smaller as the weights grow."""
    inspection, optimizer = evidence.inspection, evidence.optimizer
    if inspection is None or not isinstance(optimizer, SGD):
        return False
    if any(group["weight_decay"] for group in optimizer.param_groups):
        return False
    modules = dict(evidence.problem.model.named_modules())
    if not any(isinstance(module, _BatchNorm) for module in modules.values()):
        return False
    normed = normalized_layers(evidence, inspection)
    weights = [w for w in inspection.weights if w.role == "weight"]
    total = sum(w.numel for w in weights)
    return sum(w.numel for w in weights if w.layer in normed) > NORMED.at * total


def _how_it_fails(trial: Trial, own: Attempt, lower: Attempt) -> tuple[str, Severity] | None:
    """What the run at its own rate does wrong, in words, and how severe that is; None if nothing is wrong."""
    fall, _ = trial.fall(own)
    steps = len(own.run.losses)
    # a lower rate may have taken fewer steps, after which this one had learned too
    learned = "learns" in (trial.outcome(own), trial.outcome(own, early=True)) and not trial.is_out_of_hand
    only_lower_learns = trial.outcome(lower) == "learns" and not learned and not trial.has_learned
    rise = RISE_OF_LEARNED.at if trial.has_learned else RISE.warn
    if own.run.diverged_at is not None:
        return f"the loss is NaN or infinite at step {own.run.diverged_at}", "severe"
    tells_apart = own.paired is not None and own.paired.gain > HALF
    if -fall > rise:
        what = f"the loss rises from {number(trial.loss)} to {number(own.loss)} in {steps} steps"
        belongs = own.paired is not None and own.paired.gain > BELONGS.at
        is_learning = (belongs or trial.had_learned(own)) and not trial.is_out_of_hand
        return what, "severe" if (RISE.is_severe(-fall) and not is_learning) or only_lower_learns else "warning"
    is_lower = own.loss - lower.loss > (1 - LOWER_LOSS.warn) * abs(own.loss)  # losses may be negative
    if only_lower_learns and is_lower:
        return f"the loss is {number(own.loss)} after {steps} steps, no lower than a constant's", "severe"
    if trial.trains is False and not tells_apart and trial.fall(lower)[0] > max(GAIN.severe, TIMES_AS_FAR.at * fall):
        return f"the loss stays at {number(own.loss)} for {steps} steps", "severe"
    constant = math.inf if trial.constant is None else trial.constant
    if own.loss > ABOVE_CONSTANT.at * constant and lower.loss < BELOW_IT.at * own.loss and not trial.has_learned:
        return f"the loss is {number(own.loss)} after {steps} steps, above a constant's", "severe"
    if JUMP.is_warning(trial.spike) and is_lower and not trial.has_learned:
        what = f"the loss jumps to {number(max(own.run.losses))} and is {number(own.loss)} after {steps} steps"
        return what, "severe" if lower.loss < LOWER_LOSS.severe * own.loss else "warning"
    return None


def _too_high(evidence: Evidence, trial: Trial, own: Attempt, lower: Attempt, what: str, severity: Severity) -> Finding:
    limit = evidence.max_lr.value if evidence.max_lr is not None else None
    beyond = ""
    if limit is not None and 0 < limit < own.lr:
        beyond = f"; lr {number(own.lr)} is {number(own.lr / limit)} times the stability limit {number(limit)}"
    if count := _summed(evidence):
        beyond += f"; the loss is a sum over {count} examples, so for their mean the rate is {number(own.lr * count)}"
    layer = _module_above(evidence, lower.lr)
    if layer:
        beyond += f"; of the optimizer's groups only that of {layer} has a rate above {number(lower.lr)}"
    return Finding(
        rule="learning-rate-too-high",
        layer=layer,
        severity=severity,
        basis="tried",
        summary=f"at lr {number(own.lr)} {what}; at {number(lower.lr)} it falls to {number(lower.loss)}{beyond}.",
        evidence=run_numbers(trial, own, lower) | ({} if limit is None else {"stability limit": limit}),
        reason="Beyond 2(1+μ)/λ_max gradient descent overshoots along the sharpest direction; Adam's first steps, "
        "whose size is the rate itself whatever the gradient, overshoot too. Both runs saw the same batches.",
        treatment="" if count else "rate",
        remedy=wrapped_loss("summed_loss", f"summed_loss(outputs, targets) / {count}  # the mean, at the same rate")
        if count
        else f"{set_lr(lower.lr)}  # wc.suggest_lr finds the best one",
        rows=run_rows(trial, own, lower),
    )


def _module_above(evidence: Evidence, lr: float) -> str:
    """The module that holds all parameters with a rate above this one; "" if it is the whole model."""
    rates = {} if evidence.inspection is None else {w.name: w.lr for w in evidence.inspection.weights if w.lr}
    above = [name.split(".")[:-1] for name, rate in rates.items() if rate > lr]
    if not above or len(above) == len(rates):
        return ""
    return ".".join(
        parts[0] for parts in itertools.takewhile(lambda each: len(set(each)) == 1, zip(*above, strict=False))
    )


def _summed(evidence: Evidence) -> int:
    """The number of examples that a loss adds up, if steps are proportional to its gradient; otherwise 0."""
    inspection = evidence.inspection
    is_proportional = isinstance(evidence.optimizer, (SGD, ASGD))
    return inspection.batch_size if inspection is not None and inspection.is_summed and is_proportional else 0


@rule("learning-rate-too-high", quantity=TRAINING_LOSS)
def one_group(evidence: Evidence) -> Iterator[Finding]:
    """A group of parameters whose rate is thirty times the next, and with the next the same steps end far lower.

    A warning where the loss is then two thirds or less, severe from a third on, and where only that run learns.
    """
    trial = evidence.trial
    if evidence.optimizer is None or trial is None or trial.own is None or trial.has_learned:
        return
    own, other = trial.own, trial.variants.get(ALIKE_RATES)
    if other is None or trial.outcome(other) not in FALLING:
        return
    is_lower = other.loss < LOWER_LOSS.warn * own.loss or own.run.diverged_at is not None
    only_other_learns = trial.outcome(other) == "learns" != trial.outcome(own)
    if not is_lower and not only_other_learns:
        return
    rates = sorted({nonzero_lr(group) for group in evidence.optimizer.param_groups if group["params"]})
    high, lower = rates[-1], rates[-2]
    layer = _module_above(evidence, lower)
    index = next(k for k, group in enumerate(evidence.optimizer.param_groups) if nonzero_lr(group) == high)
    yield Finding(
        rule="learning-rate-too-high",
        layer=layer,
        severity="severe" if only_other_learns or not other.loss >= LOWER_LOSS.severe * own.loss else "warning",
        basis="tried",
        summary=f"the optimizer's group {index}{f', that of {layer},' if layer else ''} has a rate of {number(high)}, "
        f"the next {number(lower)}: the loss is {number(own.loss)} after {len(own.run.losses)} steps, and "
        f"{number(other.loss)} where both have {number(lower)}.",
        evidence={"lr": high, "next lr": lower, "loss after": own.loss, "loss with rates more alike": other.loss},
        limits=LOWER_LOSS.limits(own.loss),
        reason="Every group needs a rate below the stability limit along its own directions. Both runs saw the same "
        "batches.",
        remedy=f'optimizer.param_groups[{index}]["lr"] = {lower:g}',
        rows=run_rows(trial, own, other),
    )


@rule("learning-rate-too-high", quantity=LR)
def rises_for_ever(evidence: Evidence) -> Iterator[Finding]:
    """A schedule whose rate still rises after 10,000 steps, and is then a thousand times the configured one or more.

    A decay with a factor above 1. Severe.
    """
    schedule, optimizer = evidence.schedule, evidence.optimizer
    if schedule is None or optimizer is None or schedule.highest < math.inf:
        return
    configured = max(map(configured_lr, optimizer.param_groups))
    if not configured > 0 or max(schedule.rates) < BEYOND.at * configured:
        return
    step = next(k for k, rate in enumerate(schedule.rates) if rate >= BEYOND.at * configured)
    yield Finding(
        rule="learning-rate-too-high",
        severity="severe",
        basis="proven",
        summary=f"the schedule raises the rate without an end: after {step} steps it is {number(BEYOND.at)} times the "
        f"configured {number(configured)}.",
        evidence={"configured lr": configured, "steps": float(step)},
        reason="A factor of a decay is below 1; above 1 the rate grows exponentially.",
        remedy="# choose a factor below 1: ExponentialLR(optimizer, gamma=0.99)",
        rows=tuple(Row(k, "", LR, rate, "lr") for k, rate in enumerate(schedule.rates[: step + 1])),
    )


@rule("learning-rate-too-high", quantity=TRAINING_LOSS)
def negative_rate(evidence: Evidence) -> Iterator[Finding]:
    """A rate below zero, which torch refuses in a constructor but not from a schedule."""
    if evidence.optimizer is None:
        return
    for index, group in enumerate(evidence.optimizer.param_groups):
        lr = nonzero_lr(group)
        if lr < 0:
            yield Finding(
                rule="learning-rate-too-high",
                severity="severe",
                basis="proven",
                summary=f"the learning rate of group {index} is {number(lr)}: every step goes uphill.",
                evidence={"lr": lr},
                reason="θ ← θ − lr·g with a negative lr maximizes the loss.",
                treatment="rate",
                remedy=f"{set_lr(min(-lr, 0.1))}  # and look at the schedule that made it negative",
                rows=(Row(None, "", LR, lr, "lr"),),
            )


@rule("learning-rate-too-high", quantity=TRAINING_LOSS)
def without_warm_up(evidence: Evidence) -> Iterator[Finding]:
    """A deep post-norm transformer that Adam trains at its full rate from the first step.

    Adam's first steps change every entry by lr, and so what a unit adds to a stream of size 1 by lr·√fan_in. On a
    residual stream that is normalized after every sum these changes add up over the layers, N·lr·√fan_in, where
    pre-norm adds up their logarithm (Xiong et al. 2020; Wang et al. 2022). Severe from 0.2, unless the loss halves in
    a trial; a warning from 0.1, unless the network trains in one.
    """
    inspection, optimizer = evidence.inspection, evidence.optimizer
    if inspection is None or inspection.output is None or inspection.output.post_norms < POST_NORMS.at:
        return
    if optimizer is None or not _divides_by_gradients(optimizer):
        return
    weights = [w for w in inspection.weights if w.role == "weight" and w.lr and w.rms]
    changes = sorted((w.lr or 0.0) * math.sqrt(w.fan_in) for w in weights)
    if not changes or network_has_learned(evidence):
        return
    count = inspection.output.post_norms
    change = count * changes[len(changes) // 2]
    trial = evidence.trial
    is_excused = trial is not None and (trial.halves if STREAM.is_severe(change) else bool(trial.trains))
    if change < STREAM.warn or is_excused:
        return
    lr = max(w.lr or 0.0 for w in weights)
    lower = lr * TRAINS.at / change
    yield Finding(
        rule="learning-rate-too-high",
        severity="severe" if STREAM.is_severe(change) else "warning",
        basis="measured",
        summary=f"lr {number(lr)} is too high for {type(optimizer).__name__} without a warm-up: the first steps "
        f"change the residual stream of {count} post-norm layers by {number(change)} of its size. At "
        f"{number(lower)}, or with a rate that rises over the first thousand steps, they change it by "
        f"{number(TRAINS.at)}.",
        evidence={"lr": lr, "post-norm layers": float(count), "change in all": change, OTHER_LR: lower},
        reason="A LayerNorm after every sum passes each layer's change on in full, so those of Adam's first steps add "
        "up (Xiong et al. 2020).",
        treatment="rate",
    )


def _divides_by_gradients(optimizer: Optimizer) -> bool:
    """Whether first steps are of the size of the rate, whatever the gradient."""
    return isinstance(optimizer, (Adam, NAdam, Adamax, RMSprop))
