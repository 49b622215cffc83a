"""The last parts of a diagnosis: the Hessian's eigenvalues, the largest stable rate, and the trace."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Literal, TypedDict

from wellcond.curvature.hessian import Hessian
from wellcond.curvature.spectra.eigenvalues import Eigenvalues, eigenvalues
from wellcond.curvature.spectra.trace import Trace, trace
from wellcond.diagnosis.budget import SHARE_OF_RATE, TRACE_PRODUCTS, Budget, PartName
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.mini_batches import first_batches
from wellcond.diagnosis.on_gpu import with_fewer_examples
from wellcond.diagnosis.parts import Parts
from wellcond.learning_rate.limits.limits import MaxLearningRate
from wellcond.learning_rate.limits.max_lr import max_lr
from wellcond.results import Progress

CURVATURE = (
    PartName.HESSIAN_EIGENVALUES,
    PartName.MAX_LR,
    PartName.SMALLEST_EIGENVALUE,
    PartName.HESSIAN_TRACE,
)


class Limits(TypedDict):
    """What a spectrum may take."""

    max_matvecs: int
    budget: float | None


def with_curvature(evidence: Evidence, budget: Budget, parts: Parts) -> Evidence:
    """The Hessian's eigenvalues, the rate and the trace: what matters most first."""
    problem, optimizer = first_batches(evidence.problem, budget.plan_products()), evidence.optimizer
    if budget.on_gpu is not None:
        some, problem = problem, with_fewer_examples(problem, budget.on_gpu.examples)
        if some is not evidence.problem:
            evidence.problem.count_copies(some.cost)  # of the look whether batches can be cut
    confidence = None if budget.is_fast else 0.99

    @functools.cache
    def hessian() -> Hessian:  # shared, so that the graph of one fixed batch is built once; a model may have none
        return Hessian(problem)

    def ends(report: Progress) -> Eigenvalues:
        which: Literal["largest", "both"] = "largest" if budget.is_fast else "both"
        limits: Limits = {"max_matvecs": budget.products, "budget": budget.seconds_left()}
        return eigenvalues(hessian(), 1, which, 1e-2, confidence, **limits, progress=report)

    def rate(report: Progress) -> MaxLearningRate:
        known = evidence.hessian
        share = 1.0 if known is not None else SHARE_OF_RATE
        limits: Limits = {"max_matvecs": max(1, budget.products), "budget": budget.seconds_left(share)}
        return max_lr(problem, optimizer, confidence=confidence, known=known, **limits, progress=report)

    def mass(report: Progress) -> Trace:
        limits: Limits = {"max_matvecs": TRACE_PRODUCTS, "budget": budget.seconds_left()}
        return trace(hessian(), tol=0.1, **limits, progress=report)

    if not budget.has_spectrum_left:
        for name in CURVATURE:
            parts.leave_out(name)
            parts.hand_over(evidence)
        return evidence
    if budget.rate_is_apart:
        evidence = parts.hand_over(replace(evidence, max_lr=parts.measure(PartName.MAX_LR, rate, of=problem)))
    if budget.rate_is_apart and not budget.has_spectrum_left:
        parts.leave_out(PartName.HESSIAN_EIGENVALUES)
        parts.hand_over(evidence)
    else:
        evidence = parts.hand_over(
            replace(evidence, hessian=parts.measure(PartName.HESSIAN_EIGENVALUES, ends, of=problem))
        )
    has_hessian = parts.done[-1].outcome != "failed"
    if has_hessian and not budget.rate_is_apart:
        limit = parts.measure(PartName.MAX_LR, rate, of=problem, is_free=evidence.hessian is not None)
        evidence = parts.hand_over(replace(evidence, max_lr=limit))
    if not budget.is_fast:
        evidence = parts.hand_over(replace(evidence, trace=parts.measure(PartName.HESSIAN_TRACE, mass, of=problem)))
    elif has_hessian:
        for name in (PartName.SMALLEST_EIGENVALUE, PartName.HESSIAN_TRACE):
            parts.leave_out(name)
            parts.hand_over(evidence)
    return evidence
