"""`softer-attention`: weights of queries and keys that are not too large to begin with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.network.isolation.copies import copied
from wellcond.network.recording import Call, Value, record
from wellcond.remedies.drawn_weights import with_weights
from wellcond.remedies.forward_calls import argument
from wellcond.remedies.remedy import remedy
from wellcond.remedies.rewired import own_name
from wellcond.remedies.setup import Setup

LARGE = 2.0
"""Queries and keys this much larger than torch draws them have products that are four times as large."""
SHARP = 5.0
"""Standard deviation of a row of scores from which they are made smaller, and `attention-saturation` warns."""
MASKED = -1e4
"""Scores below this have been masked."""


@remedy("softer-attention", "attention", rules=("attention-saturation",))
def softer_attention(setup: Setup) -> Setup | None:
    """Draws queries and keys of torch's attention as torch does, and makes those of other attention smaller.

    Scores are products of both, and a softmax of large scores looks at one position only and has no gradient. torch's
    are drawn again where they are more than twice as large as torch draws them. Of others the layers are found that the
    scores are computed from, and made so much smaller that the scores of a row have a standard deviation of one.
    """
    modules = setup.problem.model.named_modules()
    names = [name for name, module in modules if isinstance(module, nn.MultiheadAttention) and _is_loud(module)]
    if names:
        return _drawn_again(setup, names)
    projections = _loud_projections(setup)
    return _smaller(setup, projections) if projections else None


@dataclass(frozen=True)
class _Projection:
    """A layer of queries or keys, or of both in its first rows, and the factor that makes its scores ordinary."""

    layer: str
    factor: float
    rows: int | None


def _drawn_again(setup: Setup, names: list[str]) -> Setup:
    def draw(model: nn.Module) -> None:
        for name in names:
            attention = model.get_submodule(name)
            assert isinstance(attention, nn.MultiheadAttention)
            nn.init.xavier_uniform_(attention.in_proj_weight[: 2 * attention.embed_dim])

    listed = ", ".join(f'"{own_name(name)}"' for name in names)
    lines = (
        f"for module in map(model.get_submodule, [{listed}]):\n"
        "    nn.init.xavier_uniform_(module.in_proj_weight.data[: 2 * module.embed_dim])  # queries and keys"
    )
    return with_weights(setup, draw, lines)


def _is_loud(attention: nn.MultiheadAttention) -> bool:
    if attention.in_proj_weight is None:  # queries and keys of different sizes
        return False
    weight: Tensor = attention.in_proj_weight[: 2 * attention.embed_dim]
    usual: float = (2 / sum(weight.shape)) ** 0.5
    return float(weight.detach().float().square().mean().sqrt()) > LARGE * usual


def _smaller(setup: Setup, projections: list[_Projection]) -> Setup:
    def scale(model: nn.Module) -> None:
        for each in projections:
            for p in model.get_submodule(each.layer).parameters():
                p[: each.rows] *= each.factor

    lines = [
        f'for p in model.get_submodule("{own_name(each.layer)}").parameters():\n'
        f"    p.data{f'[:{each.rows}]' if each.rows else ''} *= {each.factor:.2g}  # queries and keys"
        for each in projections
    ]
    return with_weights(setup, scale, *lines)


def _loud_projections(setup: Setup) -> list[_Projection]:
    """The layers that scores are computed from, where these are too large for a softmax."""
    model = copied(setup.problem.model)
    calls = _calls(model, setup.inputs)
    loud: dict[str, _Projection] = {}
    for i, call in enumerate(calls):
        scores, sources = _scores(call)
        std = _spread(scores)
        if std > SHARP:
            for name in _layers_behind(calls[:i], sources):
                rows = _rows_of_scores(model, setup.inputs, name, i, scores)
                loud.setdefault(name, _Projection(name, std**-0.5, rows))
    return list(loud.values())


def _calls(model: nn.Module, inputs: Any) -> list[Call]:
    return record(model, inputs, lambda module: isinstance(module, nn.Linear)).calls


def _scores(call: Call) -> tuple[Tensor, list[Value]]:
    """The scores that a softmax or torch's attention function takes, and the values that they come from."""
    if call.name == "softmax" and isinstance(value := argument(call, 0, "input"), Value) and value.tensor.dim() > 2:
        return value.tensor.movedim(argument(call, 1, "dim", -1), -1), [value]
    if call.name == "scaled_dot_product_attention":
        q, k = argument(call, 0, "query"), argument(call, 1, "key")
        if q.shape[:-2] == k.shape[:-2]:
            return q.tensor @ k.tensor.mT * (call.kwargs.get("scale") or q.shape[-1] ** -0.5), [q, k]
    return torch.zeros(1), []


def _spread(scores: Tensor) -> float:
    """The standard deviation of a row's scores that are not masked, as a root of the mean square over rows."""
    scores = scores.detach().float()
    centered = scores - scores.where(scores > MASKED, torch.nan).nanmean(-1, keepdim=True)
    return float(centered[scores > MASKED].square().nanmean().sqrt())


def _layers_behind(calls: list[Call], values: list[Value]) -> list[str]:
    """The linear layers that values come from, with none in between."""
    sources, layers = set(values), list[str]()
    for call in reversed(calls):
        if not sources.isdisjoint(call.gives):
            sources.difference_update(call.gives)
            if call.module is not None:
                layers.append(call.name)
            else:
                sources.update(call.takes)
    return layers[::-1]


def _rows_of_scores(model: nn.Module, inputs: Any, name: str, place: int, scores: Tensor) -> int | None:
    """The first two thirds if the last one does not change the scores, as in a layer that gives values too."""
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    rows = 2 * layer.out_features // 3
    changed = copied(model)
    with torch.no_grad():
        for p in changed.get_submodule(name).parameters():
            p[rows:] = 0
    other, _ = _scores(_calls(changed, inputs)[place])
    return rows if torch.equal(scores, other) else None
