"""Whether parameters of zeros block gradients for ever, or only until their first step.

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
"""Zeros after zeros are unlocked one by one, each in a step of its own: a head, a gate and a last layer take three."""


@dataclass(frozen=True)
class ZeroFactors:
    """Parameters whose gradient is zero after some steps of all others, in a model that has parameters of zeros.

    Attributes:
        names: Parameters of zeros that would get a gradient if they were not zero, in the order of the model.
        cut: Parameters that get none even if no parameter is zero: something else cuts their gradient off.
        without_gradient: Share of all trainable parameters whose gradient is zero and stays so.
    """

    names: tuple[str, ...]
    cut: frozenset[str]
    without_gradient: float


def zero_factors(subject: Subject) -> ZeroFactors | None:
    """Follow gradients of zero over a few steps of all other parameters; nothing of the model's changes.

    Returns:
        None if no parameter is zero, or every one gets a gradient sooner or later.
    """
    params = subject.problem.params
    zeros = zeros_among(params)
    if not zeros:
        return None
    with parameters_kept(params.values()):
        gradients = _gradients(subject)
        silent = _without(gradients, params)
        for _ in range(MOST_STEPS):
            if not silent:
                return None
            _move(params, gradients)
            gradients = _gradients(subject)
            still = _without(gradients, silent)
            if still == silent:
                break
            silent = still
        draw = torch.Generator(subject.problem.device).manual_seed(0)
        for name in sorted(zeros & silent):
            p = params[name]
            p.data = STEP * torch.randn(p.shape, generator=draw, device=p.device).to(p)
        cut = _without(_gradients(subject), silent) if zeros & silent else silent
    share = sum(params[name].numel() for name in silent) / subject.problem.size
    names = tuple(name for name in params if name in zeros & silent - cut)
    return ZeroFactors(names, frozenset(cut), share) if silent else None


def zeros_among(params: Mapping[str, nn.Parameter]) -> set[str]:
    """Names of the parameters that are all zero; biases usually are, and block nothing."""
    return {name for name, p in params.items() if p.numel() and not p.detach().any() and not name.endswith("bias")}


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
