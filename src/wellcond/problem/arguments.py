"""Arguments of measurements, checked before anything is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

import torch

from wellcond.network.checks import check_precision
from wellcond.problem.problem import Problem


def check_problem(problem: Any) -> None:
    """Refuse what cannot be measured: anything but a `Problem`, and parameters in half precision."""
    check_is_problem(problem)
    check_precision(problem.params)


def check_is_problem(problem: Any) -> None:
    """Raise `TypeError` for anything but a `Problem`; one in half precision can be inspected and trained."""
    if not isinstance(problem, Problem):
        raise TypeError(f"a {type(problem).__name__} cannot be measured; pass a wc.Problem(model, loss, batches).")


def check_unchanged(problem: Any) -> None:
    """Refuse anything but a `Problem`, and one whose model has changed since: one made from it would not show that.

    Raises:
        TypeError: It is no `Problem`.
        InvalidProblem: The model's parameters are others than when the problem was created.
    """
    check_is_problem(problem)
    with problem.measuring():
        pass


def as_whole(name: str, value: Any, least: int) -> int:
    """A whole number that is at least `least`; `ValueError` for anything else."""
    try:
        whole = index(value)
    except TypeError:
        whole = least - 1
    if whole < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, at least {least}.")
    return whole


def as_positive(name: str, value: Any) -> float:
    """A positive, finite number; `ValueError` for anything else."""
    number = as_number(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {value!r}; it must be a number, positive and finite.")
    return number


def as_two_numbers(value: Any) -> tuple[float, float]:
    """Two numbers; NaN for each that is not a number, and for both if there are not two."""
    if isinstance(value, str) or not isinstance(value, (Sequence, torch.Tensor)) or len(value) != 2:
        return math.nan, math.nan
    return as_number(value[0]), as_number(value[1])


def as_number(value: Any) -> float:
    """A float; NaN for anything that is not a number."""
    try:
        return math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, RuntimeError):  # the last from a tensor of several
        return math.nan
