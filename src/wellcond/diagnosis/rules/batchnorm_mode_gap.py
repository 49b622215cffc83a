"""batchnorm-mode-gap: running statistics of BatchNorm that do not match the statistics of batches.

Wrong:
    model.eval()  # for validation
    for inputs, targets in loader:
        train_step(inputs, targets)
Right:
    model.train()  # before every epoch
    for inputs, targets in loader:
        train_step(inputs, targets)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import length_hint

from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Basis, Finding, Severity
from wellcond.diagnosis.reading import and_more, batchnorms, layer_named
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import NO_GAIN, RISING
from wellcond.results import number

GAP = Threshold(
    "loss with running statistics / loss with batch statistics", 1.5, math.nan,
    origin="running statistics are averages of the batches' own: after training both losses are nearly the same",
)  # fmt: skip
COSTS = Threshold(
    "loss after training with running statistics / with batch statistics", math.nan, 2.0,
    origin="a run of the same steps shows it",
)  # fmt: skip
MOMENTUM = Threshold(
    "momentum of running statistics", 2e-3, 1e-4, bad="below",
    origin="they forget their start in 1/momentum steps; torch's default 0.1 takes 10, published networks with 0.01 or "
    "0.003 up to 333; short runs have a few hundred, ordinary ones 1,000 to 10,000",
)  # fmt: skip
EPOCHS = Condition(
    "epochs that running statistics take to forget their start", 30.0, origin="ordinary runs have ten to a hundred"
)
MARGIN = Condition("loss difference / loss of the best constant", 0.1, origin="less is not worth a warning")
LOST = Condition(
    "loss with batch statistics / loss of the best constant", 0.5, origin="the network has clearly learned"
)
ENOUGH_UPDATES = Condition(
    "updates of running statistics", 20, origin="with momentum 0.1 they have forgotten 88 % of their start"
)


@rule("batchnorm-mode-gap")
def evaluating_norms(evidence: Evidence) -> Iterator[Finding]:
    """BatchNorm in evaluation mode that has never seen a batch: with mean 0 and variance 1 it normalizes nothing.

    Severe if the trial learns with batch statistics and ends more than twice as high with these; otherwise a warning,
    and a note if the whole model is in evaluation mode and it makes no difference. Statistics that have been updated
    are frozen on purpose in fine-tuning.
    """
    norms = batchnorms(evidence.problem.model)
    stale = [name for name, m in norms.items() if not m.training and _updates(m) == 0]
    if not stale:
        return
    trial = evidence.trial
    numbers: dict[str, float | str] = {"norms": float(len(stale))}
    severity: Severity = "warning" if evidence.problem.model.training else "note"
    basis: Basis = "proven"
    costs = ""
    if trial is not None and trial.own is not None and "running statistics" in trial.variants:
        own, running = trial.own, trial.variants["running statistics"]
        basis = "tried"
        numbers |= {"loss with batch statistics": own.loss, "loss with running statistics": running.loss}
        costs = (
            f"; after {len(own.run.losses)} steps the loss is {number(running.loss)}, compared with "
            f"{number(own.loss)} with the statistics of each batch"
        )
        is_higher = trial.outcome(running) in RISING or running.loss > COSTS.severe * own.loss
        if trial.outcome(own) == "learns" and is_higher:
            severity = "severe"
    yield Finding(
        rule="batchnorm-mode-gap",
        layer=stale[0],
        severity=severity,
        basis=basis,
        summary=f"{stale[0]} is in evaluation mode and has never seen a "
        f"batch{f', like {len(stale) - 1} more' if len(stale) > 1 else ''}, so it normalizes nothing{costs}.",
        evidence=numbers,
        reason="Running statistics start at mean 0 and variance 1, and change only in training mode.",
        remedy="model.train()  # before every epoch of training",
    )


@rule("batchnorm-mode-gap")
def modes_differ(evidence: Evidence) -> Iterator[Finding]:
    """A network with updated running statistics whose loss in evaluation mode is far above that in training mode.

    More than 1.5 times, and by more than a tenth of a constant's loss, after at least 20 updates. Severe if the network
    has learned with batch statistics and is no better than a constant with running ones.
    """
    trial = evidence.trial
    if trial is None or trial.modes is None:
        return
    norms = batchnorms(evidence.problem.model)
    if not norms or min(_updates(m) for m in norms.values()) < ENOUGH_UPDATES.at:
        return
    batch, running = trial.modes
    margin = MARGIN.at * abs(trial.constant) if trial.constant is not None else 0.0
    if not running > GAP.warn * batch + margin:
        return
    is_lost = trial.constant is not None and batch < LOST.at * trial.constant < trial.constant < running
    yield Finding(
        rule="batchnorm-mode-gap",
        layer=next(iter(norms)),
        severity="severe" if is_lost else "warning",
        basis="tried",
        summary=f"the loss is {number(batch)} with the statistics of each batch, and {number(running)} with the "
        "running ones, which evaluation uses.",
        evidence={
            "loss with batch statistics": batch,
            "loss with running statistics": running,
            "norms": float(len(norms)),
        },
        reason="Running statistics are averages of the batches' own. A gap means small batches, a momentum that is "
        "too low, or weights that change faster than the statistics.",
        remedy="torch.optim.swa_utils.update_bn(loader, model)  # the running statistics anew",
    )


@rule("batchnorm-mode-gap")
def separate_passes(evidence: Evidence) -> Iterator[Finding]:
    """A BatchNorm through which a step passes two kinds of examples in batches of their own, and learns nothing.

    Real and generated examples, say: what tells them apart, their means, is what the norm takes away from each batch.
    Statistics of the passes differ by 0.3 standard deviations, and the trial ends no lower than 7 % below its start.
    Severe. Discriminators that learn all the same are not reported.
    """
    trial = evidence.trial
    norm = None if trial is None else trial.shared_norm
    if trial is None or trial.own is None or norm is None or not norm.is_by_pass or trial.has_learned:
        return
    if trial.own.loss < NO_GAIN * trial.loss:
        return
    yield Finding(
        rule="batchnorm-mode-gap",
        layer=norm.name,
        severity="severe",
        basis="tried",
        summary=f"a step calls the model {norm.calls} times, on examples whose statistics differ at "
        f"{layer_named(norm.name)}: it takes what they differ by away from each batch, and the loss goes from "
        f"{number(trial.loss)} to {number(trial.own.loss)} only.",
        evidence={"calls": float(norm.calls), "loss before": trial.loss, "loss after": trial.own.loss},
        reason="A BatchNorm gives every batch mean 0 and variance 1: batches of one kind each look alike after it, and "
        "mixed ones, as in use, do not.",
        remedy="# pass both kinds through the model in one batch: model(torch.cat([real, generated])), or use a "
        "LayerNorm or GroupNorm",
    )


@rule("batchnorm-mode-gap")
def slow_statistics(evidence: Evidence) -> Iterator[Finding]:
    """Running statistics whose momentum is so low that they hardly leave their start.

    A warning if they take more than 500 steps to forget it, severe from 10,000, or 30 epochs of a loader, and
    for a momentum of 0. Statistics that have been updated that often are not reported.
    """
    norms = batchnorms(evidence.problem.model)
    momentums = {name: float(m.momentum) for name, m in norms.items() if m.momentum is not None and m.training}
    slow = {
        name: momentum
        for name, momentum in momentums.items()
        if MOMENTUM.is_warning(momentum) and _updates(norms[name]) * momentum < 1
    }
    if not slow:
        return
    name, momentum = min(slow.items(), key=lambda each: each[1])
    steps = number(1 / momentum) if momentum else "∞"
    source = evidence.problem.source
    in_epoch = 0 if isinstance(source.loader, (list, tuple)) else length_hint(source.loader, 0)  # a list may be a part
    is_late = momentum * in_epoch * EPOCHS.at < 1 <= in_epoch
    yield Finding(
        rule="batchnorm-mode-gap",
        layer=name,
        severity="severe" if is_late or momentum <= MOMENTUM.severe else "warning",
        basis="proven",
        summary=f"the running statistics of {name}{and_more(len(slow))} have a momentum of {number(momentum)}: they "
        f"take {steps} steps to forget their start, and evaluation uses them.",
        evidence={"momentum": momentum, "updates so far": float(_updates(norms[name])), "norms": float(len(slow))},
        reason="After k steps a share of (1 − momentum)^k of the initial mean 0 and variance 1 remains. torch's "
        "momentum is the weight of the new batch, which is 1 minus that of other libraries.",
        remedy="for m in model.modules():\n"
        "    if isinstance(m, torch.nn.modules.batchnorm._BatchNorm): m.momentum = 0.1",
    )


def _updates(norm: _BatchNorm) -> int:
    return int(norm.num_batches_tracked) if norm.num_batches_tracked is not None else int(ENOUGH_UPDATES.at)
