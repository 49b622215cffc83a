"""The distributions of layers' outputs: moments of every unit, histograms, and how they change over training."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from wellcond.errors import InvalidProblem, UnknownLayer
from wellcond.layerwise.moment_change import MomentChange, MomentChanges
from wellcond.layerwise.unit_statistics import Histogram, UnitStatistics
from wellcond.network.layers import ConvRule, rule_for, uncovered, weighted_layers, with_batch
from wellcond.network.norms import is_norm, unit_dim
from wellcond.network.taps import tapped
from wellcond.problem.arguments import as_names, as_pair, as_whole, check_problem
from wellcond.problem.problem import Problem
from wellcond.results import ByLayer, Row, number, text_table

COST = "cost: one forward pass and the counting of all outputs, about 1 u together; more where layers are tiny"
UNKNOWN = """\
nothing says which dimension of a {kind}'s output counts units; name it in layers=[…] to place them as those of the
last layer before it"""


@dataclass(frozen=True)
class LayerActivations:
    """The outputs of one layer, over examples and positions. Tensors are on the CPU.

    mean, variance: (units,), float64; the variance is divided by the number of samples.
    edges: (bins + 1,). counts: (units, 1 + bins + 1), the values below, in and above the bins.
    samples: values a unit. not_finite: how many values of all units are NaN or infinite.
    """

    name: str
    mean: Tensor
    variance: Tensor
    edges: Tensor
    counts: Tensor
    samples: int
    not_finite: int

    @property
    def units(self) -> int:
        return len(self.mean)

    @property
    def histogram(self) -> Histogram:
        """Of all units together."""
        return Histogram.of(self.counts.sum(0), self.edges)

    def unit_histogram(self, unit: int) -> Histogram:
        """Of one unit, over the same edges."""
        if not 0 <= unit < self.units:
            raise ValueError(f"unit is {unit}; {self.name!r} has units 0 to {self.units - 1}.")
        return Histogram.of(self.counts[unit], self.edges)


@dataclass(frozen=True)
class Activations(ByLayer[LayerActivations]):
    """One entry a layer, in the order of the forward pass. not_covered: layers without any, and why."""

    layers: dict[str, LayerActivations]
    not_covered: dict[str, str]

    def change_from(self, earlier: Activations) -> MomentChanges:
        """‖μ − μ'‖ and ‖σ² − σ'²‖ of every layer since an earlier step, absolute and relative (figure 7)."""
        changes = {}
        for name, layer in self.layers.items():
            before = earlier[name]
            if before.units != layer.units:
                raise ValueError(f"{name!r} had {before.units} units at the earlier step, and has {layer.units} now")
            changes[name] = MomentChange.between((before.mean, before.variance), (layer.mean, layer.variance))
        return MomentChanges(changes)

    def rows(self, step: int | None = None) -> list[Row]:
        """The averages over a layer's units. step: the training step that this was measured at."""
        out = []
        for name, layer in self.layers.items():
            named = {
                "activation_mean": (float(layer.mean.mean()), ""),
                "activation_variance": (float(layer.variance.mean()), ""),
                "not_finite": (float(layer.not_finite), "values"),
            }
            out += [Row(step, name, quantity, *value) for quantity, value in named.items()]
        return out

    def __str__(self) -> str:
        body = []
        for name, layer in self.layers.items():
            moments = number(float(layer.mean.mean())), number(float(layer.variance.mean()))
            body.append([name or "(model)", str(layer.units), str(layer.samples), *moments])
        notes = [
            f"{name or '(model)'}: {n.not_finite} values are NaN or inf" for name, n in self.items() if n.not_finite
        ]
        notes += [f"{name or '(model)'}: {why}" for name, why in self.not_covered.items()]
        table = text_table(["layer", "units", "samples", "mean", "variance"], body)
        return "\n".join([table, *notes, COST])


