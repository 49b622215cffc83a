"""Numbers read off training runs: accuracies by method and seed, early losses, and which of two means is greater.

A run that diverged counts as an accuracy of 0. Where the seeds of two methods are too close to tell, neither is ahead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from wellcond.results.quantities import LOSS, TEST_ACCURACY, TRAINING_LOSS
from wellcond_papers.experiments.claims import is_greater
from wellcond_papers.experiments.experiment import TRAINING_IMAGES
from wellcond_papers.experiments.table import Record, Table
from wellcond_papers.papers.lange2022.networks import TENSORFLOW_BN

DIVERGED = 0.0
"""The accuracy of a run that diverged."""


def first_step_at(curve: Mapping[int, float], loss: float) -> float:
    """The first step with a loss of at most `loss`, on a curve linear between evaluations; inf if there is none.

    Example:
        >>> first_step_at({0: 3.0, 100: 2.0, 200: 1.0}, 1.75)
        125.0
    """
    before: tuple[int, float] | None = None
    for step, value in curve.items():
        if value <= loss:
            if before is None:
                return float(step)
            share = (before[1] - loss) / (before[1] - value)
            return before[0] + share * (step - before[0])
        before = step, value
    return math.inf


def steps_to_loss_of(reference: Table, runs: Table) -> list[tuple[float, float]]:
    """Seed by seed: the share of the reference's steps after which it, and a run, reach the loss it ends with."""
    pairs = []
    for own in reference:
        curve = own.series(LOSS)
        if own.has_diverged or not curve:
            continue
        end = max(curve)
        for run in runs.where(seed=own.settings["seed"]):
            pairs.append((first_step_at(curve, curve[end]) / end, first_step_at(run.series(LOSS), curve[end]) / end))
    return pairs


def runs_of(table: Table, panel: str, method: str) -> Table:
    """The runs of a method of a panel; of BN those with the source's defaults, TensorFlow's, where there are any."""
    theirs = table.arm(f"{panel}: {TENSORFLOW_BN}") if method == "BN" else Table([])
    return theirs or table.arm(f"{panel}: {method}")


def of_seeds(runs: Table, begin: float = 1.0, end: float = 1.0) -> list[float]:
    """The test accuracy of every seed, at the end or over a stretch of the run."""
    return [_accuracy(record, begin, end) for record in runs]


def accuracies(
    table: Table, panel: str, methods: Sequence[str], begin: float = 1.0, end: float = 1.0
) -> dict[str, list[float]]:
    """The test accuracies of all seeds, by the methods of a panel that were run."""
    by_method = {method: of_seeds(runs_of(table, panel, method), begin, end) for method in methods}
    return {method: seeds for method, seeds in by_method.items() if seeds}


def _accuracy(record: Record, begin: float, end: float) -> float:
    series = record.series(TEST_ACCURACY)
    if record.has_diverged or not series:
        return DIVERGED
    last = max(series)
    # looks are at whole steps, which may lie half a step outside
    inside = [value for step, value in series.items() if step and begin * last - 1 < step < end * last + 1]
    return fmean(inside) if inside else series[min(series, key=lambda step: abs(step - end * last))]


def over_epochs(record: Record, quantity: str) -> tuple[list[float], list[float]]:
    """The epochs at which a quantity was measured, and its values."""
    series = record.series(quantity)
    per_epoch = TRAINING_IMAGES[record.settings["data"]] / record.settings["batch"]
    return [step / per_epoch for step in series], list(series.values())


def first_epoch(runs: Table) -> list[float]:
    """The mean loss of the mini-batches over the first epoch, of every seed."""
    means = []
    for run in runs:
        epochs, losses = over_epochs(run, TRAINING_LOSS)
        # each is a mean since the look before
        inside = [loss for a, b, loss in zip([0.0, *epochs], epochs, losses, strict=False) if (a + b) / 2 < 1]
        means += [fmean(inside)] if inside else []
    return means


def is_above(ours: Sequence[float], theirs: Sequence[float], by: float = 0.0, *, error: float) -> bool | None:
    """Whether a mean over seeds is greater by more than `by`; None if by less, or if they cannot be distinguished.

    Args:
        ours: One number per seed.
        theirs: One number per seed.
        by: The least difference.
        error: What the choice of the test images leaves in them.
    """
    order = is_greater(ours, theirs, at_least=error)
    return None if order and fmean(ours) - fmean(theirs) <= by else order


def is_near(ours: Sequence[float], theirs: Sequence[float], within: float) -> bool | None:
    """Whether two means are no further apart than `within`; None if they are, but cannot be distinguished.

    A run that diverged is near nothing, though it widens the spread over seeds.
    """
    if abs(fmean(ours) - fmean(theirs)) <= within:
        return True
    is_tie = is_greater(ours, theirs) is None and min(*ours, *theirs) > DIVERGED
    return None if is_tie else False
