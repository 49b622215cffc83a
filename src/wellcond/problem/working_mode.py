"""The mode in which a loss can be computed: some models return in training what they do not in evaluation."""

from __future__ import annotations

import contextlib

import torch

from wellcond.errors import NonFinite
from wellcond.problem.problem import Problem


def in_working_mode(problem: Problem) -> Problem:
    """The problem itself, or, if its loss fails in evaluation mode only, the same in training mode with fixed draws.

    A model with auxiliary heads returns their outputs in training alone, and its loss takes no others.
    """
    before = problem.cost
    if problem.dropout is not None or _works(problem):
        return problem
    trained = Problem(problem.model, problem.loss, problem.source, problem.batchnorm, dropout=0)
    trained.count_copies(problem.cost - before)
    return trained if _works(trained) else problem


def _works(problem: Problem) -> bool:
    try:
        with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
            problem.training_loss(*next(data))
    except NonFinite:
        return True
    except Exception:  # the user's code may raise anything
        return False
    return True
