"""The loss and its gradient over the batches of all processes, each of which passes over its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from wellcond.problem.ranks.orders import Member, order, shared_work


@order
def mean_gradients(member: Member, names: Sequence[str]) -> tuple[Tensor, list[Tensor | None]]:
    """L () and its gradient by some parameters; None for one that no batch of any process uses."""
    problem = member.problem
    params = [problem.params[name] for name in names]
    weight = 0.0
    loss = torch.zeros((), dtype=problem.dtype, device=problem.device)
    sums = [torch.zeros_like(p) for p in params]
    is_used = torch.zeros(len(params), dtype=torch.bool)
    with shared_work(member.team), problem.measuring():
        for index, batch in own_batches(member):
            with torch.set_grad_enabled(bool(params)):
                evaluation = problem.evaluate(index, batch)
            weight += evaluation.weight
            loss += evaluation.weight * evaluation.loss.detach()
            gradients = problem.gradient(evaluation.loss, params, allow_unused=True) if params else ()
            for place, gradient in enumerate(gradients):
                if gradient is not None:
                    is_used[place] = True
                    sums[place].add_(gradient, alpha=evaluation.weight)
    loss, *sums = member.team.add([loss, *sums], "gradients")
    total, used = member.team.add([torch.tensor([weight], dtype=torch.float64), is_used.double()], "orders")
    weight = float(total)
    return loss / weight, [each.div_(weight) if bool(is_any) else None for each, is_any in zip(sums, used, strict=True)]


def own_batches(member: Member) -> Iterator[tuple[int, Any]]:
    """The batches of this process; none if others have the same."""
    if member.has_data:
        with contextlib.closing(member.problem.data()) as data:
            yield from data
