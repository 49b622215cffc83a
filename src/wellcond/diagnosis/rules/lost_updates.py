"""lost-updates: steps that are smaller than the precision of the weights.

Wrong:
    model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
Right:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)  # float32 weights
    with torch.autocast("cuda", torch.bfloat16):
        loss = criterion(model(inputs), targets)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.rule import rule
from wellcond.diagnosis.threshold import Condition, Threshold
from wellcond.diagnosis.trial_result import Trial
from wellcond.network.calling import dtype_name
from wellcond.results import number
from wellcond.results.quantities import LOST_UPDATES

LOST = Threshold(
    "share of the weights with a gradient that ten steps or more leave as they were", 0.25, 0.5,
    origin="perceptrons that train have less than 0.001 in float32 and 0.1 in bfloat16; at rates that are rounded away "
    "0.8 to 1",
)  # fmt: skip

WARM_UP = Condition(
    "highest rate of a schedule / rate", 2.0, origin="at its end a warm-up has a multiple of its first rate"
)

NEARLY_ALL = Condition("the same share", 0.95, origin="what is left are weights near zero, which are as precise as any")
HALVED = Condition(
    "loss of a handful of examples after training / before", 0.5, origin="there is clearly more to be learned"
)


@rule("lost-updates", quantity=LOST_UPDATES)
def lost_updates(evidence: Evidence) -> Iterator[Finding]:
    """A quarter or more of the weights are the same after the first steps of the trial, although each has a gradient.

    A step below half a unit in the last place, 2⁻⁹ of a weight in bfloat16, 2⁻¹² in float16 and 2⁻²⁵ in float32, is
    rounded away. Severe from half of the weights, if the trial does not show that the network trains; otherwise a
    warning. Of a network that has learned it is reported if nothing changes although Adam halves the loss of a handful
    of examples. Not reported at the beginning of a warm-up. In float32 it is reported only if no higher rate trains: if
    one does, the rate is too low.
    """
    trial = evidence.trial
    own = None if trial is None else trial.own
    if trial is None or own is None or not LOST.is_warning(own.lost):
        return
    stands_still = own.lost >= NEARLY_ALL.at and trial.outcome(own) == "flat"
    if trial.has_learned and not (stands_still and _can_learn_more(trial)):
        return
    if evidence.highest_lr > WARM_UP.at * own.lr:
        return  # the schedule comes to higher rates
    dtype = evidence.problem.dtype
    is_half = dtype in (torch.bfloat16, torch.float16)
    if not is_half and any(each.factor > 1 and trial.outcome(each) in ("learns", "falls") for each in trial.others):
        return
    yield Finding(
        rule="lost-updates",
        layer=own.most_lost.rpartition(".")[0] or own.most_lost,
        severity="severe" if LOST.is_severe(own.lost) and (stands_still or not trial.trains) else "warning",
        basis="tried",
        summary=f"at lr {number(own.lr)} the first steps leave {own.lost:.0%} of the weights as they were, most of "
        f"them in {own.most_lost}, although they have a gradient: the "
        f"steps are smaller than the precision of {dtype_name(dtype)}.",
        evidence={"share of weights that stay": own.lost, "lr": own.lr, "dtype": dtype_name(dtype)},
        reason="A step below half a unit in the last place of a weight, 2⁻⁹ of it in bfloat16, is rounded to nothing, "
        "however many are taken.",
        remedy=f"model.float()  # then recreate the optimizer; torch.autocast keeps the passes in {dtype_name(dtype)}\n"
        "# Or keep float32 master weights in the optimizer, round stochastically, or use a larger learning rate."
        if is_half
        else "# use a larger learning rate, or smaller weights",
    )


def _can_learn_more(trial: Trial) -> bool:
    return trial.few is not None and trial.few.after < HALVED.at * trial.few.before
