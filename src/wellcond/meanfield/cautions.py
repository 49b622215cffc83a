"""Where a prediction is not to be trusted: too few examples, and numbers that became none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from wellcond.errors import InvalidProblem
from wellcond.meanfield.convolution import AveragePool, Convolution, Flatten, GlobalPool
from wellcond.meanfield.field import Field
from wellcond.meanfield.gram import Gram
from wellcond.meanfield.means import AboutMean
from wellcond.meanfield.moments import Kernel, Moments
from wellcond.meanfield.signals import every
from wellcond.meanfield.stages import Affine, Nonlinearity, Residual, Stage

FEW = 1000
"""Values of a channel, or examples, below which the theory of very many is off."""
SHARED = 0.05
"""Of an activation's mean square, its squared mean: below, the gradients of two examples share little."""


def has_batchnorm(stages: Sequence[Stage]) -> bool:
    return any(isinstance(stage, Nonlinearity) and stage.norm == "batch" for stage in every(stages))


def cautions(stages: Sequence[Stage], start: Kernel) -> Iterator[str]:
    """What is to be said of few examples. start: the moments of the inputs."""
    examples = start.matrix.shape[-1] if isinstance(start, Gram) else getattr(start, "examples", math.inf)
    if isinstance(start, Field):
        few = [(int(n * examples), name) for name, n in _positions(stages, start.positions) if n * examples < FEW]
        if few:
            values, name = min(few)
            yield f"BatchNorm {name} sees only {values} values a channel: with so few the theory here is too low"
    nonlinearities = [stage for stage in every(stages) if isinstance(stage, Nonlinearity)]
    if examples < FEW and has_batchnorm(stages) and _mean_share(nonlinearities[-1]) < SHARED:
        yield "a lower bound: with few examples other directions may be as large"


def why_not_finite(stages: Sequence[Stage], start: Kernel) -> str:
    """The likely cause, where it is cheap to know."""
    for stage in every(stages):
        if isinstance(stage, Affine) and bool((stage.sigma_w2 == 0).any()):
            return f"the weights of layer {stage.name!r} are all 0, and a norm behind it has nothing to divide by"
    if float(start.mean_square().max()) == 0:
        return "the inputs are all 0"
    is_pooled = any(isinstance(stage, GlobalPool) for stage in every(stages))
    if is_pooled and isinstance(start, Moments) and math.isfinite(start.examples):
        return "the variant 'source' does not tell what positions of one example share, so leave out examples"
    return "numbers over- or underflow on the way, or a norm has no variance; look at γ, σ_w² and the inputs' size"


def check_inputs_differ(stages: Sequence[Stage], start: Kernel) -> None:
    """Dense layers behind which BatchNorm has no variance, as all examples are one."""
    if isinstance(start, Gram) and has_batchnorm(stages):
        products = start.matrix
        if torch.equal(products, products[:1, :1].expand_as(products)):
            raise InvalidProblem("inputs: all examples are alike, so that BatchNorm has no variance to divide by.")


def _positions(stages: Sequence[Stage], positions: int) -> Iterator[tuple[str, int]]:
    """Every BatchNorm by name, with the number of positions of what it receives."""
    for stage in stages:
        if isinstance(stage, Residual):
            yield from _positions(stage.branch, positions)
            yield from _positions(stage.shortcut, positions)
        elif isinstance(stage, Nonlinearity) and stage.norm == "batch":
            yield stage.name, positions
        positions = _behind(stage, positions)


def _behind(stage: Stage, positions: int) -> int:
    if isinstance(stage, Residual):
        for inner in stage.branch:
            positions = _behind(inner, positions)
    elif isinstance(stage, (Convolution, AveragePool)):
        return math.prod(stage.window.outputs)
    elif isinstance(stage, (Flatten, GlobalPool)):
        return 1
    return positions


def _mean_share(stage: Nonlinearity) -> float:
    """(E φ)²/E φ² at a Gaussian of variance γ², the least of a grid."""
    activation = stage.original if isinstance(stage, AboutMean) and stage.original is not None else stage.activation
    gamma = torch.ones((), dtype=torch.float64) if stage.gamma is None else stage.gamma
    variance = gamma.double() ** 2
    shared = activation.product(variance, variance, torch.zeros_like(variance))
    return float((shared / activation.product(variance, variance, variance)).min())
