"""`diagnose`: measure everything about a problem that a few dozen Hessian products buy, and never fail as a whole."""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Callable
from typing import TypeVar

import torch
from torch.nn.modules.conv import _ConvNd

from wellcond.curvature.hessian import Hessian
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.magnitudes import gradients, weight_norms
from wellcond.errors import NonFinite, NotDeterministic, WellcondError
from wellcond.layerwise.conditioning import ConditioningTable, conditioning
from wellcond.layerwise.neurons import neurons
from wellcond.network.arithmetic import own_arithmetic
from wellcond.network.calling import dtype_name
from wellcond.problem.arguments import check_problem
from wellcond.problem.problem import Problem
from wellcond.results import Cost, Progress
from wellcond.spectral.eigenvalues import Eigenvalues, eigenvalues
from wellcond.spectral.trace import Trace, trace
from wellcond.stability.max_lr import max_lr
from wellcond.stability.step_model import groups_of
from wellcond.version import __version__

T = TypeVar("T")

EIGENVALUE_MATVECS = 100
"""Most products for the Hessian's eigenvalues, each about two forward+backward passes; usually 10 to 30 are enough."""
TRACE_MATVECS = 400
"""Most products for its trace; they are of single layers, most of them of the last ones, which cost next to nothing."""
BASIS_BYTES = 2**31
"""Most memory for the Lanczos vectors, one per product: a network of 25 million parameters gets 21 of them."""

BATCHNORM = {
    "batch": "statistics of each batch, with gradients through them, as in training",
    "running": "running statistics, as in evaluation",
}
LABELS = {
    "data": "the data's own",
    "sample": "drawn from the model's prediction",
    "model": "the model's prediction, in exact expectation",
}
CONVOLUTION = {"position": "every position is one example", "patch": "every patch (im2col) is one example"}


