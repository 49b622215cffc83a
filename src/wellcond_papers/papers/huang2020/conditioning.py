"""What every layer receives and gets back, at one moment of training: the probe of most figures of huang2020."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence
from statistics import fmean

from torch import Tensor, nn

from wellcond.measurements.layers.conditioning import conditioning
from wellcond.problem.problem import Problem
from wellcond.results import Row
from wellcond.results.quantities import GRADIENT, INPUT, LOSS
from wellcond_papers.experiments.claims import is_greater

MAGNITUDES = (INPUT.lambda_max, GRADIENT.lambda_max)
"""λ_max of Σx and of Σ∇h."""
CONDITION_NUMBERS = tuple(matrix.kappa[share] for matrix in (INPUT, GRADIENT) for share in (0.5, 0.8))
"""κ_50% and κ_80% of Σx and of Σ∇h."""
LABELS = {
    INPUT.lambda_max: r"$\lambda_{\max}(\Sigma_x)$",
    GRADIENT.lambda_max: r"$\lambda_{\max}(\Sigma_{\nabla h})$",
    INPUT.kappa[0.5]: r"$\kappa_{50\%}(\Sigma_x)$",
    GRADIENT.kappa[0.5]: r"$\kappa_{50\%}(\Sigma_{\nabla h})$",
    INPUT.kappa[0.8]: r"$\kappa_{80\%}(\Sigma_x)$",
    GRADIENT.kappa[0.8]: r"$\kappa_{80\%}(\Sigma_{\nabla h})$",
}
"""The quantities as the paper writes them."""


def layer_rows(
    model: nn.Module,
    batch: tuple[Tensor, Tensor],
    step: int,
    *,
    keep: Collection[str] = (*MAGNITUDES, *CONDITION_NUMBERS),
    layers: Collection[str] | None = None,
) -> list[Row]:
    """λ_max and κ_p of Σx and Σ∇h of every layer, with the batch's own statistics in BN and the data's labels.

    A copy in float64 is measured, since float32 counts what is 10⁻⁵ of the largest eigenvalue as zero. A position of a
    convolution is one example. κ_p may be infinite: a layer of fewer than p·d directions.

    Args:
        model: The network, which is left as it is.
        batch: Images and labels, on its device.
        step: The number of steps taken.
        keep: The quantities to keep; `LOSS` is that of these images.
        layers: The layers; None for all.

    Raises:
        NonFinite: What a layer receives or gets back is not finite.
    """
    images, labels = batch
    measured = copy.deepcopy(model).double()
    problem = Problem(measured, nn.CrossEntropyLoss(), (images.double(), labels), batchnorm="batch")
    rows = [
        row
        for layer in conditioning(problem, layers=layers).layers.values()
        for part, names in ((layer.x, INPUT), (layer.g, GRADIENT))
        if part is not None
        for row in part.rows(layer.name, names, step)
        if row.quantity in keep
    ]
    if LOSS in keep:
        with problem.measuring():
            rows.append(Row(step, "", LOSS, float(problem.mean_loss()), ""))
    return rows


def is_larger(ours: Sequence[float], theirs: Sequence[float]) -> bool | None:
    """Whether the geometric mean over seeds is larger, None for a tie; where one is 0 or infinite, the mean decides.

    Example:
        >>> is_larger([10.0, 1000.0], [20.0, 100.0]), is_larger([math.inf, 1.0], [9.0, 9.0])
        (None, True)
    """
    if all(0 < value < math.inf for value in (*ours, *theirs)):
        return is_greater([*map(math.log, ours)], [*map(math.log, theirs)])
    return fmean(ours) > fmean(theirs)
