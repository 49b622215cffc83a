"""Covariate shift by the step that the optimizer has just taken, one layer at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from wellcond.measurements.layers.covariate_shift import gradient_shift, inner_products
from wellcond.network.isolation.isolation import parameters_kept
from wellcond.problem.problem import Problem
from wellcond.recording.watching.layout import Layout
from wellcond.results import Row
from wellcond.results import quantities as q


class ShiftProbe:
    """Takes the layers in turn, without the first, before which nothing moves.

    Args:
        layout: Layers of the model.
    """

    def __init__(self, layout: Layout) -> None:
        self.next_layer = 0
        self._layout = layout

    def run(self, problem: Problem, step: int, before: Mapping[Tensor, Tensor], order: Sequence[str]) -> list[Row]:
        """‖G − G'‖ and cos(G, G') of the next layer, as in `covariate_shift`, by the step that was taken.

        Args:
            problem: Of one batch, at the weights after the step.
            step: The step that has just been taken.
            before: The weights before it.
            order: The layers, in the order of the forward pass.
        """
        by_layer: dict[str, dict[str, Tensor]] = {}
        for name, p in problem.params.items():
            by_layer.setdefault(self._layout.layer_of(p) or "", {})[name] = p
        layers = [layer for layer in order if layer in by_layer]
        if len(layers) < 2:
            return []
        place = 1 + self.next_layer % (len(layers) - 1)
        self.next_layer += 1
        own = by_layer[layers[place]]
        with problem.measuring(), parameters_kept(problem.params.values()):
            (batch,) = [batch for _, batch in problem.data()]
            after = {p: p.data for layer in layers[:place] for p in by_layer[layer].values()}
            for p in problem.params.values():
                p.data = before.get(p, p.data)
            first = self._gradient(problem, batch, own)
            for moved, data in after.items():
                moved.data = data
            second = self._gradient(problem, batch, own)
        products = [inner_products(p, g, h) for p, g, h in zip(own.values(), first, second, strict=True)]
        shift = gradient_shift(layers[place], torch.stack(products).sum(0))
        values = {q.SHIFT_DIFFERENCE: shift.difference, q.SHIFT_COSINE: shift.cosine}
        return [Row(step, layers[place], quantity, value, "") for quantity, value in values.items()]

    def _gradient(
        self, problem: Problem, batch: tuple[object, object], own: Mapping[str, Tensor]
    ) -> Sequence[Tensor | None]:
        return torch.autograd.grad(problem.training_loss(0, batch), list(own.values()), allow_unused=True)
