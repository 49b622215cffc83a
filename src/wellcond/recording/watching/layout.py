"""The layer of every parameter, by the names that rows have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from wellcond.network.layers import called_modules, weighted_layers
from wellcond.results import Row


class Layout:
    """The layers of a model, and the parameters of each.

    A parameter belongs to the module that owns it; those of a block such as `MultiheadAttention`, and of a
    parametrization, to the layer as a whole. A tied parameter counts once, with the first of its layers.

    Args:
        model: The model.

    Attributes:
        layers: Names of all layers with parameters, in the model's order.

    Example:
        >>> layout = Layout(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
        >>> layout.layers
        ['0', '2']
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layer_of: dict[int, str] = {}
        self._others: dict[int, Tensor] = {}
        self.layers: list[str] = []
        self._read()

    def layer_of(self, parameter: Tensor) -> str | None:
        """Name of the layer; None for a parameter that is not the model's."""
        if id(parameter) not in self._layer_of and id(parameter) not in self._others:
            self._read()  # parameters may be replaced at any time
            if id(parameter) not in self._layer_of:
                self._others[id(parameter)] = parameter  # holding it ensures that its id is not reused
        return self._layer_of.get(id(parameter))

    def every_name(self) -> tuple[str, ...]:
        """Layers with parameters and all modules without children, in the model's order."""
        names = {*self.layers, *called_modules(self._model)}
        return tuple(name for name, _ in self._model.named_modules() if name in names)

    def _read(self) -> None:
        weighted = weighted_layers(self._model)
        self._layer_of.clear()
        for name, p in self._model.named_parameters():
            owner = name.rpartition(".")[0].partition("parametrizations.")[0].rstrip(".")
            parts = owner.split(".")
            around = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
            self._layer_of[id(p)] = next((each for each in around if each in weighted), owner)
        self.layers = list(dict.fromkeys(self._layer_of.values()))


def norm_rows(step: int, quantity: str, layers: Sequence[str], norms: Iterable[float]) -> list[Row]:
    """Rows of each layer's norm, from those of its parameters, and of the norm of all of them.

    >>> norm_rows(1, "gradient_norm", ["0", "0"], [3.0, 4.0])
    [Row(step=1, layer='0', quantity='gradient_norm', value=5.0, unit=''),
     Row(step=1, layer='', quantity='gradient_norm', value=5.0, unit='')]
    """
    by_layer: dict[str, float] = {}
    for layer, norm in zip(layers, norms, strict=True):
        by_layer[layer] = math.hypot(by_layer.get(layer, 0.0), norm)
    rows = [Row(step, layer, quantity, norm, "") for layer, norm in by_layer.items() if layer]
    return [*rows, Row(step, "", quantity, math.hypot(*by_layer.values()), "")]


def norms_of(tensors: Sequence[Tensor]) -> Tensor:
    """(n,), the norm of each tensor, in one call; sparse ones and several devices included."""
    dense = [t.coalesce().values() if t.layout is torch.sparse_coo else t for t in tensors]
    dtypes = {t.dtype for t in dense}
    if dtypes.isdisjoint((torch.float16, torch.bfloat16)):
        return stacked(torch._foreach_norm(dense))
    return stacked(torch._foreach_norm(dense, 2, torch.float64 if torch.float64 in dtypes else torch.float32))


def stacked(numbers: Sequence[Tensor]) -> Tensor:
    """(n,), numbers that may be on several devices."""
    try:
        return torch.stack(list(numbers))
    except RuntimeError:  # looking at each one's device first would take longer than all the rest
        return torch.stack([number.to(numbers[0], non_blocking=True) for number in numbers])
