"""A few steps of copies of a model: with its own optimizer and rate, with others, and on a handful of examples."""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer

from wellcond.problem.problem import Problem
from wellcond.results import Progress


@dataclass(frozen=True)
class Trial:
    """What short runs do.

    Attributes:
        trains: Whether the network is seen to train with its own optimizer; None where it is not known.
    """

    trains: bool | None = None


def trial(problem: Problem, optimizer: Optimizer | None = None, *, progress: Progress | None = None) -> Trial:
    """Train copies for a few steps."""
    return Trial()
