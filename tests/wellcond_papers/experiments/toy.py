"""A small experiment for the tests of what runs experiments; other processes import it by this name."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from wellcond.results import Row
from wellcond.results.quantities import TRAINING_LOSS
from wellcond_papers.experiments.claims import Outcome, claim, judged
from wellcond_papers.experiments.experiment import Experiment, Job
from wellcond_papers.experiments.pictures import over_training
from wellcond_papers.experiments.table import Table


def descend(job: Job) -> Iterator[Row]:
    """Gradient descent on a random quadratic; what the settings ask for goes wrong on the way.

    Some settings name a file that remembers what an earlier attempt did.
    """
    if job.settings.get("raises"):
        raise ArithmeticError("this arm always fails")
    for setting, act in {"raises_once": _raise, "killed_once": _die, "killed": _die}.items():
        if setting in job.settings:
            marker = Path(job[setting])
            if setting == "killed" or not marker.exists():
                marker.touch()
                act()
    generator = torch.Generator().manual_seed(job["seed"])
    weights = torch.randn(20, generator=generator, dtype=torch.float64)
    for step in range(job["steps"]):
        yield Row(step, "", TRAINING_LOSS, float(weights.square().sum()), "")
        weights = weights - job["lr"] * weights
        job.progress(f"step {step}", (step + 1) / job["steps"])


def _raise() -> None:
    raise RuntimeError("only this time")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@claim("the larger rate ends lower", paper="lower")
def larger_is_lower(table: Table) -> Outcome:
    slow, fast = (table.arm(arm)[0].last(TRAINING_LOSS) for arm in ("slow", "fast"))
    return judged([fast < slow], f"{fast:.3g} and {slow:.3g}")


TOY = Experiment(
    name="toy-fig1",
    title="a quadratic",
    says="A larger rate is faster.",
    arms={"slow": {"lr": 0.01}, "fast": {"lr": 0.1}},
    scales={"smoke": {"steps": 3, "seeds": 2, "data": None}, "paper": {"steps": 30, "data": "mnist"}},
    measure=descend,
    claims=[larger_is_lower],
    draw=lambda table: over_training(table, {"loss": TRAINING_LOSS}),
    minutes={"smoke": 0.01, "paper": 1.0},
)


def with_arms(**arms: dict[str, object]) -> Experiment:
    """The same with further arms."""
    return replace(TOY, arms={**TOY.arms, **{name: {"lr": 0.1, **settings} for name, settings in arms.items()}})
