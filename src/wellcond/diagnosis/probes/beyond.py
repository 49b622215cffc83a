"""Whether the loss of a training step pulls outputs beyond what the last operation of the model can give."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.graph import never_negative, reaches_end_by_itself, tail_of
from wellcond.network.taps import bracketed
from wellcond.problem.apart import StepLoss
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep

BOUNDS = {
    "Relu": (0.0, math.inf), "Softplus": (0.0, math.inf), "Exp": (0.0, math.inf), "Sigmoid": (0.0, 1.0),
    "HardSigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0), "product": (0.0, math.inf),
}  # fmt: skip
"""What the results of an operation lie between; a product is one of numbers that are never negative."""
BEYOND_BY = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""How far beyond the bound the loss is asked for: targets have any size."""
BETWEEN = (0.56, 1.8)
"""Factors of the best of these distances, to come nearer to the lowest loss."""
OUT_OF_SIGHT = 1e6
"""A distance at which a loss without a lower bound is below zero, however small its slope is."""
PASSES = 2 * len(BEYOND_BY) + len(BETWEEN) + 11
"""Forward passes of a step, at most; a backward pass counts as two."""
FEWEST_PULLED = 8
"""Outputs that count, at least: of a few, all may be pulled to one side by chance."""
STAYS_ALIKE = 1e-3
"""Relative change of the slope in one output that rounding may cause when others are moved."""

Place = tuple[nn.Module, int]
"""A module that a step calls, and the index of a tensor in what it returns."""
Change = Callable[[Tensor], Tensor]


class Beyond(NamedTuple):
    """Outputs that are pulled beyond a bound.

    Attributes:
        operation: The last operation of the model, or "product".
        bound: What its results are never below, or never above.
        is_low: Whether it is a lower bound.
        pulled: Outputs that the loss pulls there, of the first batch.
        at_bound: Loss with all of these at the bound.
        least: Lowest loss with these beyond it.
        within: Lowest loss of outputs that the operation can give, where not all outputs are pulled beyond; else NaN.
    """

    operation: str
    bound: float
    is_low: bool
    pulled: int
    at_bound: float
    least: float
    within: float = math.nan


def is_step(problem: Problem) -> bool:
    """Whether the loss is that of a training step, which may have been taken apart into a call and a loss."""
    return isinstance(problem.loss, (TrainingStep, StepLoss))


def beyond(subject: Subject) -> Beyond | None:
    """Ask for the gradient of the loss with all outputs at a bound, and for the loss with outputs beyond.

    Where not all of them are pulled there, the loss is followed along its gradient twice: with outputs that stop at the
    bounds, and with outputs that do not. Outputs that are compared with each other, and those that a layer takes
    before the loss, are not judged so: they can get round a bound. Outputs of calls under `no_grad`, as of the next
    states of a Q-network, stay as they are.

    Returns:
        None for other losses than a training step, if nothing that it takes from the model has a bound, or if the
        loss falls without one: a model may return its own loss, which is never below zero.
    """
    if not is_step(subject.problem):
        return None
    operations: dict[Place, set[str]] = {}

    def noted(place: Place, t: Tensor) -> None:
        operations.setdefault(place, set()).add(_operation(t))

    _loss(subject, noted)
    for place, names in reversed(operations.items()):
        operation = next(iter(names))
        if len(names) == 1 and operation in BOUNDS:
            return _all_beyond(subject, place, operation) or _some_beyond(subject, place, operation)
    return None


def _operation(t: Tensor) -> str:
    tail = tail_of(t.grad_fn)[0][:1]
    return tail[0] if tail else "product" if never_negative(t.grad_fn) else ""


def _all_beyond(subject: Subject, place: Place, operation: str) -> Beyond | None:
    """All outputs that the loss depends on are pulled beyond the same bound."""
    for bound, sign in zip(BOUNDS[operation], (-1, 1), strict=True):
        if not math.isfinite(bound):
            continue
        loss, leaves, slopes = _slopes(subject, place, partial(torch.full_like, fill_value=bound))
        pulls = -sign * torch.cat([g.flatten() for g in slopes]) if slopes else torch.zeros(1)
        is_pulled = bool(pulls.isfinite().all()) and bool((pulls >= 0).all()) and loss > 0
        count = int((pulls > 0).sum()) if is_pulled else 0
        if count < FEWEST_PULLED:
            continue
        others = [_loss_at(subject, place, [torch.full_like(t, bound + sign * by) for t in leaves]) for by in BEYOND_BY]
        least = min((each for each in others if not math.isnan(each)), default=math.nan)
        return Beyond(operation, bound, sign < 0, count, loss, least) if least >= 0 else None
    return None


