"""What the outputs of a run are worth, compared with those of other examples."""

from __future__ import annotations

import contextlib

from wellcond.diagnosis.probes.paired import Paired, depends_on_pairs, paired
from wellcond.diagnosis.trial_result import Attempt, Trial
from wellcond.problem.batches import Batch
from wellcond.training.copy_run import CopyRun

TELLS_APART = 0.05
"""Loss of other examples' outputs over that of the right ones, minus 1, from which on a run tells examples apart."""
ALL_ALIKE = 0.1
"""Loss of other examples' outputs over the loss at the start, below which all outputs may have become the same."""


def worth(run: CopyRun, batch: Batch, draws: int = 1) -> Paired | None:
    """The loss of a batch with the right outputs and with those of other examples; None if that is not known.

    A mean over draws of what the model draws at random: with a few examples, one draw moves the loss by a third.
    """
    if run.diverged_at is not None:
        return None
    with contextlib.suppress(Exception), run.counted() as problem:  # the user's loss may refuse other outputs
        return paired(problem, batch, draws)
    return None


def sees_pairs(run: CopyRun, batch: Batch) -> bool:
    """Whether the loss depends on which example outputs belong to; False if that is not known."""
    with contextlib.suppress(Exception), run.counted() as problem:  # as above
        return depends_on_pairs(problem, batch)
    return False


def is_suspect(known: Trial, own: Attempt | None) -> bool:
    """Whether a run may have learned nothing of single examples: their outputs may as well be exchanged."""
    known_worth = None if own is None else own.paired
    if known_worth is None:
        return False
    return known_worth.gain < TELLS_APART or known_worth.of_others < ALL_ALIKE * known.loss
