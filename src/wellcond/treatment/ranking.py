"""Which arms of a treatment go on: ranked by their screening, proposed by findings, or drawn at random."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence

from wellcond.diagnosis.finding import Finding
from wellcond.remedies.remedy import REMEDIES
from wellcond.treatment.arm import Arm
from wellcond.treatment.treatment import RATE, TOGETHER, UNTREATED, WORTHWHILE

FINALISTS = 3
"""Arms that are trained in full because of their screening."""

STARTS_IN_ORDER = {"weights": 1, "attention": 2, "biases": 2, "gates": 2, "recurrence": 2, "last weights": 3}
"""Parts of a set-up that say where training starts; everything else is changed before them."""

Arms = Mapping[str, Arm]
Proposals = Mapping[str, tuple[str, ...]]
"""The rules whose findings propose a remedy, by the remedy's name."""


def parts_of(name: str) -> list[str]:
    """The remedies of an arm."""
    return name.split(TOGETHER)


def in_order(names: Sequence[str]) -> list[str]:
    """Remedies in the order in which they are applied: weights are drawn in the network that is trained.

    What wraps a model gives its layers other names; and a last layer that starts at zero must not be drawn afterwards.

    Example:
        >>> in_order(["zero-last", "he-init", "scale-inputs"]), in_order(["softer-attention", "leaky-relu"])
        (['scale-inputs', 'he-init', 'zero-last'], ['leaky-relu', 'softer-attention'])
    """
    return sorted(names, key=lambda name: STARTS_IN_ORDER.get(REMEDIES[name].part, 0))


def proposals_of(findings: Sequence[Finding]) -> dict[str, tuple[str, ...]]:
    """The rules that propose each remedy; notes propose none."""
    rules = list(dict.fromkeys(finding.rule for finding in findings if finding.severity != "note"))
    proposals = {name: tuple(rule for rule in rules if rule in remedy.rules) for name, remedy in REMEDIES.items()}
    return {name: proposing for name, proposing in proposals.items() if proposing}


def is_screened(arms: Arms, name: str) -> bool:
    """Whether an arm went through the screening, even if every rate diverged there."""
    return name in arms and arms[name].screened is not None


def ranked(arms: Arms) -> list[str]:
    """Screened arms, the lowest loss first; without the rate alone, which is always trained.

    A combination that is no better than a part of it is left out.
    """
    losses = {name: arm.screened for name, arm in arms.items() if arm.screened is not None and name != RATE}
    finite = {name: loss for name, loss in losses.items() if math.isfinite(loss)}

    def is_needless(name: str) -> bool:
        parts = set(parts_of(name))
        fewer = [loss for other, loss in finite.items() if set(parts_of(other)) < parts]
        return any(finite[name] > loss - WORTHWHILE * abs(loss) for loss in fewer)

    return sorted((name for name in finite if not is_needless(name)), key=finite.__getitem__)


def fits(combination: str, name: str) -> bool:
    """Whether a remedy can be added to others: they must not change the same part of the training."""
    return REMEDIES[name].part not in {REMEDIES[part].part for part in parts_of(combination)}


def advised(arms: Arms, findings: Sequence[Finding], proposals: Proposals) -> str:
    """For each severe finding the remedy with the best screening, all together; "" if there is none."""
    chosen: list[str] = []
    for finding in findings:
        remedies = [name for name in ranked(arms) if finding.rule in proposals.get(name, ())]
        fitting = [name for name in remedies if not chosen or fits(TOGETHER.join(chosen), name)]
        if finding.severity == "severe" and fitting and not set(remedies) & set(chosen):
            chosen.append(fitting[0])
    return TOGETHER.join(chosen)


def finalists(arms: Arms, advice: str) -> list[str]:
    """The best of the screening, what the severe findings propose, and a better rate alone."""
    order = ranked(arms)
    chosen = order[:FINALISTS]
    alone = next((name for name in order if TOGETHER not in name), None)
    if alone is not None and alone not in chosen:  # if it is as good as a combination, it is preferred
        chosen[-1] = alone
    return chosen + [name for name in (advice, RATE) if name not in chosen and is_screened(arms, name)]


def not_chosen(arms: Arms, findings: Sequence[Finding], best: Arm) -> list[str]:
    """Why the best arm lacks a remedy that a severe finding names, one sentence for each.

    A better rate is not missed: every arm has one.
    """
    sentences = []
    for finding in findings:
        name = finding.treatment
        if finding.severity != "severe" or not name or name in (RATE, *parts_of(best.name)):
            continue
        arm = arms.get(name)
        if arm is None:
            reason = "there is nothing to treat"
        elif arm.refused is not None:
            reason = arm.refused
        elif best.name != UNTREATED and not fits(best.name, name):
            reason = "another remedy of the same part of the training does better"
        else:
            reason = "it does not help enough"
        sentences.append(f"{name}, which {finding.rule} proposes, is not part of the best: {reason}.")
    return list(dict.fromkeys(sentences))


def drawn(arms: Arms, others: Collection[str], seed: str) -> str | None:
    """A remedy drawn at random as a control, none that is tried for a reason; None if there is none.

    Args:
        arms: Arms that were screened.
        others: Arms that findings propose, or that go on because of their screening.
        seed: Seed of the draw.
    """
    taken = {RATE, *others, *(part for name in others for part in parts_of(name))}
    pool = [name for name in REMEDIES if is_screened(arms, name) and name not in taken]
    return random.Random(seed).choice(pool) if pool else None
