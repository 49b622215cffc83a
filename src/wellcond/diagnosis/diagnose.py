"""`diagnose`: measure everything about a problem that a budget buys, and never fail as a whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, Literal, TypedDict

import torch

from wellcond.curvature.hessian import Hessian
from wellcond.curvature.spectra.eigenvalues import Eigenvalues, eigenvalues
from wellcond.curvature.spectra.trace import Trace, trace
from wellcond.diagnosis.about import about
from wellcond.diagnosis.budget import SHARE_OF_RATE, SHARE_OF_TRIAL, TRACE_PRODUCTS, Budget
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.illustrate import illustrated
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import check_known, judged
from wellcond.diagnosis.magnitudes import Gradients, gradients, weight_norms
from wellcond.diagnosis.parts import Parts
from wellcond.diagnosis.trial import trial
from wellcond.errors import NonFinite, NotDeterministic
from wellcond.learning_rate.limits.limits import MaxLearningRate
from wellcond.learning_rate.limits.max_lr import max_lr
from wellcond.measurements.layers.conditioning import conditioning
from wellcond.measurements.layers.layer_pass import LayerPass, layer_pass
from wellcond.measurements.layers.neurons import neurons
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.layers import chosen_layers
from wellcond.problem.arguments import check_is_problem
from wellcond.problem.problem import Problem
from wellcond.results import Progress
from wellcond.training.optimizers import DEFAULT_MOMENTUM, current_lr, groups_of

ASSUMED_LR = 0.01
"""Learning rate of SGD in the trial where no optimizer is given. Other rates, a tenth to a hundred times it, are tried
where it does not learn: what trains at none of them does not train."""


class Limits(TypedDict):
    """What a spectrum may take."""

    max_matvecs: int
    budget: float | None


@own_arithmetic()
def diagnose(
    problem: Problem,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    budget: Literal["fast", "full"] | float = "fast",
    layers: str | Collection[str] | None = None,
    select: Collection[str] | None = None,
    ignore: Collection[str] = (),
    on_part: Callable[[Diagnosis], None] | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Say what is wrong with a network, in which layer, and what to write instead; for a price that is known before.

    First a look: data, outputs against the loss, signals, gradients and weights, which is there after a few passes
    even where the loss is NaN. Then the layers: the loss, gradient and weight norms; conditioning of every layer's
    input and output gradient; dead and always-on ReLUs. Then a trial: a few steps of copies with the optimizer as
    it is (SGD at 0.01 with momentum 0.9 where none is given), with other rates, and on a handful of examples. Then the
    largest eigenvalue of the Hessian and the largest stable learning rate on these batches, for momentum 0.9 or for the
    optimizer as it is. Then, with more than a fast budget, both ends of the Hessian's spectrum to 1 % with error
    bounds, and its trace to 10 % with an error bar. After each part all rules are applied to what is known so far.

    A part that fails is named in `.failed`, and the rest is there. Ctrl-C ends the work and returns what there is.
    Neither the model nor the optimizer is changed.

    Args:
        problem: What to measure.
        optimizer: The one that trains the model, if there is one.
        budget: `"fast"` is planned for 60 u, where u is one forward and backward pass (networks whose pass takes less
            than a few milliseconds take as many milliseconds per product): some 8 Hessian products, which stop at an
            estimated error of 1 % and have no certificate. `"full"` goes on until 1 % is certain and measures the trace
            too, in some 40 to 500 products. A number is seconds: as much of `"full"` as they buy.
        layers: Names of the layers, or of modules that hold them, to list; None for all. The curvature is always that
            of the whole network.
        select: Names of the rules that are applied; None: all.
        ignore: Names of rules that are not.
        on_part: Called after every part with what there is so far.
        progress: Called as (what is being measured, share of all work done).

    Returns:
        All numbers, with what they hold for, what each part took, and what is missing.

    Raises:
        ValueError: There is no such rule or budget.
        InvalidProblem: The problem cannot be measured at all, or the optimizer belongs to another model.
        NotDeterministic: Two passes over the problem do not see the same.
        UnknownLayer: There is no such layer.

    Example:
        >>> import wellcond as wc
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> problem = wc.Problem(torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss(), (x, x))
        >>> round(diagnose(problem).max_lr.value, 4)         # H is 2 · mean x² = 5, and 2 (1 + 0.9) / 5
        0.76
    """
    check_is_problem(problem)
    # what does not fit the model is refused before the work
    lr = None if optimizer is None else max(map(current_lr, groups_of(problem, optimizer)))
    chosen = chosen_layers(problem.model, layers)
    check_known((*ignore, *(select or ())))
    allowed = Budget(budget, problem, optimizer)
    before = problem.cost
    weights = weight_norms(problem)

    def so_far() -> Diagnosis:
        found: dict[str, Any] = parts.found
        table, ends, mass = (found.get(name) for name in ("conditioning", "Hessian eigenvalues", "Hessian trace"))
        cost = problem.cost - before
        evidence = Evidence(
            problem,
            optimizer,
            found.get("look"),
            table,
            found.get("neurons"),
            found.get("trial"),
            ends,
            found.get("largest stable lr"),
        )
        return Diagnosis(
            findings=illustrated(judged(evidence, ignore, select), evidence),
            parameters=problem.size,
            conditioning=table,
            neurons=found.get("neurons"),
            hessian=ends,
            trace=mass,
            trial=found.get("trial"),
            gradients=found.get("gradients"),
            weights=weights,
            max_lr=found.get("largest stable lr"),
            lr=lr,
            about=about(problem, table, ends, mass, cost),
            failed=parts.failed,
            cost=cost,
            parts=tuple(parts.done),
            only=None if layers is None else tuple(chosen),
            modules={name: type(module).__name__ for name, module in problem.model.named_modules()},
        )

    parts = Parts(problem, allowed, progress, lambda: on_part and on_part(so_far()))
    parts.measure("look", lambda _: inspect(problem, optimizer), is_free=True)

    def is_explained() -> bool:
        has_loss = getattr(parts.found.get("look"), "loss", None) is not None
        return has_loss or any(finding.severity == "severe" for finding in so_far().findings)

    _measure_layers(problem, layers, parts, is_explained)
    tried = (
        optimizer if optimizer is not None else torch.optim.SGD(problem.params.values(), ASSUMED_LR, DEFAULT_MOMENTUM)
    )
    parts.measure(
        "trial", lambda report: trial(problem, tried, seconds=allowed.seconds_left(SHARE_OF_TRIAL), progress=report)
    )
    _measure_curvature(problem, optimizer, allowed, parts)
    return so_far()


