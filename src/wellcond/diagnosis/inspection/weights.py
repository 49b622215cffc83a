"""Every parameter: its scale, its gradient, whether its units differ, and what the optimizer does with it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wellcond.network.layers import BlockRule, ConvRule, rule_for, weighted_layers
from wellcond.network.norms import is_norm
from wellcond.training.optimizers import current_lr

Role = Literal["weight", "bias", "norm", "embedding", "recurrent", "other"]
"""What a parameter does in its layer; only parameters of one role are compared."""
SAME_GRADIENT = 1e-4
"""Relative difference of two gradients that may be rounding."""
MOST_UNITS, MOST_INPUTS = 128, 512
"""Units, and inputs of each, whose singular values are computed."""


@dataclass(frozen=True)
class Weight:
    """One parameter.

    Attributes:
        name: Its name.
        layer: Weighted layer around it, or the module that holds it.
        kind: Type of the layer.
        role: What it does in its layer.
        shape: Shape of the tensor.
        fan_in: Number of inputs that a unit adds up, for weights and recurrent weights; 0 for others.
        units: Number of units, one per row; 0 for parameters without rows.
        rms: √(mean θ²).
        mean: Mean of its entries.
        gradient: √(mean g²); None if no gradient reaches it.
        distinct: Number of different rows, counted together with their gradients; None for parameters without rows, or
            with NaN, which cannot be compared.
        distinct_rows: Number of different rows, whatever their gradients; None where `distinct` is.
        alike: Number of slices along one dimension, such as the units of stacked experts, (E, in, out), that are all
            the same, and their gradients too; 0 if some differ, and for weights of known layers.
        twins: Names of other parameters with the same values and the same gradient.
        outlier: Largest singular value over the largest that independent entries of this size give (Marchenko-Pastur):
            about 1 for any weights that were drawn, and more once training has aligned them; None without rows.
        order: Place of its layer in the forward pass; None if it is never called.
        is_called_without_graph: Whether its layer is called, but only under `no_grad`.
        is_trainable: Whether it requires a gradient.
        is_held: Whether the optimizer holds it; None without an optimizer.
        lr: Learning rate of its group in the optimizer; None if it is in none.
        weight_decay: Weight decay of its group; None if it is in none.
        not_finite: Number of entries that are NaN or infinite.
        gradient_not_finite: Number of entries of its gradient that are NaN or infinite.
        also: Other names of it, in other modules.
        shares_memory_with: Name of another parameter in the same memory.
        dtype: Its dtype.
        copies: How many units each group of units with the same weights and gradient has, where there are two groups or
            more with a gradient, all of one size; 0 elsewhere, and if a unit has no copy.
    """

    name: str
    layer: str
    kind: str
    role: Role
    shape: tuple[int, ...]
    fan_in: int
    units: int
    rms: float
    mean: float
    gradient: float | None
    distinct: int | None
    distinct_rows: int | None
    alike: int
    outlier: float | None
    order: int | None
    is_called_without_graph: bool
    is_trainable: bool
    is_held: bool | None
    lr: float | None
    weight_decay: float | None
    not_finite: int
    gradient_not_finite: int
    also: tuple[str, ...]
    shares_memory_with: str | None
    dtype: torch.dtype
    twins: tuple[str, ...] = ()
    copies: int = 0

    @property
    def numel(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def gain(self) -> float | None:
        """rms·√fan_in: factor by which a unit scales independent inputs. He gives √2, LeCun 1, torch's default 0.58."""
        return self.rms * math.sqrt(self.fan_in) if self.fan_in else None


