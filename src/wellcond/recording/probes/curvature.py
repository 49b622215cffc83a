"""λ_max, the limit of the learning rate, and how far the gradient can be trusted, from one graph of a small batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.curvature.hessian import hessian_product, refuse_weight_norm
from wellcond.errors import InvalidProblem, Unsupported
from wellcond.learning_rate.limits.limits import RateLimit
from wellcond.learning_rate.limits.step_model import StepModel, check_optimizer, optimizer_step
from wellcond.measurements.landscape.points import buffers_lent, finite_range, loss_and_gradient, norm
from wellcond.problem.checks import check_precision
from wellcond.problem.problem import Problem
from wellcond.results import Row
from wellcond.results import quantities as q
from wellcond.training.optimizers import current_lr

NEAR, FAR = 1.0, 4.0
"""Lengths of the walk along the gradient, in learning rates: its gradient is measured at the near point only."""
ROUNDING = 1e-6
"""Norm of a rest, over that of the matrix, from which on it is rounding."""
PRECONDITIONED, PLAIN = "preconditioned", "plain"


class CurvatureProbe:
    """Follows the largest eigenvalue over a run: every probe starts from the vector that the last one ended with.

    Args:
        optimizers: Those that train the model.

    Attributes:
        gradient_norm: ‖∇L‖ on the examples of the last probe.
        note: Why there is no limit of the rate, or "".
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self.gradient_norm = math.nan
        self.note = "" if len(optimizers) == 1 else "several optimizers: their limits of the rate are not measured"
        self._optimizer = optimizers[0]
        self._vectors: dict[str, Tensor] = {}
        self._turns = 0

    def run(self, problem: Problem, step: int, products: int) -> list[Row]:
        """Measure at the present weights.

        Args:
            problem: Of one batch.
            step: The step that has just been taken.
            products: Products with the Hessian.
        """
        check_precision(problem.params)
        refuse_weight_norm(problem.model)
        self._turns += 1
        params = list(problem.params.values())
        with problem.measuring():
            (batch,) = [batch for _, batch in problem.data()]
            loss = problem.training_loss(0, batch)
            graph = torch.autograd.grad(loss, params, create_graph=True, allow_unused=True)
            gradient = [torch.zeros_like(p) if g is None else g.detach() for g, p in zip(graph, params, strict=True)]
            self.gradient_norm = norm(gradient)
            product = hessian_product(graph, params)
            places, sizes = range(len(params)), [p.numel() for p in params]

            def multiplied(vector: Tensor) -> Tensor:
                parts = [part.view_as(p) for part, p in zip(torch.split(vector, sizes), params, strict=True)]
                return _flat(product(places, parts), params)

            rows = self._eigenvalues(problem, step, gradient, multiplied, products)
            return [*rows, *self._walk(problem, step, gradient)]

    def _eigenvalues(
        self, problem: Problem, step: int, gradient: list[Tensor], multiplied: Callable[[Tensor], Tensor], products: int
    ) -> list[Row]:
        start = _flat(gradient, gradient)
        model = self._step_model(problem, gradient)
        shift = None if model is None else model.constant_shift(len(problem.params))
        is_plain = model is None or shift is not None
        rows: list[Row] = []
        if model is not None and not is_plain:
            root = _spread({name: r.sqrt() for name, r in model.scale.items()}, problem, 0.0)
            added = _spread(model.shift, problem, 0.0)

            def preconditioned(vector: Tensor) -> Tensor:
                return model.sign * root * multiplied(root * vector) + added * vector

            top, error = self._largest(PRECONDITIONED, preconditioned, start * root, products)
            rows += _limit_rows(step, RateLimit(model.leading.numerator, top, error, False, products))
            if self._turns % 2:
                return rows  # H itself in every second turn
        top, error = self._largest(PLAIN, multiplied, start, products)
        rows += [Row(step, "", q.HESSIAN.lambda_max, top, ""), Row(step, "", q.HESSIAN.lambda_max_error, error, "")]
        if model is not None and shift is not None:
            rows += _limit_rows(step, RateLimit(model.leading.numerator, top + shift, error, False, products))
        return rows

    def _step_model(self, problem: Problem, gradient: list[Tensor]) -> StepModel | None:
        if self.note:
            return None
        try:
            check_optimizer(problem, self._optimizer)
            return optimizer_step(problem, self._optimizer, dict(zip(problem.params, gradient, strict=True)))
        except (Unsupported, InvalidProblem) as error:
            self.note = f"the limit of the rate is not measured: {error}"
            return None

    def _largest(
        self, kind: str, multiplied: Callable[[Tensor], Tensor], start: Tensor, products: int
    ) -> tuple[float, float]:
        """The largest Ritz value of a few Lanczos steps, and its residual."""
        known = self._vectors.get(kind)
        start = known if known is not None and known.shape == start.shape else start
        length = float(start.norm())
        if not math.isfinite(length) or length == 0:
            start = torch.ones_like(start)
            length = float(start.norm())
        basis = [start / length]
        small = np.zeros((products + 1, products + 1))
        for k in range(products):
            image = multiplied(basis[k])
            for j, other in enumerate(basis):  # all of them, or rounding would bring the first ones back
                small[j, k] = part = float(other @ image)
                image.sub_(other, alpha=part)
            rest = float(image.norm())
            if not math.isfinite(rest):
                raise FloatingPointError("a product with the Hessian is NaN or infinite")
            if rest <= ROUNDING * np.abs(small).max():
                break
            small[k + 1, k] = rest
            basis.append(image.div_(rest))
        used = min(products, len(basis))
        rest = small[used, used - 1] if len(basis) > used else 0.0
        small = np.tril(small) + np.tril(small, -1).T
        values, vectors = np.linalg.eigh(small[:used, :used])
        # the last vector, whose product is not known, comes along as if it had no curvature: a step of the power method
        _, ahead = np.linalg.eigh(small[: len(basis), : len(basis)])
        self._vectors[kind] = basis[0].mul_(float(ahead[0, -1]))
        for part, vector in zip(ahead[1:, -1].tolist(), basis[1:], strict=True):
            self._vectors[kind].add_(vector, alpha=part)
        return float(values[-1]), float(abs(rest * vectors[-1, -1]))

    def _walk(self, problem: Problem, step: int, gradient: list[Tensor]) -> list[Row]:
        """Losses, and changes of the gradient, a few steps along it."""
        lr = max(current_lr(group) for group in self._optimizer.param_groups)
        if not lr or not self.gradient_norm:
            return []
        with buffers_lent(problem.params.values()) as (theta, here), torch.no_grad():

            def go_to(length: float) -> None:
                for place, own, direction in zip(here, theta, gradient, strict=True):
                    torch.add(own, direction, alpha=-length * lr, out=place)

            go_to(NEAR)
            with torch.enable_grad():
                near, changed = loss_and_gradient(problem)
            change = norm(torch._foreach_sub(changed, gradient))
            go_to(FAR)
            far = problem.mean_loss()
        least, greatest = finite_range(torch.stack([near.detach(), far]))
        values = {
            q.LOSS_LEAST: least,
            q.LOSS_GREATEST: greatest,
            q.BETA: change / (NEAR * lr * self.gradient_norm),
        }
        return [Row(step, "", quantity, value, "") for quantity, value in values.items()]

    def state_dict(self) -> dict[str, Tensor]:
        """The vectors that the next probe starts from."""
        return {kind: vector.clone() for kind, vector in self._vectors.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from saved vectors."""
        self._vectors = dict(state)


def _limit_rows(step: int, limit: RateLimit) -> list[Row]:
    values = {q.MAX_LR: limit.value, q.MAX_LR_LOW: limit.low, q.MAX_LR_HIGH: limit.high}
    return [Row(step, "", quantity, value, "lr") for quantity, value in values.items()]


def _flat(parts: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    return torch.cat(
        [(torch.zeros_like(p) if t is None else t.detach()).reshape(-1) for t, p in zip(parts, like, strict=True)]
    )


def _spread(parts: dict[str, Tensor], problem: Problem, missing: float) -> Tensor:
    """One entry per entry of the parameters."""
    none = torch.tensor(missing)
    return torch.cat([parts.get(name, none).to(p).expand(p.shape).reshape(-1) for name, p in problem.params.items()])
