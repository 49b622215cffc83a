"""How long a gradient step can be before the sharpest direction diverges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from wellcond.errors import InvalidProblem
from wellcond.problem.problem import Problem
from wellcond.results import Row
from wellcond.spectral.eigenvalues import Eigenvalues


@dataclass(frozen=True)
class OptimizerStep:
    """What an optimizer does now. limit: of its lr, or None where the eigenvalues of H bound nothing (Adam)."""

    name: str
    lr: float
    momentum: float
    limit: float | None

    def rows(self) -> list[Row]:
        out = [Row(None, "", "lr", self.lr, "lr"), Row(None, "", "momentum", self.momentum, "")]
        return out if self.limit is None else [*out, Row(None, "", "max_lr(optimizer)", self.limit, "lr")]


@dataclass(frozen=True)
class StepLimit:
    """The largest stable learning rate on this batch, in the quadratic model of the loss.

    plain: 2/λ_max(H), for gradient descent without momentum; None if λ_max is unknown or not positive.
    error: how much larger it could be, by the error bound of λ_max; inf if λ_max might be zero.
    """

    plain: float | None
    error: float | None
    optimizer: OptimizerStep | None

    def rows(self) -> list[Row]:
        named = {"max_lr": self.plain, "max_lr_error": self.error}
        out = [Row(None, "", quantity, value, "lr") for quantity, value in named.items() if value is not None]
        return out if self.optimizer is None else [*out, *self.optimizer.rows()]


def step_limit(
    problem: Problem, hessian: Eigenvalues | None, optimizer: torch.optim.Optimizer | None = None
) -> StepLimit:
    """2/λ_max and, beside an optimizer's lr, the limit with its momentum. The optimizer is only read."""
    plain = error = None
    sharpest = None if hessian is None else float(hessian.values[-1])
    if hessian is not None and sharpest is not None and sharpest > 0:
        lowest = sharpest - float(hessian.errors[-1])
        plain = 2 / sharpest
        error = 2 / lowest - plain if lowest > 0 else float("inf")
    return StepLimit(plain, error, None if optimizer is None else _optimizer_step(problem, optimizer, sharpest))


def groups_of(problem: Problem, optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The optimizer's groups that hold parameters of the problem; refused if there are none."""
    own = {id(p) for p in problem.params.values()}
    groups = [group for group in optimizer.param_groups if any(id(p) in own for p in group["params"])]
    if not groups:
        raise InvalidProblem(
            "the optimizer holds none of the model's trainable parameters: it was made for another model. "
            "Write optimizer = torch.optim.SGD(model.parameters(), lr=...)."
        )
    return groups


def _optimizer_step(problem: Problem, optimizer: torch.optim.Optimizer, lambda_max: float | None) -> OptimizerStep:
    """The largest lr of the groups, and the smallest of their limits: with every lr below it, the step is stable."""
    groups = groups_of(problem, optimizer)
    lr = max(float(group["lr"]) for group in groups)
    momentum = max(float(group.get("momentum", 0.0)) for group in groups)
    limit = None
    is_sgd = isinstance(optimizer, torch.optim.SGD) and not any(group["maximize"] for group in groups)
    if is_sgd and lambda_max is not None and lambda_max > 0:
        limit = min(_sgd_limit(group, lambda_max) for group in groups)
    return OptimizerStep(type(optimizer).__name__, lr, momentum, limit)


def _sgd_limit(group: dict[str, Any], lambda_max: float) -> float:
    """2(1+μ) / ((1−τ)(λ+w)) with momentum μ, dampening τ and weight decay w; Nesterov's 2(1+μ) / ((1+2μ)(λ+w))."""
    mu, dampening, decay = (float(group[key]) for key in ("momentum", "dampening", "weight_decay"))
    divisor = 1 + 2 * mu if group["nesterov"] else 1 - (dampening if mu else 0.0)
    return 2 * (1 + mu) / (divisor * (lambda_max + decay)) if divisor > 0 else float("inf")