def weights_of(
    model: nn.Module,
    gradients: Mapping[str, Tensor | None],
    started: Mapping[str, int],
    without_graph: Collection[str],
    optimizer: Optimizer | None,
) -> list[Weight]:
    """Every parameter, frozen ones too, in the model's order.

    Args:
        model: Model whose parameters are listed.
        gradients: Gradient by name; None if none reaches the parameter. Missing parameters were not differentiated.
        started: Place in the forward pass of every module that is called, by name.
        without_graph: Names of modules that are called under `no_grad`.
        optimizer: Optimizer that trains the model, if there is one.
    """
    held = {p: group for group in ([] if optimizer is None else optimizer.param_groups) for p in group["params"]}
    modules = dict(model.named_modules(remove_duplicate=False))
    every: dict[nn.Parameter, list[str]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        every.setdefault(p, []).append(name)
    layers = weighted_layers(model)
    in_memory: dict[int, str] = {}
    weights = []
    for p, names in every.items():
        name = names[0]
        owner = name.rpartition(".")[0]
        layer = next((part for part in _around(owner) if part in layers), owner)
        other = in_memory.setdefault(p.data_ptr(), name) if p.numel() else name
        group = held.get(p)
        weights.append(
            _weight(
                p,
                gradients.get(name),
                name=name,
                layer=layer,
                module=modules[layer],
                owner=modules[owner],
                order=started.get(layer, started.get(owner)),
                is_called_without_graph=owner in without_graph or layer in without_graph,
                is_held=None if optimizer is None else group is not None,
                lr=None if group is None else current_lr(group) if "lr" in group else math.nan,
                weight_decay=None if group is None else float(group.get("weight_decay", 0.0)),
                also=tuple(n for n in names[1:] if modules[n.rpartition(".")[0]] is not modules[owner]),
                shares_memory_with=None if other == name else other,
            )
        )
    values = {names[0]: p.detach() for p, names in every.items()}
    alike: dict[tuple[object, ...], list[str]] = {}
    for w in weights:
        if w.role == "weight" and w.gradient and w.rms and not w.not_finite and not w.gradient_not_finite:
            alike.setdefault((w.shape, w.rms, w.mean), []).append(w.name)
    twins = {
        name: tuple(other for other in names if other != name and _are_equal(name, other, values, gradients))
        for names in alike.values()
        if len(names) > 1
        for name in names
    }
    return [replace(w, twins=twins.get(w.name, ())) for w in weights]


def _are_equal(first: str, second: str, values: Mapping[str, Tensor], gradients: Mapping[str, Tensor | None]) -> bool:
    own, other = gradients.get(first), gradients.get(second)
    if own is None or other is None or not torch.equal(values[first], values[second]):
        return False
    difference = float((_dense(own) - _dense(other)).norm())
    return difference <= SAME_GRADIENT * float(_dense(own).norm())


def _around(owner: str) -> list[str]:
    """A module's name and those of the modules around it, innermost first."""
    parts = owner.split(".")
    return [".".join(parts[:i]) for i in range(len(parts), 0, -1)]


def _weight(
    p: Tensor, gradient: Tensor | None, *, module: nn.Module, owner: nn.Module, name: str, **facts: Any
) -> Weight:
    values = p.detach()
    role = _role(module, owner, name, values)
    g = None if gradient is None else _dense(gradient.detach())
    by_unit = _by_unit(module, owner, values) if role in ("weight", "recurrent") else None
    distinct = distinct_rows = None
    fan_in = copies = 0
    if by_unit is not None:
        fan_in = by_unit.shape[1]
    double = values.double()
    finite = double.isfinite()
    bad = double.numel() - int(finite.sum())
    known = double[finite] if bad else double
    if by_unit is not None and by_unit.shape[0] > 1 and not bad:
        g_by_unit = None if g is None else _by_unit(module, owner, g)
        distinct_rows = _distinct(by_unit)
        both = [by_unit] if g_by_unit is None else [by_unit, g_by_unit]
        distinct = _distinct(*both) if distinct_rows < len(by_unit) else distinct_rows
        if distinct < len(by_unit) and g_by_unit is not None:
            copies = _copies(by_unit, g_by_unit)
    return Weight(
        name=name,
        kind=type(module).__name__,
        role=role,
        shape=tuple(p.shape),
        fan_in=fan_in,
        units=0 if by_unit is None else len(by_unit),
        rms=float(known.square().mean().sqrt()) if known.numel() else 0.0,
        mean=float(known.mean()) if known.numel() else 0.0,
        gradient=None if g is None else float(g.double().square().mean().sqrt()) if g.numel() else 0.0,
        distinct=distinct,
        distinct_rows=distinct_rows,
        alike=_alike(values, g) if role in ("other", "embedding") and g is not None and not bad else 0,
        outlier=_outlier(by_unit) if by_unit is not None and not bad else None,
        is_trainable=p.requires_grad,
        not_finite=bad,
        gradient_not_finite=0 if g is None else g.numel() - int(g.isfinite().sum()),
        dtype=p.dtype,
        copies=copies,
        **facts,
    )


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _role(module: nn.Module, owner: nn.Module, name: str, p: Tensor) -> Role:
    if is_norm(owner) or is_norm(module):
        return "norm"
    if p.dim() < 2:
        return "bias" if "bias" in name.rpartition(".")[2] else "other"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding"
    if isinstance(module, nn.RNNBase) or isinstance(owner, nn.RNNCellBase):
        return "recurrent"
    return "weight" if rule_for(module) is not None else "other"


def _by_unit(module: nn.Module, owner: nn.Module, p: Tensor) -> Tensor:
    """(units, inputs of a unit)."""
    rule = rule_for(owner) or rule_for(module)
    is_turned = rule is not None and rule.weight_is_input_major and not isinstance(rule, BlockRule)
    if is_turned and isinstance(rule, ConvRule):
        return p.transpose(0, 1).flatten(1)  # the groups of a transposed convolution follow each other
    return p.T if is_turned else p.flatten(1)


def _outlier(by_unit: Tensor) -> float | None:
    some = by_unit[:MOST_UNITS, :MOST_INPUTS].double()
    some = some - some.mean()
    size = float(some.square().mean().sqrt())
    edge = size * (math.sqrt(some.shape[0]) + math.sqrt(some.shape[1]))
    return float(torch.linalg.eigvalsh(some @ some.T)[-1].clamp_min(0).sqrt()) / edge if edge > 0 else None


def _alike(values: Tensor, gradient: Tensor) -> int:
    """The most slices along one dimension that are all the same, in values and gradients; 0 if some differ along each.

    A slice is more than one number.
    """
    dims = [dim for dim, size in enumerate(values.shape) if 1 < size < values.numel()]
    slices = {dim: [t.movedim(dim, 0).flatten(1) for t in (values, gradient)] for dim in dims}
    return max((values.shape[dim] for dim, both in slices.items() if _distinct(*both) == 1), default=0)


def _copies(rows: Tensor, gradients: Tensor) -> int:
    """How many rows every group of equal ones with a gradient has; 0 if sizes differ, or there is but one group."""
    _, groups, counts = torch.unique(_keys(rows, gradients), dim=0, return_inverse=True, return_counts=True)
    size = gradients.double().square().sum(1).sqrt()
    moved = groups[size > SAME_GRADIENT * size.max()].unique()
    sizes = {int(counts[group]) for group in moved}
    return sizes.pop() if len(moved) > 1 and len(sizes) == 1 and 1 not in sizes else 0


def _distinct(*matrices: Tensor) -> int:
    """Number of rows that differ, up to rounding."""
    return len(torch.unique(_keys(*matrices), dim=0))


def _keys(*matrices: Tensor) -> Tensor:
    """Numbers of every row that are the same if rows are, up to rounding.

    Rows are compared by their products with two random vectors, which differ if the rows do, almost surely.
    """
    keys = []
    for matrix in matrices:
        rows = matrix.double()
        scale = rows.abs().max()
        if not bool(scale > 0) or not bool(scale.isfinite()):
            keys.append(rows.new_zeros(len(rows), 2))
            continue
        draw = torch.Generator().manual_seed(0)
        vectors = torch.randn(rows.shape[1], 2, generator=draw, dtype=torch.float64).to(rows.device)
        keys.append((rows / scale) @ vectors / math.sqrt(rows.shape[1]))
    return (torch.cat(keys, 1) * 1e5).round()
