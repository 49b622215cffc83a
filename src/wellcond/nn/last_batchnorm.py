"""LastBN: one batch normalisation, directly before the last linear layer (huang2020)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from wellcond.errors import UnknownLayer
from wellcond.network.example_inputs import call, evaluating, example_inputs, tensors_in
from wellcond.network.layers import LinearRule, is_affine, rule_for, weighted_layers
from wellcond.network.taps import tapped
from wellcond.nn.replace import InvalidSurgery, copied, exchanged


class NormalisedLinear(nn.Module):
    """A linear layer behind a batch normalisation of its input features, (…, d) → (…, outputs).

    Every token of an (N, T, d) input is an example. A checkpoint of the linear layer alone, with the keys ``weight``
    and ``bias``, loads into ``linear``; ``strict=False`` leaves the norm as it is.
    """

    def __init__(self, norm: nn.BatchNorm1d, linear: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.linear = linear

    def forward(self, input: Tensor) -> Any:
        examples = input if input.dim() == 2 else input.reshape(-1, input.shape[-1])
        return self.linear(self.norm(examples).reshape(input.shape))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for key in self.linear.state_dict():
            if prefix + key in state_dict:
                state_dict[f"{prefix}linear.{key}"] = state_dict.pop(prefix + key)
        super()._load_from_state_dict(state_dict, prefix, *others)


@torch.inference_mode(False)  # what is made in inference mode cannot be trained
def with_last_batchnorm(model: nn.Module, inputs: Any = None, *, layer: str | None = None) -> nn.Module:
    """Return a copy of the model with one batch normalisation directly before its last linear layer.

    The new norm is an affine `nn.BatchNorm1d` over the features that enter the layer, on its device and in its dtype:
    h = W (γ (x − μ)/√(σ² + ε) + β) + b. Features are the last axis: (N, d), or (N, T, d) with every token an example.

    The last linear layer is found by running the model in evaluation mode: the one on which the outputs depend and on
    whose own output no other linear layer depends.

    inputs: what you call the model with: a tensor, a tuple or a dict; None makes them up (see `example_inputs`).
    layer: the name of the linear layer, where a model has several heads or cannot be run.

    The layer ``fc`` becomes the pair ``fc.norm`` and ``fc.linear``, in which hooks on ``fc.linear`` see the normalised
    features. An old checkpoint loads: ``load_state_dict(old, strict=False)`` misses the keys of ``fc.norm`` only.
    A compiled or DDP-wrapped model comes back as the plain module: wrap it again.

    >>> model = with_last_batchnorm(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
    >>> [name for name, _ in model.named_parameters()]
    ['0.weight', '0.bias', '2.norm.weight', '2.norm.bias', '2.linear.weight', '2.linear.bias']
    >>> model[2].norm.num_features
    8
    """
    operated = copied(model)
    linears = _linear_layers(operated)
    if not linears:
        raise InvalidSurgery(
            f"{type(operated).__name__} has no linear layer, before which a last batch normalisation could stand."
        )
    if layer is None:
        layer = _last_linear(copied(model), inputs)
    if layer not in linears:
        named = dict(operated.named_modules()).get(layer)
        if named is None:
            raise UnknownLayer(layer, linears)
        raise InvalidSurgery(f"{layer!r} is a {type(named).__name__}, not a linear layer that can be normalised.")
    linear: Any = linears[layer]
    rule = rule_for(linear)
    features = linear.weight.shape[0 if rule is not None and rule.weight_is_input_major else 1]
    norm = nn.BatchNorm1d(features, device=linear.weight.device, dtype=linear.weight.dtype)
    return exchanged(operated, {linear: NormalisedLinear(norm, linear).train(linear.training)})


def _linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Layers that are linear on the last axis, by name; not the parts of an attention block, which it never calls."""
    return {
        name: module
        for name, module in weighted_layers(model).items()
        if isinstance(rule_for(module), LinearRule) and is_affine(module)
    }


def _last_linear(model: nn.Module, inputs: Any) -> str:
    """The name of the last linear layer of a model that may be run and thrown away."""
    if inputs is None:
        inputs = example_inputs(model)
    layer_of: dict[Node, str] = {}

    def remember(name: str, _module: nn.Module, _x: Any, output: Any) -> None:
        for tensor in tensors_in(output):
            # an in-place activation behind a view goes on from the view's base
            nodes = [t.grad_fn for t in (tensor, tensor._base) if t is not None and t.grad_fn is not None]
            layer_of.update(dict.fromkeys(nodes, name))

    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())  # the graph passes frozen layers too
    with evaluating(model, gradients=True), tapped(_linear_layers(model), remember):
        outputs = [t.grad_fn for t in tensors_in(call(model, inputs)) if t.grad_fn is not None]
    first = _layers_behind(outputs, layer_of, stop=True)
    before = {
        name: _layers_behind([n for node, its in layer_of.items() if its == name for n in _next(node)], layer_of)
        for name in first
    }
    last = [name for name in first if not any(name in before[other] for other in first if other != name)] or first
    if len(last) == 1:
        return last[0]
    if not last:
        raise InvalidSurgery(
            f"the outputs of {type(model).__name__} depend on no linear layer: is there a detach(), a no_grad() or an "
            'argmax in its forward? If not, name the layer: layer="…".'
        )
    raise InvalidSurgery(
        f'the model has several last linear layers: {", ".join(map(repr, last))}. Choose one: layer="{last[0]}".'
    )


def _next(node: Node) -> list[Node]:
    return [following for following, _ in node.next_functions if following is not None]


def _layers_behind(nodes: Iterable[Node], layer_of: dict[Node, str], *, stop: bool = False) -> list[str]:
    """The layers on which autograd's nodes depend; the nearest on each way only, if the search is to stop there."""
    seen, left = set[Node](), list(nodes)
    while left:
        node = left.pop()
        if node not in seen:
            seen.add(node)
            if not (stop and node in layer_of):
                left += _next(node)
    return list(dict.fromkeys(name for node, name in layer_of.items() if node in seen))
