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
from wellcond.network.calling import one_line
from wellcond.network.checks import check_precision
from wellcond.problem.problem import Problem
from wellcond.results import Row
from wellcond.results import quantities as q
from wellcond.training.optimizers import current_lr

NEAR, FAR = 1.0, 4.0
"""Lengths of the walk along the gradient, in learning rates: its gradient is measured at the near point only."""
ROUNDING = 1e-6
"""Norm of a rest, over that of the matrix, from which on it is rounding."""
PRECONDITIONED, PLAIN = "preconditioned", "plain"

Vector = list[Tensor]
"""One tensor for each parameter: joining them would take as much memory again, and most of the time."""
Matrix = Callable[[Vector], Vector]


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
        self._vectors: dict[str, Vector] = {}

    def run(self, problem: Problem, step: int, products: int) -> list[Row]:
        """Measure at the present weights.

        Args:
            problem: Of one batch.
            step: The step that has just been taken.
            products: Products with the Hessian.
        """
        check_precision(problem.params)
        refuse_weight_norm(problem.model)
        with problem.measuring():
            gradient, rows = self._eigenvalues(problem, step, products)  # whose graph is gone before the walk
            return [*rows, *self._walk(problem, step, gradient)]

    def _eigenvalues(self, problem: Problem, step: int, products: int) -> tuple[Vector, list[Row]]:
        """The gradient, and rows of the largest eigenvalues of H and of the matrix of the optimizer's step."""
        params = list(problem.params.values())
        (batch,) = [batch for _, batch in problem.data()]
        graph = torch.autograd.grad(problem.training_loss(0, batch), params, create_graph=True, allow_unused=True)
        gradient = _filled([g if g is None else g.detach() for g in graph], params)
        self.gradient_norm = norm(gradient)
        product = hessian_product(graph, params)

        def hessian(vector: Vector) -> Vector:
            return _filled(product(range(len(params)), vector, True), params)

        model = self._step_model(problem, gradient)
        shift = None if model is None else model.constant_shift(len(params))
        rows: list[Row] = []
        if model is not None and shift is None:
            root, added = [r.sqrt() for r in _entries(model.scale, problem)], _entries(model.shift, problem)

            def preconditioned(vector: Vector) -> Vector:
                image = hessian([r * v for r, v in zip(root, vector, strict=True)])
                return [model.sign * r * h + a * v for r, h, a, v in zip(root, image, added, vector, strict=True)]

            start = [r * g for r, g in zip(root, gradient, strict=True)]
            top, error = self._largest(PRECONDITIONED, preconditioned, start, products)
            rows += _limit_rows(step, RateLimit(model.leading.numerator, top, error, False, products))
            if products == 1:
                return gradient, rows  # H itself, which is not what limits this optimizer, once there is time for it
        top, error = self._largest(PLAIN, hessian, gradient, products)
        rows += [Row(step, "", q.HESSIAN.lambda_max, top, ""), Row(step, "", q.HESSIAN.lambda_max_error, error, "")]
        if model is not None and shift is not None:
            rows += _limit_rows(step, RateLimit(model.leading.numerator, top + shift, error, False, products))
        return gradient, rows

    def _step_model(self, problem: Problem, gradient: list[Tensor]) -> StepModel | None:
        if self.note:
            return None
        try:
            check_optimizer(problem, self._optimizer)
            return optimizer_step(problem, self._optimizer, dict(zip(problem.params, gradient, strict=True)))
        except (Unsupported, InvalidProblem) as error:
            self.note = f"the limit of the rate is not measured: {one_line(error)}"
            return None

    def _largest(self, kind: str, matrix: Matrix, start: Vector, products: int) -> tuple[float, float]:
        """The largest Ritz value of a few Lanczos steps, and its residual."""
        known = self._vectors.pop(kind, None)
        if known is None or [v.shape for v in known] != [v.shape for v in start]:
            known = [v.clone() for v in start]
        length = norm(known)
        if not math.isfinite(length) or length == 0:
            known = [torch.ones_like(v) for v in start]
            length = norm(known)
        torch._foreach_div_(known, length)
        basis = [known]
        small = np.zeros((products + 1, products + 1))
        for k in range(products):
            image = matrix(basis[k])
            for j, other in enumerate(basis):  # all of them, or rounding would bring the first ones back
                small[j, k] = part = _dot(other, image)
                torch._foreach_sub_(image, other, alpha=part)
            rest = norm(image)
            if not math.isfinite(rest):
                raise FloatingPointError("a product with the Hessian is NaN or infinite")
            if rest <= ROUNDING * np.abs(small).max():
                break
            small[k + 1, k] = rest
            torch._foreach_div_(image, rest)
            basis.append(image)
        used = min(products, len(basis))
        rest = small[used, used - 1] if len(basis) > used else 0.0
        small = np.tril(small) + np.tril(small, -1).T
        values, vectors = np.linalg.eigh(small[:used, :used])
        # the last vector, whose product is not known, comes along as if it had no curvature: a step of the power method
        _, ahead = np.linalg.eigh(small[: len(basis), : len(basis)])
        torch._foreach_mul_(known, float(ahead[0, -1]))
        for part, vector in zip(ahead[1:, -1].tolist(), basis[1:], strict=True):
            torch._foreach_add_(known, vector, alpha=part)
        self._vectors[kind] = known
        return float(values[-1]), float(abs(rest * vectors[-1, -1]))

    def _walk(self, problem: Problem, step: int, gradient: list[Tensor]) -> list[Row]:
        """Losses, and changes of the gradient, a few steps along it."""
        lr = max((current_lr(group) for group in self._optimizer.param_groups if "lr" in group), default=0.0)
        if not lr or not self.gradient_norm:
            return []
        with buffers_lent(problem.params.values()) as (theta, here), torch.no_grad():

            def go_to(length: float) -> None:
                for place, own, direction in zip(here, theta, gradient, strict=True):
                    torch.add(own, direction, alpha=-length * lr, out=place)

            go_to(NEAR)
            with torch.enable_grad():
                near, changed = loss_and_gradient(problem)
            for place, new, old in zip(here, changed, gradient, strict=True):
                torch.sub(new, old, out=place)
            change = norm(here)
            del changed
            go_to(FAR)
            far = problem.mean_loss()
        least, greatest = finite_range(torch.stack([near.detach(), far]))
        values = {
            q.LOSS_LEAST: least,
            q.LOSS_GREATEST: greatest,
            q.BETA: change / (NEAR * lr * self.gradient_norm),
        }
        return [Row(step, "", quantity, value, "") for quantity, value in values.items()]

    def state_dict(self) -> dict[str, list[Tensor]]:
        """The vectors that the next probe starts from."""
        return {kind: [part.clone() for part in vector] for kind, vector in self._vectors.items()}

    def load_state_dict(self, state: dict[str, list[Tensor]]) -> None:
        """Continue from saved vectors."""
        like = next(p for group in self._optimizer.param_groups for p in group["params"])
        self._vectors = {kind: [part.to(like.device, copy=True) for part in vector] for kind, vector in state.items()}


def _limit_rows(step: int, limit: RateLimit) -> list[Row]:
    values = {q.MAX_LR: limit.value, q.MAX_LR_LOW: limit.low, q.MAX_LR_HIGH: limit.high}
    return [Row(step, "", quantity, value, "lr") for quantity, value in values.items()]


def _filled(parts: Sequence[Tensor | None], like: Sequence[Tensor]) -> Vector:
    """Zeros in place of None; the others are the probe's own, to write to."""
    return [torch.zeros_like(p) if part is None else part for part, p in zip(parts, like, strict=True)]


def _dot(one: Vector, other: Vector) -> float:
    parts = [torch.dot(a.reshape(-1), b.reshape(-1)) for a, b in zip(one, other, strict=True)]
    return float(torch.stack(parts).double().sum())


def _entries(parts: dict[str, Tensor], problem: Problem) -> Vector:
    """One number, or one per entry, for each parameter; zero for those that do not move."""
    return [parts[name].to(p) if name in parts else p.new_zeros(()) for name, p in problem.params.items()]
