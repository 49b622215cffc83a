"""Where NaN and infinity come from: the data, the weights, a layer, the code between layers, or the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from wellcond.network.calling import dense_parts, tensors_in
from wellcond.network.layers import called_modules
from wellcond.network.taps import tapped

ADVICE = {
    "data": "clean the data or drop that batch",
    "weight": "go back to the last checkpoint with finite weights, and train on at a smaller rate",
    "layer": "look for a division, a root or a logarithm there",
    "product": "its inputs and weights are finite, so their products overflow: see how large both are",
    "code": "look for a division, a root or a logarithm there",
}

MULTIPLIERS = (nn.Linear, _ConvNd)
"""Layers that only multiply and add: of finite inputs and weights they give infinity by overflow."""


class LayerOutput(NamedTuple):
    """What one module returned in a forward pass.

    Attributes:
        name: Name of the module in the model.
        kind: Its type.
        not_finite: Share of its values that are NaN or infinite.
        has_finite_input: Whether its input was finite.
    """

    name: str
    kind: str
    not_finite: float
    has_finite_input: bool


@dataclass(frozen=True)
class NotFinite:
    """The first place with NaN or infinity on the way from the data to the loss.

    Attributes:
        place: `"data"`, `"weight"`, `"layer"`, or `"code"`: the user's own code just before the named layer.
        name: Name of the tensor of the batch, of the parameter, or of the layer.
        kind: Type of the layer; empty for data and weights.
        amount: Number of such values in data and weights; share of the values of a layer.
    """

    place: Literal["data", "weight", "layer", "code"]
    name: str
    kind: str
    amount: float

    @property
    def sentence(self) -> str:
        """The place in words, to which advice can be appended."""
        if self.place == "data":
            return f"the {self.name} hold {self.amount:.0f} values that are NaN or infinite."
        if self.place == "weight":
            return (
                f"parameter {self.name!r} holds {self.amount:.0f} values that are NaN or infinite: "
                "the run that gave these weights has diverged."
            )
        if self.place == "code":
            return f"the code just before layer {self.name!r} is the first to return NaN or infinity."
        source = f"layer {self.name!r} ({self.kind})"
        return f"{source} is the first to return NaN or infinity, in {self.amount:.0%} of its values."


def first_not_finite(
    data: Iterable[tuple[str, int]], weights: Iterable[tuple[str, int]], layers: Iterable[LayerOutput]
) -> NotFinite | None:
    """The first place that is not finite: data before weights, weights before layers; None if all is finite.

    Args:
        data: Name of every tensor of the batch, and how many of its values are not finite.
        weights: The same for every parameter.
        layers: Outputs in the order of the forward pass.

    Example:
        >>> first_not_finite([("inputs", 0)], [("fc.weight", 2)], []).sentence
        "parameter 'fc.weight' holds 2 values that are NaN or infinite: the run that gave these weights has diverged."
    """
    for place, tensors in (("data", data), ("weight", weights)):
        for name, count in tensors:
            if count:
                return NotFinite(place, name, "", count)  # type: ignore[arg-type]
    for layer in layers:
        if layer.not_finite:
            return NotFinite("layer" if layer.has_finite_input else "code", layer.name, layer.kind, layer.not_finite)
    return None


def why_not_finite(model: nn.Module, index: int, batch: Any, forward: Callable[[], Any]) -> str:
    """A sentence or two: where the NaN or infinity in a batch's loss comes from, and what to do.

    Args:
        model: The model.
        index: Place of the batch among the batches.
        batch: Its (inputs, targets).
        forward: A forward pass of this batch.
    """
    layers: list[LayerOutput] = []
    outputs: list[Any] = []

    def on_call(name: str, module: nn.Module, x: Any, output: Any) -> None:
        share = not_finite_in(output) / max(sum(t.numel() for t in tensors_in(output)), 1)
        layers.append(LayerOutput(name, type(module).__name__, share, not not_finite_in(x)))

    def layers_of_a_pass() -> Iterator[LayerOutput]:  # the pass runs only if data and weights are finite
        with torch.no_grad(), tapped(called_modules(model), on_call):
            outputs.append(forward())
        yield from layers

    parts = zip(("inputs", "targets"), batch, strict=True)
    data = [(f"{part} of batch {index}", not_finite_in(value)) for part, value in parts]
    weights = [(name, not_finite_in(p)) for name, p in model.named_parameters()]
    origin = first_not_finite(data, weights, layers_of_a_pass())
    if origin is not None:
        on_batch = "" if origin.place == "data" else f" (on batch {index})"
        is_product = origin.place == "layer" and isinstance(model.get_submodule(origin.name), MULTIPLIERS)
        advice = ADVICE["product" if is_product else origin.place]
        return f"{origin.sentence.removesuffix('.')}{on_batch}; {advice}."
    if not_finite_in(outputs):
        return (
            f"the code after the last layer of {type(model).__name__} is the first to return NaN or infinity "
            f"(on batch {index})."
        )
    return (
        f"the loss of batch {index} is NaN or infinite although all outputs are finite; look at the loss itself "
        "(a mean over targets that are all ignored?)."
    )


def not_finite_in(value: Any) -> int:
    """How many values are NaN or infinite, in all tensors of a nest."""
    tensors = [part for t in tensors_in(value) for part in dense_parts(t)]
    return sum(t.numel() - int(torch.isfinite(t).sum()) for t in tensors)
