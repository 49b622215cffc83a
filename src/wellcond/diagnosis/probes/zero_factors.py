"""Whether parameters of zeros block each other's gradients for ever, or only until their first step.

In h = B A x, zeros in B alone stop the gradient of A until B has moved. If A is zero too, B never moves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wellcond.diagnosis.probes.subject import Subject
from wellcond.network.isolation.isolation import parameters_kept

STEP = 0.01
"""How far the largest entry of a parameter moves in a step, and the size of what is put in the place of zeros."""
MOST_STEPS = 4
"""Zeros after zeros are unlocked one by one, each in a step of its own; few networks have more in a row."""


@dataclass(frozen=True)
class ZeroFactors:
    """Parameters of zeros that get no gradient, and would get one if they were not zero.

    Attributes:
        names: Their names, in the order of the model.
        without_gradient: Share of all trainable parameters whose gradient is zero and stays so.
    """

    names: tuple[str, ...]
    without_gradient: float


def zero_factors(subject: Subject) -> ZeroFactors | None:
    """Follow the gradients of parameters of zeros over a few steps of all others; nothing of the model's changes.

    Returns:
        None if there are not two such parameters, or all of them get a gradient sooner or later.
    """
    params = subject.problem.params
    zeros = {name for name, p in params.items() if p.numel() and not p.detach().any() and not name.endswith("bias")}
    if len(zeros) < 2:
        return None
    with parameters_kept(params.values()):
        gradients = _gradients(subject)
        blocked = _without(gradients, zeros)
        for _ in range(MOST_STEPS):
            if not blocked:
                return None
            _move(params, gradients)
            gradients = _gradients(subject)
            still = _without(gradients, blocked)
            if still == blocked:
                break
            blocked = still
        stay = _without(gradients, params)
        draw = torch.Generator().manual_seed(0)
        for name in sorted(blocked):
            p = params[name]
            p.data = STEP * torch.randn(p.shape, generator=draw).to(p)
        unlocked = blocked - _without(_gradients(subject), blocked)
    share = sum(params[name].numel() for name in stay) / subject.problem.size
    return ZeroFactors(tuple(name for name in params if name in unlocked), share) if unlocked else None


def _gradients(subject: Subject) -> dict[str, Tensor | None]:
    problem = subject.problem
    loss = problem.training_loss(0, (subject.inputs, subject.targets))
    return dict(
        zip(problem.params, problem.gradient(loss, list(problem.params.values()), allow_unused=True), strict=True)
    )


def _without(gradients: Mapping[str, Tensor | None], names: Collection[str]) -> set[str]:
    """Those of some parameters whose gradient is exactly zero; one that is not used is another matter."""
    return {name for name in names if (g := gradients[name]) is not None and not bool(g.any())}


def _move(params: Mapping[str, nn.Parameter], gradients: Mapping[str, Tensor | None]) -> None:
    for name, gradient in gradients.items():
        if gradient is not None and bool(gradient.any()):
            p = params[name]
            p.data = p.data - STEP * gradient / gradient.abs().max()
