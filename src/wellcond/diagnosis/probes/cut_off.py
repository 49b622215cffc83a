"""Which weights move the outputs of a model, but get no gradient from them: something is cut off in between."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from wellcond.diagnosis.probes.exchanged import rms
from wellcond.diagnosis.probes.subject import relative_change
from wellcond.network.calling import tensors_in
from wellcond.network.isolation.isolation import parameters_kept
from wellcond.problem.problem import Problem

MOST_LAYERS = 16
"""Layers that are moved, one after another; the last ones, which are nearest to the cut."""
SHIFT = 0.1
"""How far weights are moved, over their RMS."""
VISIBLE = 1e-3
"""Relative change of the outputs that is no rounding."""


def cut_off(problem: Problem) -> tuple[str, ...]:
    """Names of the layers that an output depends on by its value, with the same random numbers, but not by its graph.

    An output without any gradient, as that of a teacher, is not judged.
    """
    params = problem.params
    with problem.measuring(), contextlib.closing(problem.data()) as data, parameters_kept([*params.values()]):
        index, (inputs, _) = next(data)
        with torch.enable_grad():
            outputs = tensors_in(problem.forward(index, inputs))
        for place, output in enumerate(outputs):
            if not output.is_floating_point() or not output.requires_grad:
                continue
            gradients = problem.gradient(output.sum(), [*params.values()], allow_unused=True, retain_graph=True)
            missing = [name for name, g in zip(params, gradients, strict=True) if g is None]
            layers = list(dict.fromkeys(name.rpartition(".")[0] for name in missing))[-MOST_LAYERS:]
            unreached = [
                layer
                for layer in layers
                if _moves(problem, index, inputs, place, output, [n for n in missing if n.rpartition(".")[0] == layer])
            ]
            if unreached:
                return tuple(unreached)
    return ()


def _moves(problem: Problem, index: int, inputs: object, place: int, output: Tensor, names: list[str]) -> bool:
    """Whether other values of some parameters change an output."""
    draw = torch.Generator(problem.device).manual_seed(0)
    params = [problem.params[name] for name in names]
    with parameters_kept(params), torch.no_grad():
        for p in params:
            p.data = p.data + SHIFT * rms(p) * torch.randn(p.shape, generator=draw, device=p.device).to(p)
        moved = tensors_in(problem.forward(index, inputs))[place]
    return moved.shape == output.shape and relative_change(output.detach(), moved) > VISIBLE
