"""Whether a bonus of the outputs alone, such as their entropy, keeps a term of the loss from being learned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from wellcond.diagnosis.after_runs import Bonus
from wellcond.diagnosis.attempts import Attempts
from wellcond.diagnosis.probes.paired import terms_of_pairs
from wellcond.diagnosis.swamped import OwnTerms, run_of_term, values_of_terms

OUTSHINES = 10.0
"""The bonus over all other terms together, from which on steps may follow it alone."""
STANDS = 0.03
"""Change of the bonus in the run, over its size, below which it had all that it wants from the start."""
BATCHES = 4
"""Batches whose losses show whether a term falls."""
CLEARLY = 3.0
"""Standard errors beyond which it falls."""


def bonus_of(attempts: Attempts, own_terms: OwnTerms) -> Bonus | None:
    """Compare a run with all terms, which has been made, with one of the same length without the bonus.

    Args:
        attempts: With the optimizer as it is, of which the run at its own rate has been made.
        own_terms: The terms of the loss before and after that run.

    Returns:
        None unless one term is below zero, ten times as large as all others together, as large after the run as before,
        and does not depend on which example outputs belong to, while the largest other one does.
    """
    trainer, own = attempts.trainer, attempts.trained
    before, after = own_terms
    if len(before) < 2 or len(before) != len(after) or not min(before) < 0:
        return None
    bonus = before.index(min(before))
    others = [abs(value) for k, value in enumerate(before) if k != bonus]
    if -before[bonus] < OUTSHINES * sum(others) or abs(after[bonus] - before[bonus]) > -STANDS * before[bonus]:
        return None
    with own.counted() as copy:
        are_of_pairs = terms_of_pairs(copy, trainer.batch)
    if len(are_of_pairs) != len(before) or are_of_pairs[bonus]:
        return None
    of_pairs = [k for k, is_paired in enumerate(are_of_pairs) if is_paired]
    steps = len(own.losses)
    if not of_pairs or not attempts.allows(steps, "a run without a bonus"):
        return None
    which = max(of_pairs, key=lambda k: abs(before[k]))
    start, alone = trainer.start().problem, run_of_term(trainer, which, steps)
    terms = [[values_of_terms(trainer, each, nth) for nth in range(BATCHES)] for each in (start, own.problem, alone)]
    first, together, by_itself = ([values[which] for values in every if values] for every in terms)
    if not _falls(by_itself, together) or not _falls(by_itself, first):
        return None
    return Bonus(before[bonus], after[bonus], fmean(first), fmean(together), fmean(by_itself))


def _falls(values: Sequence[float], than: Sequence[float]) -> bool:
    """Whether values of the same batches are clearly lower."""
    differences = [a - b for a, b in zip(values, than, strict=True)]
    if len(differences) < 2:
        return False
    return bool(fmean(differences) < -CLEARLY * stdev(differences) / math.sqrt(len(differences)))
