"""What the numbers of a diagnosis hold for, in words."""

from __future__ import annotations

import platform

import torch
from torch.nn.modules.conv import _ConvNd

from wellcond.curvature.spectra.eigenvalues import Eigenvalues
from wellcond.curvature.spectra.trace import Trace
from wellcond.measurements.layers.conditioning import ConditioningTable
from wellcond.network.calling import dtype_name
from wellcond.problem.problem import Problem
from wellcond.results import Cost
from wellcond.results.version import __version__

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


def about(
    problem: Problem, table: ConditioningTable | None, ends: Eigenvalues | None, mass: Trace | None, cost: Cost
) -> dict[str, str]:
    """What the numbers hold for: title → sentence, in the order in which they are read.

    Args:
        problem: What was measured.
        table: Its layers.
        ends: Of the Hessian's spectrum.
        mass: The Hessian's trace.
        cost: What it took.
    """
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
    if problem.notes:
        out["held fixed"] = "; ".join(problem.notes)
    if problem.notes:
        out["batches"] = "; ".join(problem.notes)
    if table is not None:
        out["labels of Σ∇h"] = LABELS[table.labels]
        if has_conv:
            out["convolutions"] = CONVOLUTION[table.convolution]
    if ends is not None:
        far = ends.status if ends.converged else f"not known to {ends.tol:.0%} yet; the errors say how far"
        out["Hessian eigenvalues"] = f"{ends.matvecs} products; {far}"
    if mass is not None:
        met = "" if mass.converged else "; the asked 10 % was not reached"
        out["Hessian trace"] = f"{mass.matvecs} products; standard error {mass.error:.2g} on {mass.value:.4g}{met}"
    out["cost"] = str(cost).removeprefix("cost: ")
    libraries = f"wellcond {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return out | {"versions": libraries}
