"""A training step of a copy, which several processes take together: each passes over its part of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wellcond.network.calling import to_device
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
    on_host = to_device(batch, torch.device("cpu"))  # every process has a device of its own
    parts = dict(zip(member.trainers, parted(on_host, len(member.trainers)), strict=False))  # a last batch may be small
    tensors = [t.detach() for t in _tensors(problem.model)]
    member.state["leading"] = problem, [parts.get(rank) for rank in range(member.team.size)]
    loss, gradients = member.ask(step_gradient, index, problem.batchnorm, problem.dropout, len(parts), tensors=tensors)
    known: Tensor = _Known.apply(loss, gradients, *problem.params.values())  # type: ignore[no-untyped-call]
    return known


class _Known(torch.autograd.Function):
    """A loss whose gradients are known: the graphs of the parts are gone, and need not be held together."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor | None], *_params: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *(None if each is None else scale * each for each in ctx.gradients)


@order
def step_gradient(
    member: Member, index: int, batchnorm: Norms, seed: int | None, count: int, tensors: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss and its gradient at given weights and buffers, averaged over the processes that have a part.

    Args:
        member: This process.
        index: The number of the step.
        batchnorm: The statistics that BatchNorm uses.
        seed: That of dropout.
        count: The number of parts.
        tensors: Weights and buffers.
    """
    team = member.team
    problem, parts = member.state.pop("leading") if team.leads else (None, [])
    part = team.hand_out(parts)
    own = member.problem
    loss = torch.zeros((), dtype=own.dtype, device=own.device)
    gradients: list[Tensor | None] = [None] * len(own.params)
    with shared_work(team):
        if problem is None:
            problem = _copy(member, batchnorm, seed, tensors)
        if part is not None:
            with own.as_trained(), problem.measuring():
                value = problem.training_loss(index, to_device(part, own.device))
                gradients = list(problem.gradient(value, list(problem.params.values()), allow_unused=True))
                loss = value.detach().to(own.dtype)
    is_used = torch.tensor([g is not None for g in gradients], dtype=torch.float64)
    dense = [torch.zeros_like(p) if g is None else g for p, g in zip(own.params.values(), gradients, strict=True)]
    loss, *sums = team.add([loss, *dense], "gradients")
    (used,) = team.add([is_used], "orders")
    mean = [g.div_(count) if bool(is_any) else None for g, is_any in zip(sums, used, strict=True)]
    return loss / count, mean


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
