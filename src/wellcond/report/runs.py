"""Training runs as curves of the loss: the short runs of a diagnosis, and what remedies did."""

from __future__ import annotations

import math
from collections.abc import Mapping

from wellcond.diagnosis.trial_result import Trial
from wellcond.report.bars import MOST_BLOCKS, block
from wellcond.report.figures.style import Curve
from wellcond.report.table import finite_or_gap
from wellcond.results import number
from wellcond.treatment.treatment import Treatment

MOST_CURVES = 6
"""Remedies in one plot, each with a color of its own."""


def is_helped(treatment: Treatment) -> bool:
    """Whether a remedy is better than none."""
    return treatment.best is not None and treatment.best.name != treatment.untreated.name


def trial_curves(trial: Trial) -> dict[str, Curve]:
    """The loss of every short run, by what was tried: the optimizer as it is first."""
    runs = {} if trial.own is None else {f"as it is, lr {trial.own.lr:.3g}": trial.own.run}
    runs |= {f"lr {each.lr:.3g}": each.run for each in trial.others}
    runs |= {name: each.run for name, each in trial.variants.items()}
    if trial.few is not None:
        runs[f"a handful of examples, Adam, lr {trial.few.lr:.3g}"] = trial.few.run
    return {
        name: (list(range(1, len(run.losses) + 1)), finite_or_gap(run.losses))
        for name, run in runs.items()
        if run.losses
    }


def treatment_curves(treatment: Treatment, *, only_best: bool = False) -> dict[str, Curve]:
    """The loss of arms at their rates, the mean over seeds: the untreated network, the best remedy, then the others.

    Args:
        treatment: What remedies did.
        only_best: Leave the others out.
    """
    arms = [treatment.untreated, *([treatment.best] if treatment.best is not None else [])]
    arms += [] if only_best else treatment.arms.values()
    curves: dict[str, Curve] = {}
    for arm in {arm.name: arm for arm in arms}.values():
        rate = arm.best_lr if arm.best_lr is not None else min(arm.runs, default=None)
        if rate is not None:
            by_seed = [run.curve() for run in arm.runs[rate].values()]
            steps = min((steps for steps, _ in by_seed), key=len)
            mean = [sum(losses[i] for _, losses in by_seed) / len(by_seed) for i in range(len(steps))]
            curves |= {f"{arm.name}, lr {rate:.3g}": (list(steps), finite_or_gap(mean))} if steps else {}
    return dict(list(curves.items())[:MOST_CURVES])


def sparklines(curves: Mapping[str, Curve]) -> dict[str, str]:
    """Each curve in blocks, all on one scale from 0 to the largest first loss, with where it begins and ends.

    Example:
        >>> sparklines({"before": ([1, 2], [2.0, 2.0]), "after": ([1, 2], [2.0, 0.5])})
        {'before': '██  2 → 2', 'after': '█▂  2 → 0.5'}
    """
    known = {name: [loss for loss in losses if not math.isnan(loss)] for name, (_, losses) in curves.items()}
    top = max((losses[0] for losses in known.values() if losses), default=1.0) or 1.0
    lines = {}
    for name, losses in known.items():
        size = -(-len(losses) // MOST_BLOCKS) or 1
        blocks = "".join(block(losses[i] / top) for i in range(0, len(losses), size))
        lines[name] = f"{blocks}  {number(losses[0])} → {number(losses[-1])}" if losses else "diverged at once"
    return lines
