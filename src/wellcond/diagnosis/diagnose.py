"""`diagnose`: measure everything about a problem that a few dozen Hessian products buy, and never fail as a whole."""

from __future__ import annotations

import torch

from wellcond.curvature.hessian import Hessian
from wellcond.diagnosis.about import about
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.diagnosis.magnitudes import gradients, weight_norms
from wellcond.diagnosis.step_limit import groups_of, step_limit
from wellcond.errors import NonFinite
from wellcond.layerwise.conditioning import conditioning
from wellcond.layerwise.neurons import neurons
from wellcond.problem.parts import Done, Parts, Progress
from wellcond.problem.problem import Problem
from wellcond.spectral.eigenvalues import Eigenvalues, eigenvalues
from wellcond.spectral.trace import trace

EIGENVALUE_MATVECS = 100
"""Most products for the Hessian's eigenvalues, each about two forward+backward passes; usually 10 to 30 are enough."""
TRACE_MATVECS = 400
"""Most products for its trace; they are of single layers, most of them of the last ones, which cost next to nothing."""
BASIS_BYTES = 2**31
"""Most memory for the Lanczos vectors, one a product: a network of 25 million parameters gets 21 of them."""


def diagnose(
    problem: Problem, optimizer: torch.optim.Optimizer | None = None, *, progress: Progress | None = None
) -> Diagnosis:
    """Measure a problem layer by layer and as a whole.

    The loss, gradient and weight norms; conditioning of every layer's input and output-gradient; dead and full
    ReLUs; both ends of the Hessian's spectrum (to 1 %, with error bounds) and its trace (to 10 %, with an error
    bar); and the largest stable learning rate 2/λ_max on these batches, with the optimizer's lr beside its own limit
    2(1+μ)/λ_max.

    A problem that cannot be measured at all raises; a part that fails is named in `.failed`, and the rest is there.
    Neither the model nor the optimizer is changed. Costs three passes over the data and usually 40 to 100 Hessian
    products.

    progress: called as (what is being measured, share of the work that is done).

    >>> import wellcond as wc
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> problem = wc.Problem(torch.nn.Linear(1, 1, bias=False), torch.nn.MSELoss(), (x, x))
    >>> round(diagnose(problem).step.plain, 4)           # H is 2 · mean x² = 5
    0.4
    """
    problem.check()
    if optimizer is not None:
        groups_of(problem, optimizer)  # an optimizer of another model is refused before the work
    parts = Parts(progress)
    gradient = parts.measure("gradients", 0.05, lambda done: gradients(problem), only=NonFinite)
    table = parts.measure("conditioning", 0.05, lambda done: conditioning(problem))
    units = parts.measure("neurons", 0.03, lambda done: neurons(problem))

    hessian = Hessian(problem)  # shared, so that the graph of one fixed batch is built once
    ends = parts.measure("Hessian eigenvalues", 0.4, lambda done: _ends(hessian, done))
    mass = parts.measure("Hessian trace", 0.47, lambda done: trace(hessian, tol=0.1, max_matvecs=TRACE_MATVECS))
    return Diagnosis(
        parameters=problem.size,
        conditioning=table,
        neurons=units,
        hessian=ends,
        trace=mass,
        gradients=gradient,
        weights=weight_norms(problem),
        step=step_limit(problem, ends, optimizer),
        about=about(problem, table, ends, mass),
        failed=parts.failed,
    )


def _ends(hessian: Hessian, done: Done) -> Eigenvalues:
    """Both ends of the spectrum, in as many products as the memory for their vectors allows."""
    budget = max(10, min(EIGENVALUE_MATVECS, BASIS_BYTES // (hessian.shape[0] * hessian.dtype.itemsize)))
    report = lambda spent, _error: done(spent / budget)  # noqa: E731
    return eigenvalues(hessian, which="both", tol=1e-2, max_matvecs=budget, progress=report)
