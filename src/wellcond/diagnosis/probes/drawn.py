"""Whether the loss weighs its terms by what the model itself draws or decides.

The loss of a policy is −log p(a)·R with actions a that the model draws and returns R that follow from them: its
gradient is that of the return, its value is not. A policy that gets better may raise it. The same is true of a
detached advantage, and of a loss that is divided by its own value.
"""

from __future__ import annotations

import contextlib

import torch

from wellcond.diagnosis.probes.exchanged import rms
from wellcond.diagnosis.probes.terms import evaluated, have_moved
from wellcond.errors import NonFinite
from wellcond.network.isolation.isolation import parameters_kept
from wellcond.problem.problem import Problem

JUMPS = (0.3, 1.0, 3.0)
"""How far the weights are moved, over the RMS of each parameter: farther, until some of the draws differ."""
SIZE_OF_ZEROS = 0.1
"""RMS that a parameter of zeros is taken to have."""


def weighs_by_itself(problem: Problem) -> bool:
    """Whether factors of the first batch's loss that have no gradient change with the weights.

    It takes five forward passes of a batch at most. Factors that differ between two passes with the same weights,
    which random numbers that nobody seeds make, do not count.
    """
    params = list(problem.params.values())
    draw = torch.Generator(problem.device).manual_seed(0)
    with problem.measuring(), parameters_kept(params), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        before, again = (evaluated(problem, index, batch)[1].factors for _ in range(2))
        if not before or _differ(before, again):
            return False
        starts = [p.data for p in params]
        for distance in JUMPS:
            for p, start in zip(params, starts, strict=True):
                noise = torch.randn(p.shape, generator=draw, device=p.device).to(p)
                p.data = start + distance * (rms(start) or SIZE_OF_ZEROS) * noise
            with contextlib.suppress(NonFinite):  # so far away a deep network may overflow
                if _differ(before, evaluated(problem, index, batch)[1].factors):
                    return True
        return False


def _differ(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """Whether values or their shapes differ: an episode of other actions may have another length."""
    return [each.shape for each in one] != [each.shape for each in other] or have_moved(one, other)
