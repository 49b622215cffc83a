"""Internal covariate shift: how the gradient of a layer changes because the layers before it take their step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond.errors import NonFinite, UnknownLayer
from wellcond.network.checks import shared_memory_notes
from wellcond.network.isolation import isolation
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.module_names import ModuleNames
from wellcond.network.order import Layer, layers_in_order
from wellcond.network.taps import bracketed
from wellcond.problem.arguments import check_problem
from wellcond.problem.batch_losses import Gradients
from wellcond.problem.problem import Problem
from wellcond.results import ByLayer, Cost, Progress, Row, number, quantities, text_table
from wellcond.results.progress import shows_progress
from wellcond.results.text import WHOLE_MODEL
from wellcond.training.next_step import updated_parameters
from wellcond.training.passed_optimizer import optimizer_of


@dataclass(frozen=True)
class GradientShift:
    """The gradient of one layer, or of one parameter, before and after the layers before it have taken their step.

    Attributes:
        name: Name of the layer or parameter.
        difference: ‖G − G'‖.
        cosine: cos(G, G'); nan if one of them is zero.
        gradient_norm: ‖G‖.
        updated_norm: ‖G'‖.
        note: Remark on the numbers, or "".
    """

    name: str
    difference: float
    cosine: float
    gradient_norm: float
    updated_norm: float
    note: str = ""


@dataclass(frozen=True)
class CovariateShift(ByLayer[GradientShift]):
    """One entry per layer, in the order of the forward pass; `["0.weight"]` looks up a single parameter.

    Attributes:
        layers: Entries by name.
        parameters: Entries of single parameters, under all of their names.
        cost: Upper bound on the cost: all backward passes but the first end at the layer they are made for.
    """

    layers: dict[str, GradientShift]
    parameters: dict[str, GradientShift]
    cost: Cost

    def __getitem__(self, name: str) -> GradientShift:
        shift = self.layers.get(name) or self.parameters.get(name)
        if shift is None:
            raise UnknownLayer(name, [*self.layers, *self.parameters])
        return shift

    def rows(self, step: int | None = None) -> list[Row]:
        rows = []
        for name, shift in self.layers.items():
            values = {
                quantities.SHIFT_DIFFERENCE: shift.difference,
                quantities.SHIFT_COSINE: shift.cosine,
                quantities.GRADIENT_NORM: shift.gradient_norm,
                quantities.SHIFTED_GRADIENT_NORM: shift.updated_norm,
            }
            rows += [Row(step, name, quantity, value, "") for quantity, value in values.items()]
        return rows

    def __str__(self) -> str:
        body = [
            [s.name or WHOLE_MODEL, *map(number, (s.gradient_norm, s.updated_norm, s.difference)), _cosine(s.cosine)]
            for s in self.layers.values()
        ]
        notes = [f"{s.name or WHOLE_MODEL}: {s.note}" for s in self.layers.values() if s.note]
        table = text_table(["layer", "‖G‖", "‖G'‖", "‖G − G'‖", "cos(G, G')"], body)
        return "\n".join([table, *notes, str(self.cost)])


@shows_progress
@own_arithmetic()
def covariate_shift(
    problem: Problem,
    optimizer: Optimizer | Mapping[str, Tensor],
    *,
    layers: str | Sequence[str] | None = None,
    progress: Progress | None = None,
) -> CovariateShift:
    """Internal covariate shift of every layer at this training step (santurkar2018, definition 2.1).

    With W_1 … W_k the parameters of the layers and W^{t+1} their values after the optimizer's step on the same data,

        G  = ∇_{W_i} L(W_1^t, …, W_k^t)
        G' = ∇_{W_i} L(W_1^{t+1}, …, W_{i−1}^{t+1}, W_i^t, …, W_k^t)

    and ‖G − G'‖ and cos(G, G') are reported: 0 and 1 if the steps of the layers before do not change layer i's problem.

    A layer is a module with all the trainable parameters it owns, including biases and the affine parameters of norms;
    `MultiheadAttention` and recurrent layers are one each. Layers are ordered by when a forward pass starts them: a
    container that owns parameters (a position embedding) comes before the modules inside it. A tied parameter counts
    once, with the first layer that uses it.

    Neither the parameters nor the optimizer are touched: a copy of the optimizer takes the step, on copies. A step that
    depends on more than the gradients cannot be replayed (step hooks such as those of BNP, clipped gradients, a
    GradScaler): take it yourself, and pass the values after it, by name, in place of the optimizer.

    It costs one pass over the data per layer: no more than k forward+backward passes for k layers, where each backward
    pass but the first ends at its layer. Layers before which nothing has moved, as the first, need none. A loader, and
    a model that draws random numbers or writes to its buffers, are checked besides, as by `landscape`.

    Args:
        problem: The model, loss and data.
        optimizer: Any `torch.optim.Optimizer` over some of the parameters; those it does not hold do not move. Or
            {name: value after the step}, such as the `state_dict()` of a copy that has taken it.
        layers: Names of layers to restrict to, or of modules or parameters in them; only their passes are made.
        progress: Called as (current task, share of all work done).

    Returns:
        One entry per layer.

    Raises:
        Unsupported: The optimizer's step cannot be taken on a copy of it.
        InvalidProblem: The step would move none of the problem's parameters.
        UnknownLayer: A name is not that of a layer or parameter.

    Example:
        The gradients of w₁·w₂ at w₁ = 1, w₂ = 2 are 2 and 1. A step with lr 0.1 makes w₁ = 0.8, which is G' of w₂:

        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)).double()
        >>> for layer, w in zip(model, (1.0, 2.0)):
        ...     _ = nn.init.constant_(layer.weight, w)
        >>> problem = Problem(model, lambda outputs, _: outputs.mean(), (torch.ones(1, 1).double(), torch.zeros(1)))
        >>> print(covariate_shift(problem, torch.optim.SGD(model.parameters(), lr=0.1)))
        layer  ‖G‖  ‖G'‖  ‖G − G'‖  cos(G, G')
        0        2     2         0           1
        1        1   0.8       0.2           1
        cost: 2 u (2 forward and 2 backward passes; u: one training step, forward and backward of one mini-batch)
    """
    check_problem(problem)
    if not isinstance(optimizer, Mapping) or "optimizer" in optimizer:
        optimizer = optimizer_of(problem, optimizer) or {}
    selected = set(problem.params if layers is None else problem.select(layers))
    started: dict[str, None] = {}
    by_layer: dict[str, GradientShift] = {}
    parameters: dict[str, GradientShift] = {}
    before = problem.cost
    with problem.measuring():
        names = ModuleNames(problem.model)

        def on_entry(module: nn.Module, _args: Any, _kwargs: Any) -> None:
            if torch.is_grad_enabled():  # a call under no_grad, as of a target network, adds nothing to the gradients
                started.setdefault(names[module])

        with problem.checked_if_in_doubt(), bracketed(names, on_entry, lambda *_: None):
            loss, gradients = problem.loss_and_gradients()
        used = {name for name, gradient in gradients.items() if gradient is not None}
        notes = shared_memory_notes(problem.params)
        order = layers_in_order(problem.model, problem.params, list(started), used, notes)
        updated = updated_parameters(problem, optimizer, (loss, gradients))
        groups = _alike_before(order, updated)
        with isolation.parameters_kept(problem.params.values()):
            for i, group in enumerate(groups):
                if chosen := [layer for layer in group if not selected.isdisjoint(layer.params)]:
                    if progress is not None:
                        progress(f"covariate shift of {chosen[0].name or 'the model'}", i / len(groups))
                    changed = _gradients_of(problem, chosen) if i else gradients
                    for layer in chosen:
                        by_layer[layer.name], own = _layer_shifts(problem, layer, gradients, changed)
                        parameters |= own
                for name, p in group[-1].params.items():
                    p.data = updated[name]
    return CovariateShift(by_layer, parameters, problem.cost - before)


def _alike_before(order: Sequence[Layer], updated: Mapping[str, Tensor]) -> list[list[Layer]]:
    """The layers in their order; those before which the same parameters have moved share a group, and a pass.

    Where all parameters move, every layer is a group. Before the first group nothing has moved.
    """
    groups: list[list[Layer]] = [[]]
    for layer in order:
        groups[-1].append(layer)
        if not all(torch.equal(p.data, updated[name]) for name, p in layer.params.items()):
            groups.append([])
    return [group for group in groups if group]


def _gradients_of(problem: Problem, layers: Sequence[Layer]) -> Gradients:
    """∇L at the parameters' current values; nan if the loss is not finite there."""
    params = {name: p for layer in layers for name, p in layer.params.items()}
    try:
        return problem.loss_and_gradients(params)[1]
    except NonFinite:
        return {name: torch.full_like(p, math.nan) for name, p in params.items()}


def _layer_shifts(
    problem: Problem, layer: Layer, gradients: Gradients, changed: Gradients
) -> tuple[GradientShift, dict[str, GradientShift]]:
    """The shift of a layer, and the shifts of its parameters under all of their names."""
    products = {name: inner_products(p, gradients[name], changed[name]) for name, p in layer.params.items()}
    own = {p: gradient_shift(name, products[name]) for name, p in layer.params.items()}
    every = problem.model.named_parameters(remove_duplicate=False)
    whole = gradient_shift(layer.name, torch.stack(list(products.values())).sum(0), layer.notes)
    return whole, {full: own[p] for full, p in every if p in own}


def inner_products(p: Tensor, gradient: Tensor | None, changed: Tensor | None) -> Tensor:
    """(‖G − G'‖², ⟨G, G'⟩, ‖G‖², ‖G'‖²) of one parameter, (4,), in double precision."""
    g, g_new = (torch.zeros_like(p) if t is None else t for t in (gradient, changed))
    g, g_new = g.detach().double().flatten(), g_new.detach().double().flatten()
    difference = g - g_new
    return torch.stack([difference @ difference, g @ g_new, g @ g, g_new @ g_new])


def gradient_shift(name: str, products: Tensor, notes: Sequence[str] = ()) -> GradientShift:
    """The shift of a layer or parameter, from the sum of its `inner_products`."""
    squared_difference, product, squared, squared_new = products.tolist()
    difference, norm, norm_new = (math.sqrt(square) for square in (squared_difference, squared, squared_new))
    if norm == 0 or norm_new == 0:
        cosine = math.nan
        zero = "its gradient is zero" if norm == 0 else "its gradient is zero once the layers before it have moved"
        notes = [*notes, zero]
    elif not math.isfinite(difference):
        cosine = math.nan
        notes = [*notes, "it has no finite gradient once the layers before it have moved"]
    else:
        cosine = 1.0 if difference == 0 else max(-1.0, min(1.0, product / (norm * norm_new)))
    return GradientShift(name, difference, cosine, norm, norm_new, "; ".join(notes))


def _cosine(value: float) -> str:
    """The cosine with four digits, or as 1 − distance if it is close to 1."""
    away = 1 - value
    return f"1 − {away:.1e}" if 0 < away < 1e-3 else f"{value:.4g}"
