"""How large the learning rate can be before the sharpest direction of the loss diverges, as measured."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence, Sized

from torch import Tensor
from torch.optim import Optimizer

from wellcond.curvature.hessian import Hessian
from wellcond.problem.gradient_passes import GradientPasses
from wellcond.problem.points import Progress
from wellcond.problem.problem import Problem
from wellcond.spectral.eigenvalues import Eigenvalues, eigenvalues
from wellcond.stability.limits import GroupLimit, Limit, MaxLearningRate
from wellcond.stability.step_model import GroupStep, StepModel, check_optimizer, gradient_descent, optimizer_step

MOST_PRODUCTS = 300
"""For one eigenvalue, unless the caller says otherwise; usually 10 to 30 are enough."""
BASIS_BYTES = 2**31
"""Most memory for the Lanczos vectors, one a product: a network of 25 million parameters gets 21 of them."""
FEWEST_PRODUCTS = 10
"""However large the network is."""

NO_LIMIT = (
    "λ_max is not positive: the quadratic model sets no limit, and how far a step can go depends on more than it."
)
MAYBE_NO_LIMIT = (
    "λ_max is not told from zero, so that the limit has no upper bound. Take a smaller tol, or model.double()."
)


def max_lr(
    problem: Problem,
    momentum: float = 0.0,
    *,
    optimizer: Optimizer | None = None,
    tol: float = 1e-2,
    each_group: bool = False,
    each_batch: bool = False,
    max_matvecs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> MaxLearningRate:
    """The largest learning rate at which gradient descent is stable on the quadratic model of the loss, with its error.

        η = 2(1+μ) / λ_max(H),   H = ∇²L, the mean over all batches, at the present weights

    Beyond it the sharpest direction grows at every step until the loss stops being quadratic; the rate that trains
    fastest is often about half of it. It takes some 10 to 30 products with the Hessian, about two forward+backward
    passes each, and with an optimizer one pass more for the gradient. Neither model nor optimizer is changed.

    momentum: μ of the heavy ball, v ← μv + g, θ ← θ − ηv, as in `torch.optim.SGD`.
    optimizer: take all from it instead: momentum, Nesterov's form, dampening, weight decay, maximize, the proportions
        of the groups' lrs; and of Adam, AdamW, NAdam, Adamax, RMSprop and Adagrad the preconditioner P as it is now,
        for the limit 2(1+β₁)/((1−β₁) λ_max(P^{−½}HP^{−½})) of Adam. Any other is refused by name.
    tol: relative error of λ_max, and so about that of the rate; P counts as exact.
    each_group: also every group's limit if it moved alone, from its diagonal block of H.
    each_batch: also the limit on the loss of each batch alone. SGD steps on one batch at a time; a rate above the
        smallest of them overshoots on some batch.
    max_matvecs: products a limit; by default at most 300, and fewer where their vectors would take more than 2 GiB.
    progress: called as (what is being measured, share of the work that is done).

    >>> import torch
    >>> import wellcond as wc
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> problem = wc.Problem(torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss(), (x, x))
    >>> limit = max_lr(problem, momentum=0.9)            # H is 2 · mean x² = 5
    >>> round(limit.value, 4), round(limit.lambda_max, 4)
    (0.76, 5.0)
    """
    if optimizer is not None and momentum:
        raise ValueError(f"momentum is {momentum}, but the optimizer has its own: pass one of the two.")
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum is {momentum}; it must be at least 0 and below 1.")
    gradients_at = GradientPasses(problem)
    if optimizer is None:
        model = gradient_descent(problem, momentum)
    else:
        check_optimizer(problem, optimizer)
        with problem.measuring():
            _, gradients = gradients_at(problem.params)
        model = optimizer_step(problem, optimizer, gradients)
    apart = model.groups if each_group and len(model.groups) > 1 else ()
    batches = len(problem.batches) if each_batch and isinstance(problem.batches, Sized) else int(each_batch)
    search = _Search(model, tol, max_matvecs, seed, progress, 1 + len(apart) + batches)

    hessian = Hessian(problem)
    top = search.largest(hessian, model.groups, "largest stable learning rate")
    limit = _limit(top, model.fastest)
    alone = {g.index: _limit(search.largest(hessian, [g], f"group {g.index} alone"), g) for g in apart}
    of_batches = _of_batches(problem, search, top.vectors) if each_batch else []
    return MaxLearningRate(
        limit,
        model.matrix,
        model.fastest.momentum,
        None if optimizer is None else type(optimizer).__name__,
        None if optimizer is None else model.fastest.lr,
        () if optimizer is None else tuple(_groups(problem, model, limit, alone)),
        tuple(of_batches),
        problem.batchnorm,
        gradients_at.backwards,
        (*model.notes, *_caveats(limit, top.status, [*alone.values(), *of_batches])),
    )


class _Search:
    """Largest eigenvalues of a step's matrix, one part of the work after another."""

    def __init__(
        self,
        model: StepModel,
        tol: float,
        max_matvecs: int | None,
        seed: int,
        progress: Progress | None,
        parts: int,
    ) -> None:
        self.model, self.tol, self.max_matvecs, self.seed = model, tol, max_matvecs, seed
        self.progress, self.parts, self.done = progress, parts, 0

    def largest(
        self, hessian: Hessian, groups: Sequence[GroupStep], what: str, start: Tensor | None = None
    ) -> Eigenvalues:
        operator = self.model.operator(hessian, groups)
        affordable = max(FEWEST_PRODUCTS, BASIS_BYTES // (operator.shape[0] * operator.dtype.itemsize))
        budget = min(MOST_PRODUCTS, affordable) if self.max_matvecs is None else self.max_matvecs

        def report(spent: int, _error: float) -> None:
            if self.progress is not None:
                self.progress(what, min((self.done + spent / max(spent, budget)) / self.parts, 1.0))

        found = eigenvalues(operator, tol=self.tol, max_matvecs=budget, start=start, seed=self.seed, progress=report)
        self.done += 1
        return found


def _limit(found: Eigenvalues, group: GroupStep) -> Limit:
    """The limit of the group's lr by the largest eigenvalue of A or, if only the group moves, of its block."""
    value, error = float(found.values[-1]) / group.share, float(found.errors[-1]) / group.share
    return Limit(group.numerator, value, error, found.converged, found.matvecs)


def _groups(problem: Problem, model: StepModel, limit: Limit, alone: Mapping[int, Limit]) -> Iterator[GroupLimit]:
    sizes = [p.numel() for p in problem.params.values()]
    for g in model.groups:
        together = limit.value * g.pace / model.fastest.pace
        yield GroupLimit(g.index, g.lr, g.momentum, sum(sizes[i] for i in g.block), together, alone.get(g.index))


def _of_batches(problem: Problem, search: _Search, start: Tensor) -> list[Limit]:
    """Every batch as a problem of its own, with the dropout masks that it has among the others."""
    model = search.model
    limits = []
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        for index, batch in data:
            dropout = None if problem.dropout is None else problem.dropout + index
            alone = Problem(problem.model, problem.loss, [batch], problem.batchnorm, dropout=dropout)
            found = search.largest(Hessian(alone), model.groups, f"batch {index} alone", start)
            limits.append(_limit(found, model.fastest))
    return limits


def _caveats(limit: Limit, status: str, others: Sequence[Limit]) -> Iterator[str]:
    if not limit.converged:
        yield f"λ_max: {status}"
    if limit.lambda_max <= 0:
        yield NO_LIMIT
    elif limit.high == math.inf:
        yield MAYBE_NO_LIMIT
    if rough := sum(not other.converged for other in others):
        yield f"{rough} of {len(others)} limits of single groups or batches have not converged: see their low and high."
