"""The distribution of every layer's outputs: moments and histograms of its units, and how they change over training."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from wellcond.errors import InvalidProblem, UnknownLayer
from wellcond.measurements.layers.unit_statistics import LayerActivations, UnitStatistics
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.layers import ConvRule, rule_for, uncovered, weighted_layers, with_batch
from wellcond.network.norms import is_norm, unit_dim
from wellcond.network.taps import tapped, without_graph
from wellcond.problem.arguments import as_two_numbers, as_whole, check_problem
from wellcond.problem.problem import Problem
from wellcond.results import ByLayer, Cost, Progress, Row, number, quantities, text_table
from wellcond.results.progress import shows_progress
from wellcond.results.text import WHOLE_MODEL

CHANGES = (
    quantities.MEAN_CHANGE,
    quantities.VARIANCE_CHANGE,
    quantities.RELATIVE_MEAN_CHANGE,
    quantities.RELATIVE_VARIANCE_CHANGE,
)
"""Quantities in the order of the attributes of `MomentChange`."""
UNKNOWN = (
    "it is not known which dimension of a {kind}'s output counts units; name it in layers=[…] to use the dimension of "
    "the last layer before it"
)


@dataclass(frozen=True)
class MomentChange:
    """The change of one layer's moments, over its units; a relative change from zero is nan.

    Attributes:
        mean: ‖μ − μ'‖, with μ' the earlier mean.
        variance: ‖σ² − σ'²‖.
        relative_mean: ‖μ − μ'‖/‖μ'‖.
        relative_variance: ‖σ² − σ'²‖/‖σ'²‖.
    """

    mean: float
    variance: float
    relative_mean: float
    relative_variance: float


@dataclass(frozen=True)
class MomentChanges(ByLayer[MomentChange]):
    """One entry per layer.

    Attributes:
        layers: Entries by name.
    """

    layers: dict[str, MomentChange]

    def rows(self, step: int | None = None) -> list[Row]:
        return [
            Row(step, name, quantity, value, "")
            for name, change in self.layers.items()
            for quantity, value in zip(CHANGES, astuple(change), strict=True)
        ]

    def __str__(self) -> str:
        header = ["layer", "‖Δμ‖", "‖Δσ²‖", "‖Δμ‖/‖μ‖", "‖Δσ²‖/‖σ²‖"]
        body = [[name or WHOLE_MODEL, *map(number, astuple(change))] for name, change in self.layers.items()]
        return text_table(header, body)


@dataclass(frozen=True)
class Activations(ByLayer[LayerActivations]):
    """One entry per layer, in the order of the forward pass.

    Attributes:
        layers: Entries by name.
        not_covered: Layers without an entry, and why.
        cost: Passes over the data, without the time for counting the outputs.
    """

    layers: dict[str, LayerActivations]
    not_covered: dict[str, str]
    cost: Cost

    def change_from(self, earlier: Activations) -> MomentChanges:
        """‖μ − μ'‖ and ‖σ² − σ'²‖ of every layer since an earlier step (santurkar2018, figure 7).

        Raises:
            UnknownLayer: A layer was not measured at the earlier step.
            ValueError: A layer has another number of units now.
        """
        changes = {}
        for name, layer in self.layers.items():
            before = earlier[name]
            if before.units != layer.units:
                raise ValueError(f"{name!r} had {before.units} units at the earlier step, and has {layer.units} now")
            pairs = (before.mean, layer.mean), (before.variance, layer.variance)
            sizes, absolute = zip(*((float(old.norm()), float((new - old).norm())) for old, new in pairs), strict=True)
            relative = (change / size if size else math.nan for change, size in zip(absolute, sizes, strict=True))
            changes[name] = MomentChange(*absolute, *relative)
        return MomentChanges(changes)

    def rows(self, step: int | None = None) -> list[Row]:
        rows = []
        for name, layer in self.layers.items():
            rows += [
                Row(step, name, quantities.ACTIVATION_MEAN, float(layer.mean.mean()), ""),
                Row(step, name, quantities.ACTIVATION_VARIANCE, float(layer.variance.mean()), ""),
                Row(step, name, quantities.NOT_FINITE, float(layer.not_finite), "values"),
            ]
        return rows

    def __str__(self) -> str:
        body, notes = [], {}
        for name, layer in self.layers.items():
            moments = number(float(layer.mean.mean())), number(float(layer.variance.mean()))
            body.append([name or WHOLE_MODEL, str(layer.units), str(layer.samples), *moments])
            if layer.not_finite:
                notes[name] = f"{layer.not_finite} values are NaN or inf"
        remarks = [f"{name or WHOLE_MODEL}: {note}" for name, note in (notes | self.not_covered).items()]
        table = text_table(["layer", "units", "samples", "mean", "variance"], body)
        return "\n".join([table, *remarks, f"{self.cost}; counting the outputs takes about half a u more"])


@shows_progress
@own_arithmetic()
def activations(
    problem: Problem,
    *,
    layers: str | Sequence[str] | None = None,
    bins: int = 50,
    bounds: tuple[float, float] | None = None,
    like: Activations | None = None,
    progress: Progress | None = None,
) -> Activations:
    """Mean and variance of every unit and histograms of layers' outputs, in one forward pass that stores no outputs.

    A unit is a feature of a linear layer or a channel of a convolution; its values are those of all examples, and of
    all positions or tokens. The variance is divided by their number. A module that is called several times in a pass
    counts each time, except for calls under `no_grad`. NaN and infinite values are counted in `not_finite`, and make
    the moments of their unit nan.
    The pass is a third of a u or more; moments and counts take another half if layers are wide, and about 0.2 ms per
    layer however small it is.

    Bins have equal widths. Without `bounds` or `like` they cover the range of the first batch, widened by a tenth at
    both ends; later values outside are counted as `below` and `above`.

    Args:
        problem: The model, loss and data.
        layers: Names of any modules; None takes all weighted layers and norms, and lists other modules with parameters
            in `not_covered`. Other modules, such as activation functions, have their units in the same dimension as
            the last layer before them.
        bins: Number of bins.
        bounds: (lowest, highest) edge for all layers, to compare networks.
        like: Earlier result whose layers and edges are used, for histograms over training; `bins` is then ignored.
        progress: Called as (current task, share of all work done).

    Returns:
        One entry per layer.

    Raises:
        UnknownLayer: A name is not that of a module.
        InvalidProblem: A layer's units change in number between calls.

    Example:
        >>> from torch import nn
        >>> model = nn.Linear(1, 2, bias=False)
        >>> model.weight.data = torch.tensor([[1.0], [-2.0]])
        >>> x = torch.tensor([[1.0], [3.0]])
        >>> layer = activations(Problem(model, nn.MSELoss(), (x, x)), bounds=(-8, 8), bins=4)[""]
        >>> layer.mean.tolist(), layer.variance.tolist(), layer.histogram.counts.tolist()
        ([2.0, -4.0], [1.0, 4.0], [1, 1, 2, 0])
    """
    check_problem(problem)
    bins = as_whole("bins", bins, 1)
    edges = None if bounds is None else torch.linspace(*_checked(bounds), bins + 1, dtype=torch.float64, device="cpu")
    if bounds is not None and like is not None:
        raise ValueError("bounds and like both set the edges; pass one of them")
    known = _layers_with_units(problem.model)
    names = list(like or known) if layers is None else [layers] if isinstance(layers, str) else layers
    every = dict(problem.model.named_modules(remove_duplicate=False))
    if unknown := [name for name in names if name not in every]:
        raise UnknownLayer(unknown[0], every)
    chosen = {name: every[name] for name in names}
    gathered: dict[str, UnitStatistics] = {}
    last: list[nn.Module] = []

    def on_call(name: str, module: nn.Module, _x: Any, output: Any) -> None:
        if name in known:
            last[:] = [module]
        tensor = next((t for t in tree_leaves(output) if isinstance(t, Tensor) and t.is_floating_point()), None)
        if name not in chosen or tensor is None:
            return
        if isinstance(rule_for(module), ConvRule):
            tensor = with_batch(module, tensor)
        units = _by_unit(last[0] if last else None, tensor)
        if name not in gathered:
            gathered[name] = UnitStatistics(bins, like[name].edges if like is not None else edges)
        elif gathered[name].samples and len(gathered[name].mean) != units.shape[1]:
            raise InvalidProblem(
                f"{name!r} gave {len(gathered[name].mean)} units and then {units.shape[1]}: its moments cannot be "
                "joined. Leave it out of layers=[…], or measure batches of one shape."
            )
        gathered[name].add(units)

    before = problem.cost
    batches = length_hint(problem.batches, 0)
    with problem.measuring(), torch.no_grad(), contextlib.closing(problem.data()) as data:
        for index, (inputs, _) in data:
            if progress is not None:
                progress(f"passing over batch {index + 1}", (index + 1) / max(batches, index + 1))
            last.clear()
            with without_graph(problem.model), tapped(known | chosen, on_call):
                problem.forward(index, inputs)
    measured = {name: statistics.of_layer(name) for name, statistics in gathered.items() if statistics.samples}
    unseen = "it was not called, or only under no_grad, or gave no numbers"
    missing = {name: unseen for name in chosen if name not in measured}
    if layers is None and like is None:
        others = [name for name, _ in uncovered(problem.model) if name not in known]
        missing |= {name: UNKNOWN.format(kind=type(every[name]).__name__) for name in others}
    return Activations(measured, missing, problem.cost - before)


def _checked(bounds: Any) -> tuple[float, float]:
    low, high = as_two_numbers(bounds)
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"bounds is {bounds!r}; it must be (lowest, highest) with lowest < highest, both finite.")
    return low, high


def _layers_with_units(model: nn.Module) -> dict[str, nn.Module]:
    """Weighted layers and norms, which determine the dimension of an output that counts units."""
    weighted = weighted_layers(model)
    inside = tuple(f"{name}." for name in weighted)
    others = {name: m for name, m in model.named_modules() if not (inside and name.startswith(inside))}
    return weighted | {name: module for name, module in others.items() if is_norm(module)}


def _by_unit(layer: nn.Module | None, output: Tensor) -> Tensor:
    """(outer, units, inner) of an output that has its units in the same dimension as a layer."""
    rule = None if layer is None else rule_for(layer)
    output = output.reshape(1) if output.dim() == 0 else output
    dim = 1 if layer is None else unit_dim(layer, output) if rule is None else rule.unit_dim(output)
    dim = min(dim, output.dim() - 1)
    return output.reshape(math.prod(output.shape[:dim]), output.shape[dim], math.prod(output.shape[dim + 1 :]))
