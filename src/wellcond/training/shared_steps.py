"""A training step of a copy, which several processes take together: each passes over its part of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wellcond.network.isolation.copies import copied
from wellcond.problem.problem import Problem
from wellcond.problem.ranks.orders import Member, order, shared_work
from wellcond.problem.ranks.rank_source import parted

Norms = Literal["batch", "running"]


def shared_loss(member: Member, problem: Problem, index: int, batch: Any) -> Tensor:
    """The mean of the processes' losses on their parts of a batch, with its gradient, as DDP averages both.

    Args:
        member: This process, which leads.
        problem: The problem with the copy that is trained; call it inside its `measuring()`.
        index: The number of the step.
        batch: The joined batch.
    """
    parts = parted(batch, len(member.state["trainers"]))
    tensors = [t.detach() for t in _tensors(problem.model)]
    member.state["leading"] = problem, parts
    loss: Tensor
    loss, gradients = member.ask(step_gradient, index, problem.batchnorm, problem.dropout, tensors=tensors)
    # a number whose gradient is the one that is known: the graphs of the parts are gone, and need not be held together
    linear: Tensor = sum(
        ((p * g).sum() for p, g in zip(problem.params.values(), gradients, strict=True) if g is not None),
        start=torch.zeros_like(loss),
    )
    return loss + linear - linear.detach()


@order
def step_gradient(
    member: Member, index: int, batchnorm: Norms, seed: int | None, tensors: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss and its gradient, averaged over the processes that have data, at given weights and buffers."""
    team = member.team
    problem, parts = member.state.pop("leading") if team.leads else (_copy(member, batchnorm, seed, tensors), [])
    trainers = member.state["trainers"]
    by_rank = dict(zip(trainers, parts, strict=True)) if team.leads else {}
    part = team.hand_out([by_rank.get(rank) for rank in range(team.size)])
    params = list(problem.params.values())
    loss = torch.zeros((), dtype=problem.dtype, device=problem.device)
    gradients: list[Tensor | None] = [None] * len(params)
    with shared_work(team):
        if part is not None:
            with member.problem.as_trained(), problem.measuring():
                value = problem.training_loss(index, part)
                gradients = list(problem.gradient(value, params, allow_unused=True))
                loss = value.detach()
    is_used = torch.tensor([g is not None for g in gradients], dtype=torch.float64)
    dense = [torch.zeros_like(p) if g is None else g for p, g in zip(params, gradients, strict=True)]
    loss, *sums = team.add([loss.to(problem.dtype), *dense], "gradients")
    (used,) = team.add([is_used], "orders")
    mean = [g.div_(len(trainers)) if bool(is_any) else None for g, is_any in zip(sums, used, strict=True)]
    return loss / len(trainers), mean


def _copy(member: Member, batchnorm: Norms, seed: int | None, tensors: Sequence[Tensor]) -> Problem:
    """This process's copy of the model, with the weights and buffers of the one that is trained."""
    key = "copy", batchnorm, seed
    if key not in member.state:
        model = member.state.setdefault("copied model", copied(member.problem.model))
        with member.problem.as_trained():
            member.state[key] = Problem(model, member.problem.loss, member.problem.source, batchnorm, dropout=seed)
    problem: Problem = member.state[key]
    with torch.no_grad():
        for own, other in zip(_tensors(problem.model), tensors, strict=True):
            own.copy_(other)
    return problem


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
