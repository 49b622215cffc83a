"""Conditioning of a few layers at a time."""

from __future__ import annotations

from wellcond.measurements.layers.conditioning import conditioning_table
from wellcond.network.layers import weighted_layers
from wellcond.problem.problem import Problem
from wellcond.results import Row
from wellcond.results.quantities import GRADIENT, INPUT

KAPPA_SHARES = (0.5, 1.0)
"""Shares p of κ_p that are recorded."""


class ConditioningProbe:
    """Takes the weighted layers of a model in turn."""

    def __init__(self) -> None:
        self.next_layer = 0

    def run(self, problem: Problem, step: int, layers: int) -> list[Row]:
        """λ_max, κ_p, rank and trace of Σx and Σ∇h of the next layers, with the labels of the data.

        Args:
            problem: Of one batch.
            step: The step that has just been taken.
            layers: How many layers.
        """
        names = list(weighted_layers(problem.model))
        chosen = [names[(self.next_layer + i) % len(names)] for i in range(min(layers, len(names)))]
        self.next_layer = (self.next_layer + len(chosen)) % max(len(names), 1)
        if not chosen:
            return []
        table = conditioning_table(problem, KAPPA_SHARES, layers=chosen)
        parts = [(layer, INPUT, layer.x) for layer in table.layers.values()]
        parts += [(layer, GRADIENT, layer.g) for layer in table.layers.values()]
        return [row for layer, names, part in parts if part is not None for row in part.rows(layer.name, names, step)]