def activations(
    problem: Problem,
    layers: str | Sequence[str] | None = None,
    *,
    bins: int = 50,
    span: tuple[float, float] | None = None,
    like: Activations | None = None,
) -> Activations:
    """Mean and variance of every unit and histograms of layers' outputs, in one forward pass that stores none of them.

    A unit is a feature of a linear layer or a channel of a convolution; its values are those of all examples, and of
    all positions or tokens. The variance is divided by their number. A module that is called several times in a pass
    is seen each time. What is NaN or infinite is counted in `not_finite`, and makes the moments of its unit nan.
    The pass is a third of a u or more; moments and counts are another half where layers are wide, and take some 0.2 ms
    a layer however small it is.

    Bins have equal widths. Without `span` or `like` they cover the range of the first batch, widened by a tenth of
    itself at both ends; later values outside are counted as `below` and `above`.

    layers: names of any modules; None takes all weighted layers and norms, and lists what else owns parameters in
        `not_covered`. Units of other modules, such as an activation function, are placed as those of the last layer
        before it.
    span: (lowest, highest) edge for all layers, to compare networks.
    like: an earlier result, whose layers and edges are taken, for histograms over training; `bins` is then not used.

    >>> from torch import nn
    >>> model = nn.Linear(1, 2, bias=False)
    >>> model.weight.data = torch.tensor([[1.0], [-2.0]])
    >>> x = torch.tensor([[1.0], [3.0]])
    >>> found = activations(Problem(model, nn.MSELoss(), (x, x)), span=(-8, 8), bins=4)
    >>> found[""].mean.tolist(), found[""].variance.tolist(), found[""].histogram.counts.tolist()
    ([2.0, -4.0], [1.0, 4.0], [1, 1, 2, 0])
    """
    check_problem(problem)
    bins = as_whole("bins", bins, 1)
    edges = None if span is None else torch.linspace(*_checked(span), bins + 1, dtype=torch.float64)
    if span is not None and like is not None:
        raise ValueError("span and like both say where the edges are; pass one of them")
    known = _layers_of_units(problem.model)
    wanted = _chosen(problem.model, as_names(layers) if layers is not None else list(like or known))
    found: dict[str, UnitStatistics] = {}
    last: list[nn.Module] = []

    def on_call(name: str, module: nn.Module, _x: Any, output: Any) -> None:
        if name in known:
            last[:] = [module]
        tensor = next((t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()), None)
        if name not in wanted or tensor is None:
            return
        if isinstance(rule_for(module), ConvRule):
            tensor = with_batch(module, tensor)
        units = _by_unit(last[0] if last else None, tensor)
        if name not in found:
            found[name] = UnitStatistics(bins, like[name].edges if like is not None else edges)
        elif found[name].samples and len(found[name].mean) != units.shape[1]:
            raise InvalidProblem(
                f"{name!r} gave {len(found[name].mean)} units and then {units.shape[1]}: its moments cannot be joined. "
                "Leave it out of layers=[…], or measure batches of one shape."
            )
        found[name].add(units)

    with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
        for index, (inputs, _) in data:
            last.clear()
            with tapped(known | wanted, on_call):
                problem.forward(index, inputs)
    measured = {
        name: LayerActivations(
            name, s.mean.cpu(), s.variance.cpu(), s.edges.cpu(), s.counts.cpu(), s.samples, s.not_finite
        )
        for name, s in found.items()
        if s.edges is not None
    }
    missing = {name: "it was not called, or gave no numbers" for name in wanted if name not in measured}
    if layers is None and like is None:
        types = {name: type(module).__name__ for name, module in problem.model.named_modules()}
        for name, _ in uncovered(problem.model):
            if name not in known:
                missing[name] = UNKNOWN.format(kind=types[name]).replace("\n", " ")
    return Activations(measured, missing)


def _checked(span: Any) -> tuple[float, float]:
    low, high = as_pair(span)
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"span must be (lowest, highest) with lowest < highest, both finite, not {span!r}")
    return low, high


def _layers_of_units(model: nn.Module) -> dict[str, nn.Module]:
    """Weighted layers and norms: those that say which dimension of an output counts units."""
    weighted = weighted_layers(model)
    inside = tuple(f"{name}." for name in weighted)
    others = {name: m for name, m in model.named_modules() if not (inside and name.startswith(inside))}
    return weighted | {name: module for name, module in others.items() if is_norm(module)}


def _chosen(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    every = dict(model.named_modules(remove_duplicate=False))
    for name in names:
        if name not in every:
            raise UnknownLayer(name, every)
    return {name: every[name] for name in names}


def _by_unit(layer: nn.Module | None, output: Tensor) -> Tensor:
    """(outer, units, inner) of an output whose units are placed as those of a layer."""
    rule = None if layer is None else rule_for(layer)
    output = output.reshape(1) if output.dim() == 0 else output
    dim = 1 if layer is None else unit_dim(layer, output) if rule is None else rule.unit_dim(output)
    dim = min(dim, output.dim() - 1)
    return output.reshape(math.prod(output.shape[:dim]), output.shape[dim], math.prod(output.shape[dim + 1 :]))
