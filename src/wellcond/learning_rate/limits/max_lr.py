"""How large the learning rate can be before the quadratic model of the loss is unstable in its sharpest direction."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from wellcond.curvature.hessian import Hessian
from wellcond.curvature.spectra.eigenvalues import Eigenvalues, eigenvalues
from wellcond.curvature.spectra.lanczos import MEMORY
from wellcond.errors import Interrupted
from wellcond.learning_rate.limits.limits import GroupLimit, MaxLearningRate, RateLimit
from wellcond.learning_rate.limits.step_model import (
    GroupStep,
    StepModel,
    check_optimizer,
    gradient_descent,
    optimizer_step,
)
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.problem.arguments import check_problem
from wellcond.problem.problem import Problem
from wellcond.problem.within_memory import Planned, planned
from wellcond.results import Progress
from wellcond.results.progress import announce, shows_progress
from wellcond.training.leading import led
from wellcond.training.optimizers import DEFAULT_MOMENTUM
from wellcond.training.passed_optimizer import PassedOptimizer, optimizer_of

MOST_PRODUCTS = 300
"""Default limit on the products for one eigenvalue; usually 10 to 30 are enough."""
LARGE, MOST_OF_LARGE = 10_000_000, 11
"""From this many parameters on, the default is 11 products, about 40 forward+backward passes: a wider interval."""
VECTORS = 6
"""Vectors of all parameters besides those of Lanczos: two diagonals of the matrix, as parts and flat; the start; and
the vector that the Hessian is multiplied with."""

NO_LIMIT = (
    "λ_max is not positive: the quadratic model sets no limit, and how far a step can go depends on higher orders."
)
MAYBE_NO_LIMIT = (
    "λ_max may be zero within its error, so the limit has no upper bound. Take a smaller tol, or model.double()."
)
MOMENTUM_TWICE = """\
momentum is {momentum}, but {optimizer} has a momentum of its own. Write one of
    wc.max_lr(problem, optimizer)
    wc.max_lr(problem, momentum={momentum})"""


@led
@shows_progress
@own_arithmetic()
def max_lr(
    problem: Problem,
    optimizer: PassedOptimizer | None = None,
    *,
    momentum: float | None = None,
    tol: float = 1e-2,
    confidence: float | None = 0.99,
    each_group: bool = False,
    each_batch: bool = False,
    max_matvecs: int | None = None,
    budget: float | None = None,
    memory: float = MEMORY,
    seed: int = 0,
    known: Eigenvalues | None = None,
    progress: Progress | None = None,
) -> MaxLearningRate:
    """The largest learning rate at which training is stable on the quadratic model of the loss, with its error.

        η = 2(1+μ) / λ_max(H),   H = ∇²L, the mean over all batches, at the current weights

    Beyond it the sharpest direction grows at every step until the loss stops being quadratic; the rate that trains
    fastest is often about half of it. It takes 10 to 30 products with the Hessian, about two forward+backward passes
    each, and one more pass for the gradient if there is an optimizer. Neither model nor optimizer is changed.

    On a GPU it holds at most about twice the memory of a training step, which it measures first. Batches that would
    take more are measured in pieces, of which a note tells: the sum is the same to rounding, but for BatchNorm, which
    then normalizes each piece by its own statistics.

    Args:
        problem: The model, loss and data.
        optimizer: The optimizer whose limit is measured. Everything is read from it: momentum, Nesterov's form,
            dampening, weight decay, maximize, the proportions of the groups' lrs; and for Adam, AdamW, NAdam, Adamax,
            RMSprop and Adagrad the current preconditioner P, which gives 2(1+β₁)/((1−β₁) λ_max(P^{−½}HP^{−½})) for
            Adam.
        momentum: Without an optimizer, μ of the heavy ball, v ← μv + g, θ ← θ − ηv, as in `torch.optim.SGD`; 0.9 by
            default.
        tol: Relative error of λ_max, and so about that of the rate; P counts as exact.
        confidence: As in `eigenvalues`; None stops on the residual.
        each_group: Also measure every group's limit if only that group moved, from its diagonal block of H.
        each_batch: Also measure the limit on the loss of every single batch. SGD steps on one batch at a time; a rate
            above the smallest of these limits overshoots on some batch.
        max_matvecs: Most products per limit; by default 300, and 11 for more than ten million parameters, which take
            about 40 forward+backward passes. The uncertainty that remains is in the interval.
        budget: Seconds, for all limits together. A product that would end later is not started, except for the first
            one of each limit; groups and batches for which no time is left are not measured.
        memory: GiB for stored vectors, at least four of them, in addition to the memory of a product; on a GPU fewer
            if they do not fit.
        seed: Seed of the random start.
        known: `eigenvalues(Hessian(problem))` at the same weights, if you have it. Its largest value is used where it
            gives the answer: without an optimizer, and for SGD whose groups all step alike.
        progress: Called as (current task, share of all work done).

    Returns:
        The limit with its interval, the limits of groups and batches, and the cost.

    Raises:
        Unsupported: The optimizer's step is not known, is changed by hooks, or is stable at no rate.
        InvalidProblem: The optimizer holds none of the problem's parameters.
        NonFinite: The optimizer divides by zero, NaN or infinity.
        TypeError: `optimizer` is no torch optimizer.
        ValueError: Both an optimizer and a momentum are passed, or a number is out of range.
        Interrupted: On Ctrl-C, with the result so far as `.result`.

    Example:
        >>> import torch
        >>> import wellcond as wc
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> problem = wc.Problem(torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss(), (x, x))
        >>> limit = max_lr(problem, momentum=0.9)            # H is 2 · mean x² = 5
        >>> round(limit.value, 4), round(limit.lambda_max, 4)
        (0.76, 5.0)
    """
    check_problem(problem)
    optimizer = optimizer_of(problem, optimizer)
    if optimizer is not None and momentum is not None:
        raise ValueError(MOMENTUM_TWICE.format(momentum=momentum, optimizer=type(optimizer).__name__))
    momentum = DEFAULT_MOMENTUM if momentum is None else momentum
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}; it must be at least 0 and below 1.")
    if known is not None and (known.vectors.shape[0] != problem.size or known.which == "smallest"):
        raise ValueError("known does not hold this problem's largest eigenvalue; pass eigenvalues(Hessian(problem)).")
    before = problem.cost
    if optimizer is not None:
        check_optimizer(problem, optimizer)
    plan = _plan(problem, optimizer, memory)
    model = gradient_descent(problem, momentum) if optimizer is None else _step_of(plan.problem, optimizer)
    separate = model.groups if each_group and len(model.groups) > 1 else ()
    batches = len(problem.batches) if each_batch and isinstance(problem.batches, Sized) else int(each_batch)
    shift = None if known is None else model.constant_shift(len(problem.params))
    parts = (shift is None) + len(separate) + batches
    memory = min(memory, plan.basis / 2**30)
    search = _Search(model, tol, confidence, max_matvecs, budget, memory, seed, progress, parts)
    if progress is not None and plan.text:
        products = (parts - batches) * problem.batch_count + batches
        search.announce(problem.size, products, plan)
    hessian = Hessian(plan.problem)
    top: Eigenvalues | None = None if shift is None else known
    of_groups: dict[int, RateLimit] = {}
    of_batches: list[RateLimit] = []
    interrupt: KeyboardInterrupt | None = None
    try:
        top = top or search.largest(hessian, model.groups, "largest stable learning rate")
        for g in separate:
            if search.has_time:
                of_groups[g.index] = _limit(search.largest(hessian, [g], f"group {g.index} by itself"), g)
        if each_batch:
            _add_batches(problem, plan, search, top.vectors if top.vectors.numel() else None, of_batches)
    except KeyboardInterrupt as stop:
        interrupt = stop
        if top is None:
            if not isinstance(stop, Interrupted):
                raise
            top = stop.result
    limit = _limit(top, model.leading)
    if shift is not None:
        limit = replace(limit, lambda_max=limit.lambda_max + shift, matvecs=0)
    status = top.status if interrupt is None else f"interrupted after {search.matvecs} products"
    unmeasured = len(separate) - len(of_groups) + max(0, batches - len(of_batches))
    if plan.problem is not problem:
        problem.count_copies(plan.in_batches(plan.problem.cost))
    result = MaxLearningRate(
        numerator=limit.numerator,
        lambda_max=limit.lambda_max,
        lambda_error=limit.lambda_error,
        converged=limit.converged,
        matvecs=limit.matvecs + sum(group.matvecs for group in of_groups.values()),
        matrix=model.matrix,
        momentum=model.leading.momentum,
        optimizer=None if optimizer is None else type(optimizer).__name__,
        lr=None if optimizer is None else model.leading.lr,
        groups=() if optimizer is None else tuple(_groups(problem, model, limit, of_groups)),
        batches=tuple(of_batches),
        batchnorm=problem.batchnorm,
        cost=problem.cost - before,
        notes=(*model.notes, *plan.notes, *_caveats(limit, status, [*of_groups.values(), *of_batches], unmeasured)),
        status=status,
    )
    if interrupt is not None:
        raise Interrupted(result) from interrupt
    return result


def _plan(problem: Problem, optimizer: Optimizer | None, memory: float) -> Planned:
    """Whole batches, or pieces of them: as much as fits into the memory of the device."""
    if not problem.is_limited:
        return Planned(problem)
    one = torch.ones(problem.size, dtype=problem.dtype, device=problem.device)
    return planned(
        problem, lambda some: Hessian(some) @ one, vectors=VECTORS, basis=memory * 2**30, optimizer=optimizer
    )


def _step_of(problem: Problem, optimizer: Optimizer) -> StepModel:
    """The optimizer's step at the present gradients, which are not held any longer."""
    with problem.measuring():
        _, gradients = problem.loss_and_gradients()
    return optimizer_step(problem, optimizer, gradients)


