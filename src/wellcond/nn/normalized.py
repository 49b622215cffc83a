"""Normalized signals: inputs standardized by the data, and a norm behind every layer that has none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from wellcond.errors import Unsupported
from wellcond.network.calling import call
from wellcond.network.copying import copied
from wellcond.network.forward_pass import read_forward_pass
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.layers import ConvRule, LinearRule, is_affine, rule_for, weighted_layers
from wellcond.nn.replace import NORMS, exchanged

HAS_NORMS = "{model} has norms already: {name!r} is a {kind}."
BATCH_NORMS: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
"""By the number of axes of space."""


class Standardized(nn.Module):
    """A model behind (x − mean)/std of its inputs.

    Tensors of integers, such as tokens, and tensors of zeros and ones, such as masks, pass as they are.

    Args:
        model: The model.
        moments: Mean and standard deviation of each tensor among the inputs, of a shape that broadcasts; None for one
            that passes as it is.
    """

    def __init__(self, model: nn.Module, moments: Iterable[tuple[Tensor, Tensor] | None]) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self._count = 0
        for i, each in enumerate(moments):
            mean, std = each or (None, None)
            self.register_buffer(f"mean_{i}", mean)
            self.register_buffer(f"std_{i}", std)
            self._count = i + 1

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        leaves, form = tree_flatten((args, kwargs))
        for i, leaf in enumerate(leaves[: self._count]):
            mean, std = getattr(self, f"mean_{i}"), getattr(self, f"std_{i}")
            if mean is not None and isinstance(leaf, Tensor):
                leaves[i] = (leaf - mean) / std
        args, kwargs = tree_unflatten(leaves, form)
        return self.model(*args, **kwargs)


@torch.inference_mode(False)  # what is made in inference mode cannot be trained
@own_arithmetic()
def with_standardized_inputs(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Return a copy of the model that first standardizes its inputs, (x − mean)/std, by the statistics of batches.

    Each feature has its own mean and standard deviation: a column of (N, d) or (N, T, d), a channel of an image. Where
    most columns share their largest value (pixels do), all share one mean and one standard deviation. What is
    constant is only centered. The statistics are buffers: they are saved with the model.

    Args:
        model: The model, which is not changed.
        batches: Of `(inputs, targets)`; one pass is made over them. Or one such pair.

    Returns:
        The new model; the old one is its `.model`.

    Raises:
        Unsupported: There is nothing to standardize, or the model cannot be copied.

    Example:
        >>> model = with_standardized_inputs(nn.Identity(), [(torch.tensor([[1.0, 10.0], [3.0, 30.0]]), None)])
        >>> model(torch.tensor([[2.0, 40.0]]))
        tensor([[0., 2.]])
    """
    return standardized(copied(model), batches)