def _some_beyond(subject: Subject, place: Place, operation: str) -> Beyond | None:
    """Many outputs are pulled below the lower bound or above the upper one, each by itself."""
    low, high = BOUNDS[operation]
    loss, leaves, slopes = _slopes(subject, place, partial(torch.full_like, fill_value=low), is_last=True)
    size = math.sqrt(sum(float(g.square().sum()) for g in slopes) / max(sum(g.numel() for g in slopes), 1))
    if not loss > 0 or not 0 < size < math.inf or not _is_each_alone(subject, place, low, slopes):
        return None

    def moved(by: float) -> list[Tensor]:
        return [leaf.detach() - by / size * g for leaf, g in zip(leaves, slopes, strict=True)]

    losses = {by: _loss_at(subject, place, moved(by)) for by in (*BEYOND_BY, OUT_OF_SIGHT)}
    known = {by: each for by, each in losses.items() if not math.isnan(each)}
    if len(known) < len(losses) or min(known.values()) < 0:
        return None
    best = min(BEYOND_BY, key=lambda by: known[by])
    known |= {best * factor: _loss_at(subject, place, moved(best * factor)) for factor in BETWEEN}
    by = min(known, key=lambda by: known[by] if by < OUT_OF_SIGHT else math.inf)
    outside = sum(int(((t < low) | (t > high)).sum()) for t in moved(by))
    within = _loss_at(subject, place, [t.clamp(low, high) for t in moved(by)])
    if outside < FEWEST_PULLED or math.isnan(within):
        return None
    return Beyond(operation, low, True, outside, loss, known[by], within)


def _is_each_alone(subject: Subject, place: Place, low: float, slopes: list[Tensor]) -> bool:
    """Whether the slope of the loss in each output stays as it is when half of the others are moved."""
    draw = torch.Generator().manual_seed(0)
    halves: list[Tensor] = []

    def half_moved(t: Tensor) -> Tensor:
        halves.append((torch.rand(t.shape, generator=draw) < 0.5).to(t.device))
        return torch.full_like(t, low) + 0.5 * halves[-1]

    _, _, after = _slopes(subject, place, half_moved)
    if len(after) != len(slopes) or len(halves) != len(slopes):
        return False
    largest = max(float(g.abs().max()) for g in slopes)
    changes = [(b - a)[~half].abs() for a, b, half in zip(slopes, after, halves, strict=True)]
    return all(bool((each <= STAYS_ALIKE * largest).all()) for each in changes)


def _slopes(
    subject: Subject, place: Place, start: Change, *, is_last: bool = False
) -> tuple[float, list[Tensor], list[Tensor]]:
    """The loss of outputs, these outputs, and the slopes in them; no slopes if there are none, or not as asked.

    With `is_last`, nothing that has weights may come between the outputs and the loss.
    """
    leaves: list[Tensor] = []

    def leaf(t: Tensor) -> Tensor:
        leaves.append(start(t).detach().requires_grad_())
        return leaves[-1].clone()

    loss = _loss(subject, lambda at, t: leaf(t) if at == place else None)
    if loss is None or not leaves or not loss.requires_grad:
        return math.nan, leaves, []
    if is_last and not reaches_end_by_itself(leaves, loss.grad_fn):
        return math.nan, leaves, []
    slopes = torch.autograd.grad(loss, leaves, allow_unused=True)
    every = [torch.zeros_like(t) if g is None else g for g, t in zip(slopes, leaves, strict=True)]
    return float(loss.detach()), leaves, every


def _loss_at(subject: Subject, place: Place, values: list[Tensor]) -> float:
    """The loss of these outputs, with the graph of the model's: a step without one is refused. NaN if it is refused."""
    left = list(values)
    loss = _loss(subject, lambda at, t: 0 * t + left.pop(0).detach() if at == place else None)
    return math.nan if loss is None else float(loss.detach())


def _loss(subject: Subject, change: Callable[[Place, Tensor], Tensor | None]) -> Tensor | None:
    """The loss of the first batch with other outputs of what the step calls; None if the step refuses them."""
    depth = 0

    def on_entry(_module: nn.Module, _args: tuple[Any, ...], _kwargs: Mapping[str, Any]) -> None:
        nonlocal depth
        depth += 1

    def on_exit(module: nn.Module, output: Any) -> Any:
        nonlocal depth
        depth -= 1
        if depth:
            return None
        values, form = tree_flatten(output)
        for index, t in enumerate(values):
            if isinstance(t, Tensor) and t.grad_fn is not None and t.is_floating_point():
                changed = change((module, index), t)
                values[index] = t if changed is None else changed
        return tree_unflatten(values, form)

    # the user's step may refuse such outputs in any way
    with (
        contextlib.suppress(Exception),
        torch.enable_grad(),
        bracketed(subject.problem.model.modules(), on_entry, on_exit),
    ):
        return subject.problem.training_loss(0, (subject.inputs, subject.targets))
    return None