@dataclass
class _Search:
    """Largest eigenvalues of a step's matrix: of all groups, of single groups, of single batches."""

    model: StepModel
    tol: float
    confidence: float | None
    max_matvecs: int | None
    budget: float | None
    memory: float
    seed: int
    progress: Progress | None
    parts: int
    done: int = 0
    matvecs: int = 0
    seconds_each: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    def largest(
        self, hessian: Hessian, groups: Sequence[GroupStep], what: str, start: Tensor | None = None
    ) -> Eigenvalues:
        operator = self.model.operator(hessian, groups)
        products = self._most(operator.shape[0])

        def report(_what: str, share: float) -> None:
            if self.progress is not None:
                self.progress(what, min((self.done + share) / self.parts, 1.0))

        left, began = self._seconds_left, time.perf_counter()
        options: dict[str, Any] = {
            "confidence": self.confidence,
            "max_matvecs": products,
            "budget": None if left == math.inf else max(left, 1e-9),
            "memory": self.memory,
        }
        try:
            top = eigenvalues(operator, tol=self.tol, start=start, seed=self.seed, progress=report, **options)
        except Interrupted as interrupt:
            self.matvecs += interrupt.result.matvecs
            raise
        self.done += 1
        self.matvecs += top.matvecs
        self.seconds_each = (time.perf_counter() - began) / top.matvecs
        return top

    def announce(self, size: int, products: int, plan: Planned) -> None:
        """Say what it takes at most: products of single batches for one of each limit, and memory."""
        assert self.progress is not None
        most = products * self._most(size)
        seconds = min(most * plan.seconds, math.inf if self.budget is None else self.budget)
        announce(self.progress, most * (1 + Hessian.product_passes), seconds, memory=plan.text)

    def _most(self, size: int) -> int:
        """Most products for one limit of this many parameters."""
        default = MOST_OF_LARGE if size > LARGE else MOST_PRODUCTS
        return default if self.max_matvecs is None else self.max_matvecs

    @property
    def has_time(self) -> bool:
        """Whether there is time for another product like the last ones."""
        return self._seconds_left >= self.seconds_each

    @property
    def _seconds_left(self) -> float:
        return math.inf if self.budget is None else self.budget - (time.perf_counter() - self.began)


