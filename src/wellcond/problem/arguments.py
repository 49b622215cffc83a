"""What every probe is given, judged before anything is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any

import torch

from wellcond.errors import InvalidProblem
from wellcond.problem.problem import Problem

STALE = """\
the model's trainable parameters are not those it had when the Problem was made ({what}).
Make a new one:  wc.Problem(model, loss, batches)"""


def check_problem(problem: Any) -> None:
    """Raise for what is no `Problem`, or one whose model has since been changed; it costs no pass."""
    if not isinstance(problem, Problem):
        raise TypeError(f"a {type(problem).__name__} cannot be measured; pass a wc.Problem(model, loss, batches).")
    now = {name: p for name, p in problem.model.named_parameters() if p.requires_grad}
    for name, p in problem.params.items():
        if now.get(name) is not p:
            what = f"{name!r} is frozen" if not p.requires_grad else f"{name!r} is gone or another tensor"
            raise InvalidProblem(STALE.format(what=what))
        if (p.dtype, p.device) != (problem.dtype, problem.device):
            kinds = [f"{dtype} on {device}".removeprefix("torch.") for dtype, device in _kinds(problem, p)]
            raise InvalidProblem(STALE.format(what=f"{name!r} was {kinds[0]} and is {kinds[1]}"))
    if added := now.keys() - problem.params.keys():
        raise InvalidProblem(STALE.format(what=f"{min(added)!r} is new, or was frozen"))


def shared_memory(problem: Problem) -> dict[str, str]:
    """A note on every parameter, by its name, that lies in the memory of another one, which torch takes for two."""
    notes: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, p in problem.params.items():
        other = first.setdefault(p.data_ptr(), name)
        if other != name and p.numel():
            notes[name] = (
                f"{other!r} and {name!r} share their memory, but are two parameters: they are moved independently. "
                "To tie them, let both modules hold one nn.Parameter."
            )
    return notes


def as_whole(name: str, value: Any, least: int) -> int:
    try:
        whole = index(value)
    except TypeError:
        whole = least - 1
    if whole < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, at least {least}.")
    return whole


def as_positive(name: str, value: Any) -> float:
    number = as_number(value)
    if not 0 < number < math.inf:
        raise ValueError(f"{name} is {value!r}; it must be a number, positive and finite.")
    return number


def as_pair(value: Any) -> tuple[float, float]:
    """Two numbers; nan where there are not two, or one is none."""
    if isinstance(value, str) or not isinstance(value, (Sequence, torch.Tensor)) or len(value) != 2:
        return math.nan, math.nan
    return as_number(value[0]), as_number(value[1])


def as_number(value: Any) -> float:
    """A float; nan where it is no number."""
    try:
        return math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, RuntimeError):  # the last from a tensor of several
        return math.nan


def as_names(names: str | Sequence[str]) -> list[str]:
    """One name may stand for a list of it."""
    return [names] if isinstance(names, str) else list(names)


def _kinds(problem: Problem, p: torch.Tensor) -> list[tuple[torch.dtype, torch.device]]:
    return [(problem.dtype, problem.device), (p.dtype, p.device)]