def _measure_layers(
    problem: Problem, layers: str | Collection[str] | None, parts: Parts, is_explained: Callable[[], bool]
) -> None:
    """All that one pass tells of the layers; where it fails, what there is of it.

    Args:
        problem: What is measured.
        layers: Those to list.
        parts: Where it goes.
        is_explained: Whether there is something to say of a problem that cannot be measured so.
    """

    def in_one_pass(report: Progress) -> LayerPass:
        if not isinstance(problem.batches, (list, tuple)):
            problem.check()  # that another pass over a loader sees the same
        found = layer_pass(problem, layers=layers, progress=report)
        parts.found["gradients"] = Gradients.of(problem, found.loss, found.gradients)
        parts.found |= {"conditioning": found.conditioning, "neurons": found.neurons}
        return found

    try:
        parts.measure("layers", in_one_pass, catch=())
    except NotDeterministic:
        raise
    except Exception:  # by itself each may fail alone
        # but a problem without a gradient, unless it is NaN or inf, cannot be measured at all
        parts.measure("gradients", lambda _: gradients(problem), catch=Exception if is_explained() else NonFinite)
        parts.measure("conditioning", lambda report: conditioning(problem, layers=layers, progress=report))
        parts.measure("neurons", lambda report: neurons(problem, layers=layers, progress=report))


def _measure_curvature(problem: Problem, optimizer: torch.optim.Optimizer | None, budget: Budget, parts: Parts) -> None:
    """The Hessian's eigenvalues, the rate and the trace: what matters most first."""

    @functools.cache
    def hessian() -> Hessian:  # shared, so that the graph of one fixed batch is built once; a model may have none
        return Hessian(problem)

    confidence = None if budget.is_fast else 0.99

    def ends(report: Progress) -> Eigenvalues:
        which: Literal["largest", "both"] = "largest" if budget.is_fast else "both"
        limits: Limits = {"max_matvecs": budget.products, "budget": budget.seconds_left()}
        return eigenvalues(hessian(), 1, which, 1e-2, confidence, **limits, progress=report)

    def rate(report: Progress) -> MaxLearningRate:
        known = parts.found.get("Hessian eigenvalues")
        share = 1.0 if known else SHARE_OF_RATE
        limits: Limits = {"max_matvecs": max(1, budget.products), "budget": budget.seconds_left(share)}
        return max_lr(problem, optimizer=optimizer, confidence=confidence, known=known, **limits, progress=report)

    def mass(report: Progress) -> Trace:
        limits: Limits = {"max_matvecs": TRACE_PRODUCTS, "budget": budget.seconds_left()}
        return trace(hessian(), tol=0.1, **limits, progress=report)

    if budget.rate_is_apart:
        parts.measure("largest stable lr", rate)
        if budget.has_spectrum_left:
            parts.measure("Hessian eigenvalues", ends)
        else:
            parts.leave_out("Hessian eigenvalues")
        has_hessian = parts.done[-1].outcome != "failed"
    else:
        parts.measure("Hessian eigenvalues", ends)
        has_hessian = parts.done[-1].outcome != "failed"
        if has_hessian:
            parts.measure("largest stable lr", rate, is_free="Hessian eigenvalues" in parts.found)
    if not budget.is_fast:
        parts.measure("Hessian trace", mass)
    elif has_hessian:
        parts.leave_out("smallest Hessian eigenvalue")
        parts.leave_out("Hessian trace")