def _limit(top: Eigenvalues, group: GroupStep) -> RateLimit:
    """The limit of the group's lr by the largest eigenvalue of A or, if only the group moves, of its block."""
    value, error = float(top.values[-1]) / group.block_scale, float(top.errors[-1]) / group.block_scale
    return RateLimit(group.numerator, value, error, top.converged, top.matvecs)


def _groups(
    problem: Problem, model: StepModel, limit: RateLimit, separate: Mapping[int, RateLimit]
) -> Iterator[GroupLimit]:
    for g in model.groups:
        size = sum(problem.params[name].numel() for name in g.parameters)
        proportional = limit.value * g.relative_lr / model.leading.relative_lr
        yield GroupLimit(g.index, g.lr, g.momentum, size, proportional, separate.get(g.index))


def _add_batches(
    problem: Problem, plan: Planned, search: _Search, start: Tensor | None, limits: list[RateLimit]
) -> None:
    """The limit of every batch as a problem of its own, with the same dropout masks as among the others."""
    model = search.model
    costs = []
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        for index, batch in data:
            if not search.has_time:
                break
            dropout = None if problem.dropout is None else problem.dropout + index
            single = plan.of(Problem(problem.model, problem.loss, [batch], problem.batchnorm, dropout=dropout))
            single.is_checked = problem.is_checked
            top = search.largest(Hessian(single), model.groups, f"batch {index} by itself", start)
            limits.append(_limit(top, model.leading))
            costs.append(plan.in_batches(single.cost))
    for cost in costs:
        problem.count_products(cost.matvecs, cost.u)


def _caveats(limit: RateLimit, status: str, others: Sequence[RateLimit], unmeasured: int) -> Iterator[str]:
    if not limit.converged:
        yield f"λ_max: {status}"
    if limit.lambda_max <= 0:
        yield NO_LIMIT
    elif limit.high == math.inf:
        yield MAYBE_NO_LIMIT
    if rough := sum(not other.converged for other in others):
        yield f"{rough} of {len(others)} limits of single groups or batches have not converged: see their low and high."
    if unmeasured:
        yield f"there was no time for {unmeasured} limits of single groups or batches."
