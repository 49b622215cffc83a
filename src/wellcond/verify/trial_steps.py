"""The loss after a few steps of gradient descent, against the learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wellcond.errors import NonFinite
from wellcond.problem.points import Progress, buffers_lent, checked_if_it_moves, mean_loss, mean_loss_and_gradients
from wellcond.problem.problem import Problem
from wellcond.results import Row, number, text_table


@dataclass(frozen=True)
class TrialSteps:
    """Losses of gradient descent from the same weights at several learning rates. Tensors are float64, on the CPU.

    rates: (R,), in the order they were given. losses: (R, steps + 1), before the first step and after each; nan from
        the step on after which the loss is NaN or infinite.
    notes: where the loss first stopped being finite, and why.
    """

    rates: Tensor
    losses: Tensor
    momentum: float
    batchnorm: str
    notes: tuple[str, ...]

    @property
    def steps(self) -> int:
        return self.losses.shape[1] - 1

    @property
    def loss(self) -> float:
        """Before the first step."""
        return float(self.losses[0, 0])

    @property
    def final(self) -> Tensor:
        """(R,): the loss after the last step; nan where it is not finite."""
        return self.losses[:, -1]

    @property
    def diverged(self) -> Tensor:
        """(R,), bool: whether the loss ended above where it began, or stopped being finite."""
        return ~(self.final <= self.losses[:, 0])

    @property
    def best(self) -> float:
        """The rate of the lowest loss after the last step; nan if every one diverged."""
        final = self.final.masked_fill(self.diverged, math.inf)
        return math.nan if bool(self.diverged.all()) else float(self.rates[int(final.argmin())])

    @property
    def cost(self) -> float:
        """In u. A last loss takes a forward pass alone, and one that is not finite two, to find who is to blame."""
        finite_steps = self.losses[:, 1:].isfinite().sum(1)
        forwards = torch.where(finite_steps == self.steps, 1, 2)
        return float(1 + finite_steps.clamp_max(self.steps - 1).sum() + forwards.sum() / 3)

    def rows(self, step: int | None = None) -> list[Row]:
        """step: the training step at which the trials started."""
        out = [Row(step, "", "loss", self.loss, ""), Row(step, "", "best_lr", self.best, "lr")]
        for i, (rate, loss) in enumerate(zip(self.rates.tolist(), self.final.tolist(), strict=True)):
            out += [Row(step, "", f"trial_lr[{i}]", rate, "lr"), Row(step, "", f"trial_loss[{i}]", loss, "")]
        return [*out, Row(step, "", "cost", self.cost, "u")]

    def __str__(self) -> str:
        body = []
        for rate, losses, has_diverged in zip(self.rates, self.losses, self.diverged, strict=True):
            verdict = "diverged" if has_diverged else ""
            if not bool(losses.isfinite().all()):
                verdict = f"not finite after step {int(losses.isnan().nonzero()[0])}"
            body.append([number(float(rate)), number(float(losses[-1])), verdict])
        return "\n".join(
            [
                text_table(["lr", f"loss after {self.steps} steps", ""], body),
                f"from loss {number(self.loss)}; momentum {self.momentum:g}; best lr {number(self.best)}; "
                f"batchnorm={self.batchnorm!r}; cost {number(self.cost)} u (u: a forward+backward pass)",
                *(f"note: {note}" for note in self.notes),
            ]
        )


def trial_steps(
    problem: Problem,
    rates: Sequence[float] | Tensor,
    momentum: float = 0.0,
    steps: int = 20,
    *,
    progress: Progress | None = None,
) -> TrialSteps:
    """Take a few steps of gradient descent on all batches at each learning rate η, on copies of the weights.

        v ← μv + ∇L(θ),   θ ← θ − ηv

    What `max_lr` predicts from the curvature at one point, this tries: η beyond the limit of the quadratic model sends
    the loss up, unless it is less curved further out. It costs 1 + R·(steps − 1) forward+backward passes for R rates,
    which share their first gradient, and R forward passes for the last losses.

    progress: called as (what is being measured, share of the work that is done).

    L = w²/2 from w = 2, where each step multiplies w by 1 − η:

    >>> import wellcond as wc
    >>> model = torch.nn.Linear(1, 1, bias=False)
    >>> model.weight.data = torch.tensor([[2.0]])
    >>> problem = wc.Problem(model, lambda f, y: 0.5 * (f - y).square().mean(), (torch.ones(1, 1), torch.zeros(1, 1)))
    >>> trial = trial_steps(problem, [0.5, 1.5, 3.0], steps=2)
    >>> trial.final.tolist(), trial.diverged.tolist()
    ([0.125, 0.125, 32.0], [False, False, True])
    """
    given = torch.as_tensor(rates, dtype=torch.float64).detach().cpu().reshape(-1)
    if not len(given) or not bool((torch.isfinite(given) & (given > 0)).all()):
        raise ValueError(f"rates is {given.tolist()}; it must hold one or more numbers, all positive and finite.")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}; it must be at least 0 and below 1.")
    if steps < 1:
        raise ValueError(f"steps is {steps}; it must be at least 1.")
    notes: list[str] = []
    with problem.measuring():
        with checked_if_it_moves(problem):
            start, gradient = mean_loss_and_gradients(problem)
        losses = torch.full((len(given), steps + 1), math.nan, dtype=torch.float64)
        losses[:, 0] = start
        with buffers_lent(problem.params.values()) as (theta, here):
            velocity = [torch.empty_like(g) for g in gradient]
            for i, rate in enumerate(given.tolist()):
                if progress is not None:
                    progress("trial steps", i / len(given))
                torch._foreach_copy_(here, theta)
                torch._foreach_copy_(velocity, gradient)
                try:
                    _descend(problem, here, velocity, rate, momentum, losses[i])
                except NonFinite as error:
                    notes.append(f"the loss is not finite, first at lr {rate:g}: {error}")
    return TrialSteps(given, losses, momentum, problem.batchnorm, tuple(notes[:1]))


def _descend(
    problem: Problem, here: list[Tensor], velocity: list[Tensor], rate: float, momentum: float, losses: Tensor
) -> None:
    """Write the loss after every step into `losses`, until one is not finite. velocity: that of the first step."""
    steps = len(losses) - 1
    for t in range(1, steps):
        torch._foreach_add_(here, velocity, alpha=-rate)
        losses[t], gradient = mean_loss_and_gradients(problem)
        torch._foreach_mul_(velocity, momentum)
        torch._foreach_add_(velocity, gradient)
    torch._foreach_add_(here, velocity, alpha=-rate)
    losses[steps] = mean_loss(problem)
