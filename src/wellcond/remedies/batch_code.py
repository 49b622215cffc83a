"""How the lines of a remedy read the user's data: from `loader`, whatever its batches look like."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from operator import length_hint

from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from wellcond.network.isolation.isolation import loader_generators_kept
from wellcond.problem.batches import readable
from wellcond.problem.loss.outputs import own_loss
from wellcond.problem.problem import Problem
from wellcond.problem.training_step import TrainingStep
from wellcond.remedies.loss_code import name_of_loss
from wellcond.remedies.setup import Setup

OF_STEP = "wc.Problem.from_step(model, training_step, loader)"


def inputs_line(setup: Setup) -> str:
    """The lines that define `inputs`, those of one batch, on the model's device."""
    if isinstance(setup.problem.loss, TrainingStep):
        return f"problem = {OF_STEP}\ninputs = problem.model_inputs(*next(problem.data()))"
    if _are_pairs(setup.problem) and setup.problem.device.type == "cpu":
        return "inputs = next(iter(loader))[0]"
    return f"_, (inputs, _) = next({_problem(setup)}.data())"


def pairs_code(setup: Setup) -> str:
    """An expression for the batches as (inputs, targets)."""
    if isinstance(setup.problem.loss, TrainingStep):
        return f"[(problem.model_inputs(*each), None) for problem in [{OF_STEP}] for each in problem.data()]"
    return "loader" if _are_pairs(setup.problem) else f"[pair for _, pair in {_problem(setup)}.data()]"


def scaling_in_step(problem: Problem, rms: float) -> str:
    """The lines that standardize, inside a training step, the part of the batch whose RMS is closest to `rms`.

    The loss may be in other units then, so `treat` cannot try it; but what a step computes from its batch, such as the
    noise that a diffusion adds, needs the scale of the batch and not that of the model's inputs.
    """
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        _, (batch, _) = next(data)
    parts = [
        (abs(math.log(float(x.double().square().mean().sqrt()) / rms)), keystr(path), x)
        for path, x in tree_flatten_with_path(batch)[0]
        if isinstance(x, Tensor) and x.is_floating_point() and x.dim() > 1 and len(path) < 2 and bool(x.any())
    ]
    if not parts:
        return ""
    _, place, x = min(parts, key=lambda part: part[0])
    own = f"    batch = {'dict' if isinstance(batch, Mapping) else 'list'}(batch)\n" if place else ""
    return f"""\
step_of_unscaled = training_step
def training_step(model, batch):
{own}    batch{place} = (batch{place} - {float(x.double().mean()):.4g}) / {float(x.double().std()):.4g}
    return step_of_unscaled(model, batch)"""


def _problem(setup: Setup) -> str:
    return f"wc.Problem(model, {name_of_loss(setup.problem)}, loader)"


def _are_pairs(problem: Problem) -> bool:
    """Whether the loader ends, and a batch of it is (inputs, targets) as it stands."""
    if problem.loss is own_loss or not length_hint(problem.loader, 0):
        return False
    with problem.measuring(), loader_generators_kept(problem.batches):
        batch = next(iter(readable(problem.batches)))
    return isinstance(batch, Sequence) and len(batch) == 2