@own_arithmetic()
def diagnose(
    problem: Problem, optimizer: torch.optim.Optimizer | None = None, *, progress: Progress | None = None
) -> Diagnosis:
    """Measure a problem layer by layer and as a whole.

    The loss, gradient and weight norms; conditioning of every layer's input and output gradient; dead and always-on
    ReLUs; both ends of the Hessian's spectrum (to 1 %, with error bounds) and its trace (to 10 %, with an error bar);
    and the largest stable learning rate on these batches, for momentum 0.9 or for the optimizer as it is.

    A part that fails is named in `.failed`, and the rest is there. Neither the model nor the optimizer is changed.
    It takes three passes over the data and usually 40 to 100 Hessian products; an optimizer that rescales the gradient,
    such as Adam, takes 10 to 30 more.

    Args:
        problem: What to measure.
        optimizer: The one that trains the model, if there is one.
        progress: Called as (what is being measured, share of all work done).

    Returns:
        All numbers, with what they hold for and what is missing.

    Raises:
        InvalidProblem: The problem cannot be measured at all, or the optimizer belongs to another model.
        NotDeterministic: Two passes over the problem do not see the same.

    Example:
        >>> import wellcond as wc
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> problem = wc.Problem(torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss(), (x, x))
        >>> round(diagnose(problem).max_lr.value, 4)         # H is 2 · mean x² = 5, and 2 (1 + 0.9) / 5
        0.76
    """
    check_problem(problem)
    before = problem.cost
    with contextlib.suppress(NonFinite):  # the parts that need the loss say so
        problem.check()
    # an optimizer of another model is refused before the work
    lr = None if optimizer is None else max(float(group["lr"]) for group in groups_of(problem, optimizer))
    parts = _Parts(progress)
    # a problem without a gradient, but for NaN or inf, cannot be measured at all; of the rest each part may fail alone
    gradient = parts.measure("gradients", 0.05, lambda _: gradients(problem), catch=NonFinite)
    table = parts.measure("conditioning", 0.05, lambda report: conditioning(problem, progress=report))
    units = parts.measure("neurons", 0.03, lambda _: neurons(problem))

    @functools.cache
    def hessian() -> Hessian:  # shared, so that the graph of one fixed batch is built once; a model may have none
        return Hessian(problem)

    # as many products as the memory for their vectors allows
    budget = max(10, min(EIGENVALUE_MATVECS, BASIS_BYTES // (problem.size * problem.dtype.itemsize)))
    ends = parts.measure(
        "Hessian eigenvalues",
        0.37,
        lambda report: eigenvalues(hessian(), which="both", tol=1e-2, max_matvecs=budget, progress=report),
    )
    mass = parts.measure(
        "Hessian trace", 0.4, lambda report: trace(hessian(), tol=0.1, max_matvecs=TRACE_MATVECS, progress=report)
    )
    limit = None
    if ends is not None:
        limit = parts.measure(
            "largest stable lr",
            0.1,
            lambda report: max_lr(problem, optimizer=optimizer, known=ends, max_matvecs=budget, progress=report),
        )
    cost = problem.cost - before
    return Diagnosis(
        parameters=problem.size,
        conditioning=table,
        neurons=units,
        hessian=ends,
        trace=mass,
        gradients=gradient,
        weights=weight_norms(problem),
        max_lr=limit,
        lr=lr,
        about=_about(problem, table, ends, mass, cost),
        failed=parts.failed,
        cost=cost,
    )


class _Parts:
    """Measures one part after another: each may fail without the others, and each reports how far it is."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.failed: dict[str, str] = {}
        self._done = 0.0

    def measure(
        self, name: str, share: float, function: Callable[[Progress], T], catch: type[Exception] = Exception
    ) -> T | None:
        """What the function returns, or None after a failure, whose reason is then in `failed`.

        Args:
            name: What it measures.
            share: Its share of all work.
            function: Called with the `progress` to pass on.
            catch: The failures that end only this part.
        """
        begin = self._done
        self._done = begin + share

        def report(_what: str, share_of_part: float) -> None:
            if self.progress is not None:
                self.progress(name, min(begin + share * share_of_part, begin + share, 1.0))

        report(name, 0.0)
        try:
            return function(report)
        except NotDeterministic:
            raise
        except catch as error:
            first_line, *_ = f"{type(error).__name__}: {error}".strip().removesuffix(":").splitlines()
            self.failed[name] = str(error) if isinstance(error, WellcondError) else first_line
            return None
        finally:
            report(name, 1.0)


def _about(
    problem: Problem, table: ConditioningTable | None, ends: Eigenvalues | None, mass: Trace | None, cost: Cost
) -> dict[str, str]:
    """What the numbers hold for: title → sentence, in the order in which they are read."""
    norms, left_alone = problem.norms()
    batchnorm = BATCHNORM[problem.batchnorm] if norms else "the model has none"
    if left_alone:
        batchnorm += (
            f"; {', '.join(left_alone)}: in evaluation mode, since its outputs in training change on every pass"
        )
    has_conv = any(isinstance(module, _ConvNd) for module in problem.model.modules())
    out = {
        "model": type(problem.model).__name__,
        "parameters": f"{problem.size:,} trainable, {dtype_name(problem.dtype)}, on {problem.device}",
        "loss": getattr(problem.loss, "__name__", type(problem.loss).__name__),
        "batchnorm": batchnorm,
        "dropout": "off" if problem.dropout is None else f"on, with seed {problem.dropout}",
    }
    if table is not None:
        out["labels of Σ∇h"] = LABELS[table.labels]
        if has_conv:
            out["convolutions"] = CONVOLUTION[table.convolution]
    if ends is not None:
        out["Hessian eigenvalues"] = f"{ends.matvecs} products; {ends.status}"
    if mass is not None:
        met = "" if mass.converged else "; the asked 10 % was not reached"
        out["Hessian trace"] = f"{mass.matvecs} products; standard error {mass.error:.2g} on {mass.value:.4g}{met}"
    out["cost"] = str(cost).removeprefix("cost: ")
    libraries = f"wellcond {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return out | {"versions": libraries}
