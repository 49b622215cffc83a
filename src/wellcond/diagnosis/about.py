"""What a diagnosis holds for, in words: the model, the data, the meaning of BatchNorm, the labels, the versions."""

from __future__ import annotations

import platform

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.layerwise.conditioning import ConditioningTable
from wellcond.problem.problem import Problem
from wellcond.spectral.eigenvalues import Eigenvalues
from wellcond.spectral.trace import Trace

_BATCHNORM = {
    "batch": "statistics of each batch, with gradients through them, as in training",
    "running": "running statistics, as in evaluation",
}
_LABELS = {
    "data": "the data's own",
    "sample": "drawn from the model's prediction",
    "model": "the model's prediction, in exact expectation",
}
_FORM = {"position": "every position is one example", "patch": "every patch (im2col) is one example"}


def about(
    problem: Problem, table: ConditioningTable | None, ends: Eigenvalues | None, mass: Trace | None
) -> dict[str, str]:
    """Title → sentence, in the order in which they are read."""
    from wellcond import __version__  # the package is complete by now

    has_norm = any(isinstance(module, _BatchNorm) for module in problem.model.modules())
    has_conv = any(isinstance(module, torch.nn.modules.conv._ConvNd) for module in problem.model.modules())
    kind = str(problem.dtype).removeprefix("torch.")
    out = {
        "model": type(problem.model).__name__,
        "parameters": f"{problem.size:,} trainable, {kind}, on {problem.device}",
        "loss": getattr(problem.loss, "__name__", type(problem.loss).__name__),
        "batchnorm": _BATCHNORM[problem.batchnorm] if has_norm else "the model has none",
        "dropout": "off" if problem.dropout is None else f"on, with seed {problem.dropout}",
    }
    if table is not None:
        out["labels of Σ∇h"] = _LABELS[table.labels]
        if has_conv:
            out["convolutions"] = _FORM[table.form]
    if ends is not None:
        out["Hessian eigenvalues"] = f"{ends.matvecs} products; {ends.status}"
    if mass is not None:
        met = "" if mass.converged else "; the asked 10 % was not reached"
        out["Hessian trace"] = f"{mass.matvecs} products; standard error {mass.error:.2g} on {mass.value:.4g}{met}"
    return out | {"versions": f"wellcond {__version__}, torch {torch.__version__}, Python {platform.python_version()}"}
