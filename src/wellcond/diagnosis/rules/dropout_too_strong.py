"""dropout-too-strong: dropout that leaves too little of a layer's inputs.

Wrong:
    nn.Dropout(0.9)  # taken for the share that is kept
Right:
    nn.Dropout(0.1)
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.nn.modules.dropout import _DropoutNd

from wellcond.diagnosis.attempts import STRONG_DROPOUT
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Basis, Finding, Severity
from wellcond.diagnosis.probes.dropped import strongest
from wellcond.diagnosis.reading import and_more
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import FALLING
from wellcond.results import number
from wellcond.results.quantities import TRAINING_LOSS

SHARE = Threshold(
    "share that is dropped", STRONG_DROPOUT, 0.85,
    origin="0.5 is the most in ordinary use (Srivastava et al. 2014); small networks still learn with 0.8, which "
    "multiplies the variance of sums by 5, more slowly",
)  # fmt: skip
LOWER = Condition("loss without dropout / loss with it", 0.98, origin="two per cent are the noise of a run")
MUCH_LOWER = Condition("loss without dropout / loss with it", 0.5, origin="half the loss after the same steps")

LEARNS = Condition("loss with dropout / loss of the best constant", 0.75, origin="it learns all the same, more slowly")


@rule("dropout-too-strong", quantity=TRAINING_LOSS)
def dropout_too_strong(evidence: Evidence) -> Iterator[Finding]:
    """Dropout above 0.6: severe above 0.85, if the same steps without it learn and these do not, or halve the loss.

    Dropping a share p multiplies the variance of what the next layer adds up by 1/(1−p): twofold at 0.5, the most in
    ordinary use, fivefold at 0.8. A note if the same steps without it end no lower. A function or a mask of one's own
    counts by its effect: values that random numbers set to zero. A mask of inputs, or of what may be asked for, that
    is not made up for by a factor is not dropout, but what a denoising or masked autoencoder is trained with.
    """
    trial = evidence.trial
    strong = {
        name: module.p
        for name, module in evidence.problem.model.named_modules()
        if isinstance(module, _DropoutNd) and SHARE.is_warning(module.p)
    }
    noise = None if evidence.behavior is None else evidence.behavior.noise
    for call in () if noise is None else filter(noise.is_dropout, strongest(noise.training)):
        if SHARE.is_warning(call.least_p):
            strong.setdefault(call.module or call.after, round(call.p, 2))
    if not strong:
        return
    name, p = max(strong.items(), key=lambda each: each[1])
    numbers: dict[str, float | str] = {"p": p, "such layers": float(len(strong))}
    severity: Severity = "warning"
    basis: Basis = "measured"
    costs = ""
    if trial is not None and trial.own is not None and "no dropout" in trial.variants:
        own, without = trial.own, trial.variants["no dropout"]
        basis = "tried"
        numbers |= {"loss with dropout": own.loss, "loss without": without.loss}
        costs = f": after {len(own.run.losses)} steps the loss is {number(own.loss)}, without it {number(without.loss)}"
        is_lower = trial.outcome(without) in FALLING and without.loss < own.loss - (1 - MUCH_LOWER.at) * abs(own.loss)
        only_without = trial.outcome(without) == "learns" != trial.outcome(own)
        if SHARE.is_severe(p) and (is_lower or only_without):
            learns = trial.constant is not None and own.loss < LEARNS.at * trial.constant
            severity = "warning" if trial.halves or learns else "severe"
        elif not without.loss < LOWER.at * own.loss:
            severity = "note"
    yield Finding(
        rule="dropout-too-strong",
        layer=name,
        severity=severity,
        basis=basis,
        summary=f"{name or 'the model'}{and_more(len(strong))} drops {p:.0%} of its inputs{costs}.",
        evidence=numbers,
        reason=f"The remaining inputs are scaled by 1/(1−p) = {1 / max(1 - p, 1e-9):.2g}, and so is the variance of "
        "sums after them.",
        treatment="less-dropout",
        remedy=f"# in the forward of {name or 'the model'}: drop a tenth of the values at most",
    )
