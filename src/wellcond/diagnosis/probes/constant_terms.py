"""Whether a term of the loss moves with the weights, but has no gradient.

A derivative without create_graph, .data, .item() or a round trip through NumPy cuts a term off: it is added to the
loss, and trains nothing. A detach() inside a term, as of a target network or a baseline, is by design: what it is
multiplied or compared with still has a gradient, so no whole term is cut off.
"""

from __future__ import annotations

import contextlib
import math

import torch

from wellcond.diagnosis.probes.exchanged import rms
from wellcond.diagnosis.probes.terms import evaluated, have_moved
from wellcond.network.isolation.isolation import parameters_kept
from wellcond.problem.problem import Problem

DIRECTIONS = 2
"""Random directions in which the weights are moved: in one of them a lost slope may be small by chance."""
DISTANCES = (4e-3, 1e-3)
"""How far they are moved, over the RMS of each parameter; the difference of the two slopes is their error."""
FRESH = 0.01
"""RMS that a parameter of zeros is taken to have."""
ROUNDINGS = 20.0
"""Rounding error of the loss over the precision of its dtype, at most."""


def lost_slope(problem: Problem) -> float | None:
    """Compare slopes of the loss of the first batch with its gradient, if a term moves that has no gradient.

    Returns:
        ‖slopes − gradient‖/‖slopes‖ in random directions: the share of the loss's slope that no step sees. None if all
        terms that move with the weights have a gradient.

    Raises:
        NonFinite: The loss is not finite there.
    """
    params = list(problem.params.values())
    draw = torch.Generator(problem.device).manual_seed(0)
    with problem.measuring(), parameters_kept(params), contextlib.closing(problem.data()) as data:
        index, batch = next(data)
        loss, constants = evaluated(problem, index, batch)
        if not constants.terms:
            return None
        gradients = problem.gradient(loss, params, allow_unused=True)
        rounding = ROUNDINGS * problem.eps * abs(float(loss.detach())) / DISTANCES[1]
        starts = [p.data for p in params]
        slopes, differences = list[float](), list[float]()
        has_moved = False
        for _ in range(DIRECTIONS):
            direction = [
                (rms(p) or FRESH) * torch.randn(p.shape, generator=draw, device=p.device).to(p) for p in starts
            ]
            expected = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True) if g is not None)
            at_both = []
            for step in DISTANCES:
                ends = []
                for signed in (step, -step):
                    for p, start, d in zip(params, starts, direction, strict=True):
                        p.data = start + signed * d
                    end, others = evaluated(problem, index, batch)
                    has_moved = has_moved or have_moved(constants.terms, others.terms)
                    ends.append(float(end.detach()))
                at_both.append((ends[0] - ends[1]) / (2 * step))
            far, near = at_both
            slopes.append(near)
            differences.append(max(0.0, abs(near - expected) - abs(far - near) - rounding))
    size = math.hypot(*slopes)
    return math.hypot(*differences) / size if has_moved and 0 < size < math.inf else None
