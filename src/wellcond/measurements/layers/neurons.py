"""Dying and full units: ReLUs that are zero, or positive, on every example."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.layers import chosen_layers, rule_for, weighted_layers
from wellcond.network.taps import WatchedRelu, bracketed, tapped, without_graph
from wellcond.problem.arguments import check_problem
from wellcond.problem.problem import Problem
from wellcond.results import ByLayer, Cost, Progress, Row, quantities, text_table
from wellcond.results.progress import shows_progress
from wellcond.training.leading import led


@dataclass(frozen=True)
class LayerNeurons:
    """The ReLU units after one layer.

    Attributes:
        name: Name of the layer.
        is_dying: Units whose output is 0 on every example and at every position, (units,): no gradient passes them.
        is_full: Units whose output is positive everywhere, (units,): they are linear on this data.
    """

    name: str
    is_dying: Tensor
    is_full: Tensor

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.is_dying)

    @property
    def dying(self) -> int:
        """Number of dying units."""
        return int(self.is_dying.sum())

    @property
    def full(self) -> int:
        """Number of full units."""
        return int(self.is_full.sum())


@dataclass(frozen=True)
class NeuronTable(ByLayer[LayerNeurons]):
    """One entry per ReLU, under the name of the layer that feeds it.

    Attributes:
        layers: Entries by name.
        examples: Number of examples in the data.
        cost: Passes over the data.
    """

    layers: dict[str, LayerNeurons]
    examples: int
    cost: Cost

    def rows(self, step: int | None = None) -> list[Row]:
        rows = []
        for layer in self.layers.values():
            counts = {quantities.DYING: layer.dying, quantities.FULL: layer.full, quantities.UNITS: layer.units}
            rows += [Row(step, layer.name, quantity, float(count), "units") for quantity, count in counts.items()]
        return rows

    def __str__(self) -> str:
        if not self.layers:
            return "no ReLU was called"
        body = [[n.name, str(n.units), str(n.dying), str(n.full)] for n in self.layers.values()]
        return text_table(["layer", "units", "dying", "full"], body) + f"\non {self.examples} examples; {self.cost}"


@led
@shows_progress
@own_arithmetic()
def neurons(
    problem: Problem, *, layers: str | Collection[str] | None = None, progress: Progress | None = None
) -> NeuronTable:
    """Which ReLU units are dead or never off, by layer, in one forward pass over the data.

    A unit is a feature of a linear layer or a channel of a convolution. Modules and functional calls both count. A ReLU
    is named after the last weighted layer before it; a second one after the same layer gets `name[1]`. Calls under
    `no_grad`, such as those of a momentum encoder, are left out.

    Args:
        problem: The model, loss and data.
        layers: Names of layers to restrict to, or of modules that hold them: only the ReLUs after them are counted.
        progress: Called as (current task, share of all work done).

    Returns:
        One entry per ReLU.

    Raises:
        UnknownLayer: A name is neither that of a layer nor of a module that holds one.

    Example:
        >>> import wellcond as wc
        >>> model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1))
        >>> model[0].weight.data = torch.tensor([[1.0], [-1.0]])
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> relu = wc.neurons(wc.Problem(model, nn.MSELoss(), (x, x)))["0"]
        >>> relu.dying, relu.full
        (1, 1)
    """
    check_problem(problem)
    before = problem.cost
    units = ReluUnits(problem.model, layers)
    batches = length_hint(problem.batches, 0)
    examples = 0
    with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
        for index, batch in data:
            if progress is not None:
                progress(f"passing over batch {index + 1}", (index + 1) / max(batches, index + 1))
            with without_graph(problem.model), units.watched():  # ReLUs of the loss do not count
                outputs = problem.forward(index, batch[0])
            examples += problem.evaluate_outputs(index, batch, outputs).examples
    return NeuronTable(units.by_layer(), examples, problem.cost - before)


class ReluUnits:
    """Which ReLU units are off, or on, in all watched forward passes.

    Only those inside the model count: a training step may call another network too, as a critic's calls a generator.

    Args:
        model: The model.
        layers: Names of layers, or of modules that hold them, to restrict to.
    """

    def __init__(self, model: nn.Module, layers: str | Collection[str] | None) -> None:
        self._model = model
        self._modules = weighted_layers(model)
        self._chosen = {*chosen_layers(model, layers), *(["input"] if layers is None else [])}
        self._is_dying: dict[str, Tensor] = {}
        self._is_full: dict[str, Tensor] = {}
        self._last = "input"
        self._running = 0
        self._calls: dict[str, int] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Context around a forward pass of one batch."""
        self._last, self._running = "input", 0
        self._calls.clear()
        running = bracketed(self._model.modules(), self._enter, self._leave)
        with running, tapped(self._modules, self._on_call), WatchedRelu(self._on_relu):
            yield

    def by_layer(self) -> dict[str, LayerNeurons]:
        """The units of every ReLU so far."""
        return {
            name: LayerNeurons(name, is_dying.cpu(), self._is_full[name].cpu())
            for name, is_dying in self._is_dying.items()
        }

    def _enter(self, *_: Any) -> None:
        self._running += 1

    def _leave(self, *_: Any) -> None:
        self._running -= 1

    def _on_call(self, name: str, _module: nn.Module, _x: Any, _output: Any) -> None:
        self._last = name
        self._calls[name] = 0

    def _on_relu(self, output: Tensor) -> None:
        if not self._running:
            return
        layer = self._last
        nth = self._calls.get(layer, 0)
        self._calls[layer] = nth + 1
        if layer not in self._chosen:
            return
        name = f"{layer}[{nth}]" if nth else layer
        rule = rule_for(self._modules[layer]) if layer in self._modules else None
        unit_dim = rule.unit_dim(output) if rule is not None and output.dim() > 1 else min(1, output.dim() - 1)
        units = output.movedim(unit_dim, 0).flatten(1)
        zero, positive = (units == 0).all(1), (units > 0).all(1)
        self._is_dying[name] = self._is_dying[name] & zero if name in self._is_dying else zero
        self._is_full[name] = self._is_full[name] & positive if name in self._is_full else positive
