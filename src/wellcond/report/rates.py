"""The loss after a few steps against the learning rate, with the limits that were measured and predicted."""

from __future__ import annotations

import math
from pathlib import Path

from wellcond.errors import MissingExtra
from wellcond.report.curves import dress
from wellcond.report.figures import COLOURS, save_figure
from wellcond.results.files import check_writable
from wellcond.verify.trial_steps import TrialSteps

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtra("matplotlib", "plots") from error


def save_rates(trial: TrialSteps, limits: dict[str, float], path: str | Path) -> Path:
    """Losses of trial steps over the learning rate, diverged ones as crosses at the upper edge, and rates as lines.

    limits: learning rates by what they are; one that is not finite is left out.
    """
    check_writable(path)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    good = ~trial.diverged
    axes.plot(trial.rates[good].tolist(), trial.final[good].tolist(), "o-", color=COLOURS[1], linewidth=1.6)
    axes.axhline(trial.loss, color="#8a929c", linewidth=1, linestyle=(0, (1, 2)), label="before the first step")
    if bool(trial.diverged.any()):
        gone = trial.rates[trial.diverged].tolist()
        edge = axes.get_xaxis_transform()
        axes.plot(gone, [0.97] * len(gone), "x", color=COLOURS[0], transform=edge, label="diverged")
    for (name, rate), colour in zip(limits.items(), (COLOURS[0], COLOURS[2], COLOURS[3]), strict=False):
        if math.isfinite(rate):
            axes.axvline(rate, color=colour, linestyle="--", linewidth=1.4, label=f"{name}: {rate:.3g}")
    axes.set_xscale("log")
    positive = trial.final[good]
    if len(positive) and float(positive.min()) > 0 and trial.loss / float(positive.min()) > 10:
        axes.set_yscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel(f"loss after {trial.steps} steps")
    dress(axes)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return save_figure(figure, path)
