"""LastBN: one batch normalization, directly before the last linear layer (huang2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from wellcond.errors import UnknownLayer, Unsupported
from wellcond.network.example_inputs import example_inputs
from wellcond.network.forward_pass import read_forward_pass
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.isolation.copies import copied
from wellcond.network.layers import LinearRule, by_site, is_affine, rule_for, weighted_layers
from wellcond.nn.replace import exchanged


class NormalizedLinear(nn.Module):
    """A batch normalization of features followed by a linear layer, (…, d) → (…, outputs).

    Every token of an (N, T, d) input is an example. A checkpoint of the linear layer alone, with the keys `weight`
    and `bias`, loads into `linear`; `strict=False` leaves the norm as it is.

    Attributes:
        norm: The batch normalization.
        linear: The linear layer.
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


@torch.inference_mode(False)  # tensors created in inference mode cannot be trained
@own_arithmetic()
def with_last_batchnorm(model: nn.Module, inputs: Any = None, *, layer: str | None = None) -> nn.Module:
    """Return a copy of the model with one batch normalization directly before its last linear layer.

    The new norm is an affine `nn.BatchNorm1d` over the features that enter the layer, on its device and in its dtype:

        h = W (γ (x − μ)/√(σ² + ε) + β) + b

    Features are the last axis: (N, d), or (N, T, d) with every token an example. The last linear layer is found by
    running the model: the outputs depend on it, and no other linear layer depends on it. A layer `fc` becomes the pair
    `fc.norm` and `fc.linear`; an old checkpoint loads with `load_state_dict(old, strict=False)`. A compiled or
    DDP-wrapped model comes back as the plain module: wrap it again.

    Args:
        model: The model, which is not changed.
        inputs: Example inputs of the model: a tensor, a tuple or a dict; None makes them up from its sizes.
        layer: Name of the linear layer, for a model that has several heads or cannot be run.

    Returns:
        The new model.

    Raises:
        Unsupported: There is no linear layer, there are several last ones, or the model cannot be run or copied.
        UnknownLayer: No module has the name `layer`.

    Example:
        >>> model = with_last_batchnorm(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
        >>> [name for name, _ in model.named_parameters()]
        ['0.weight', '0.bias', '2.norm.weight', '2.norm.bias', '2.linear.weight', '2.linear.bias']
        >>> model[2].norm.num_features
        8
    """
    return put_last_batchnorm(copied(model), inputs, layer)


def put_last_batchnorm(operated: nn.Module, inputs: Any, layer: str | None = None) -> nn.Module:
    """The model itself, not a copy, changed as in `with_last_batchnorm`."""
    # without the parts of an attention block, which it never calls
    linears = {name: module for name, module in weighted_layers(operated).items() if _is_linear(module)}
    if not linears:
        raise Unsupported(
            f"{type(operated).__name__} has no linear layer that a last batch normalization could be put before."
        )
    if layer is None:
        layer = _last_linear(copied(operated), inputs)
    if layer not in linears:
        named = dict(operated.named_modules()).get(layer)
        if named is None:
            raise UnknownLayer(layer, linears)
        raise Unsupported(f"{layer!r} is a {type(named).__name__}, not a linear layer that can be normalized.")
    linear: Any = linears[layer]
    features = by_site(linear, linear.weight).shape[2]
    norm = nn.BatchNorm1d(features, device=linear.weight.device, dtype=linear.weight.dtype)
    return exchanged(operated, {linear: NormalizedLinear(norm, linear).train(linear.training)})


def _last_linear(model: nn.Module, inputs: Any) -> str:
    """The name of the last linear layer of a model that may be run and thrown away."""
    if inputs is None:
        inputs = example_inputs(model)
    last = read_forward_pass(model, inputs, training=False).last_layers(_is_linear)
    if len(last) == 1:
        return last[0]
    if not last:
        raise Unsupported(
            f"the outputs of {type(model).__name__} depend on no linear layer: is there a detach(), a no_grad() or an "
            'argmax in its forward? If not, name the layer: layer="…".'
        )
    raise Unsupported(
        f'the model has several last linear layers: {", ".join(map(repr, last))}. Choose one: layer="{last[0]}".'
    )


def _is_linear(module: nn.Module) -> bool:
    """Whether a layer is linear on the last axis."""
    return isinstance(rule_for(module), LinearRule) and is_affine(module)