def standardized(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """The model itself behind a standardization of its inputs."""
    if isinstance(batches, (tuple, list)) and len(batches) == 2 and not isinstance(batches[0], (tuple, list)):
        batches = [batches]
    is_channel_first = any(isinstance(m, (nn.Conv1d, nn.ConvTranspose1d)) for m in model.modules())
    seen: list[_Moments | None] = []
    for inputs, *_ in batches:
        leaves = _leaves(inputs)
        seen = seen or [_Moments(leaf, is_channel_first) if _is_scalable(leaf) else None for leaf in leaves]
        for moments, leaf in zip(seen, leaves, strict=True):
            if moments is not None:
                moments.add(leaf)
    if not any(seen):
        raise Unsupported("there is no tensor of real numbers among the inputs, so nothing to standardize.")
    reference = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return Standardized(model, [None if moments is None else moments.found(reference) for moments in seen])


def _leaves(inputs: Any) -> list[Any]:
    """In the order in which the model will see them."""
    arguments: Any = ((inputs,), {})
    if isinstance(inputs, (tuple, list)):
        arguments = (tuple(inputs), {})
    elif hasattr(inputs, "keys"):
        arguments = ((), dict(inputs))
    return tree_flatten(arguments)[0]


def _is_scalable(leaf: Any) -> bool:
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.dim() == 0:
        return False
    return not bool(((leaf == 0) | (leaf == 1)).all())


class _Moments:
    """Sums over one input tensor, in float64, per feature: axis 1 of images, the last axis of tables and tokens."""

    def __init__(self, x: Tensor, is_channel_first: bool) -> None:
        self._feature = min(1, x.dim() - 1) if x.dim() != 3 or is_channel_first else 2
        self._others = [axis for axis in range(x.dim()) if axis != self._feature] if x.dim() > 1 else [0]
        self._is_table = x.dim() == 2
        self._count, self._sum, self._squares = 0, torch.zeros(()).double(), torch.zeros(()).double()
        self._largest = torch.tensor(-torch.inf).double()

    def add(self, x: Tensor) -> None:
        x = x.detach().to("cpu", torch.float64)
        self._count += x.numel() // (x.shape[self._feature] if x.dim() > 1 else 1)
        self._sum = self._sum + x.sum(self._others, keepdim=True)
        self._squares = self._squares + x.square().sum(self._others, keepdim=True)
        self._largest = torch.maximum(self._largest, x.amax(self._others, keepdim=True))

    def found(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, of a shape that broadcasts against a batch."""
        mean, squares = self._sum / self._count, self._squares / self._count
        if self._is_table and (self._largest == self._largest.max()).double().mean() > 0.5:
            mean, squares = mean.mean(), squares.mean()
        std = (squares - mean.square()).clamp_min(0).sqrt()
        is_constant = std <= 1e-7 * (1 + mean.abs())  # rounding leaves this much of a constant
        return mean.to(like), torch.where(is_constant, 1.0, std).to(like)


@torch.inference_mode(False)  # as above
@own_arithmetic()
def with_norms(model: nn.Module, inputs: Any, kind: Literal["batch", "layer"] = "batch") -> nn.Module:
    """Return a copy of the model with a norm directly behind every linear and convolutional layer but the last ones.

    Args:
        model: The model, which is not changed. It must have no norms.
        inputs: What you call the model with: a tensor, a tuple or a dict.
        kind: `"batch"`: BatchNorm over examples and positions; `"layer"`: LayerNorm over features, and for
            convolutions GroupNorm with one group.

    Returns:
        The new model. A layer `fc` becomes the pair `fc.0`, the layer, and `fc.1`, the norm.

    Raises:
        Unsupported: The model has norms, or no hidden layer, or it cannot be run or copied.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> with_norms(model, torch.zeros(2, 4))[0]
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): BatchNorm1d(8, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
        )
    """
    return normalized(copied(model), inputs, kind)


def normalized(model: nn.Module, inputs: Any, kind: Literal["batch", "layer"]) -> nn.Module:
    """The model itself, changed as `with_norms` does it."""
    for name, module in model.named_modules():
        if isinstance(module, NORMS) or "Norm" in type(module).__name__:
            raise Unsupported(HAS_NORMS.format(model=type(model).__name__, name=name, kind=type(module).__name__))
    layers = {name: module for name, module in weighted_layers(model).items() if is_affine(module)}
    trial = copied(model)
    last = set(read_forward_pass(trial, inputs, training=False).last_layers(is_affine))
    shapes = _output_shapes(trial, inputs, layers)
    new = {
        module: nn.Sequential(module, _norm(module, shapes[name], kind)).train(module.training)
        for name, module in layers.items()
        if name not in last and name in shapes
    }
    if not new:
        raise Unsupported(f"{type(model).__name__} has no hidden linear or convolutional layer to put a norm behind.")
    return exchanged(model, new)


def _output_shapes(model: nn.Module, inputs: Any, names: Iterable[str]) -> dict[str, torch.Size]:
    """Of the layers that a forward pass calls, in a model that may be thrown away."""
    shapes: dict[str, torch.Size] = {}
    modules = dict(model.named_modules())
    for name in names:
        modules[name].register_forward_hook(lambda _m, _x, y, name=name: shapes.__setitem__(name, y.shape))
    with torch.no_grad():
        call(model, inputs)
    return shapes


def _norm(layer: Any, shape: torch.Size, kind: str) -> nn.Module:
    place = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    rule = rule_for(layer)
    if isinstance(rule, ConvRule):
        if kind == "layer":
            return nn.GroupNorm(1, shape[1], **place)
        return BATCH_NORMS[len(shape) - 2](shape[1], **place)
    assert isinstance(rule, LinearRule)
    is_batch = kind == "batch" and len(shape) == 2
    return nn.BatchNorm1d(shape[-1], **place) if is_batch else nn.LayerNorm(shape[-1], **place)
