"""What becomes of a softmax: the dimension it normalizes over, and the one that a product after it sums over."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.weak import WeakIdKeyDictionary

from wellcond.network.graph import MOVES, inputs_of, of_data, plain

Key = TypeVar("Key")
PASSED_BY = (*MOVES, "Div", "Mul", "Add", "Sub", "MaskedFill", "Where", "Clamp", "Relu")
"""Operations between the product of queries and keys and the softmax: a scale, a mask."""


COORDINATES = 3
"""Columns of a table of coordinates, at most: a place has one to three."""


class Axis(NamedTuple):
    """A dimension of a tensor, known again in a view of it, whatever its place there.

    Attributes:
        size: Its size.
        stride: Its stride in memory.
    """

    size: int
    stride: int

    @classmethod
    def of(cls, tensor: Tensor, dim: int) -> Axis:
        """A dimension of a tensor."""
        return cls(tensor.shape[dim], tensor.stride(dim))

    def place_in(self, view: Tensor) -> int | None:
        """Its place in a view; None if it is not there, or if several have its size and stride."""
        places = [dim for dim in range(view.dim()) if Axis.of(view, dim) == self]
        return places[0] if len(places) == 1 else None


class WeightedSums(Generic[Key]):
    """Follows normalized tensors to the products that use them as weights.

    Attributes:
        elsewhere: Keys of those that are summed over another dimension than they are normalized over.
        of_places: Keys of those among them that weigh constant coordinates, as for the mean place under a map, and
            whose sum is not divided by that of the weights.
    """

    def __init__(self) -> None:
        self.elsewhere: set[Key] = set()
        self.of_places: set[Key] = set()
        self._weights: dict[int, tuple[Key, Axis]] = {}
        self._mean_places: dict[int, Key] = {}
        self._weighed: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def clear(self) -> None:
        """Forget all tensors: their memory may hold something else later."""
        self._weights.clear()
        self._mean_places.clear()
        self._weighed.clear()

    def add(self, key: Key, weights: Tensor, dim: int) -> None:
        """Follow a tensor that is normalized over a dimension."""
        self._weights[weights.data_ptr()] = key, Axis.of(weights, dim)

    def multiplied(self, args: tuple[Any, ...], product: Tensor) -> None:
        """A product a @ b, which sums over the last dimension of a, and over the last but one of b."""
        for place, tensor in enumerate(args[:2]):
            if (known := self._known(tensor)) is not None and tensor.dim() > 2:
                key, dim = known
                if dim is not None and dim != tensor.dim() - (1 if place == 0 else 2):
                    self.elsewhere.add(key)
                    if place == 0 and _are_coordinates(args[1]):
                        self.of_places.add(key)
                        self._mean_places[product.data_ptr()] = key

    def weighed(self, args: tuple[Any, ...], product: Tensor) -> None:
        """A product a * b of each number with another: of weights with coordinates that are the same for all."""
        for tensor, other in (args[:2], args[1::-1]):
            if (known := self._known(tensor)) is not None and known[1] is not None and tensor.dim() > 2:
                is_constant = isinstance(other, Tensor) and not other.requires_grad
                if is_constant and 0 < other.dim() < tensor.dim() and product.shape == tensor.shape:
                    self._weighed[product] = known[0], Axis.of(product, known[1])

    def summed(self, tensor: Any, dims: Any) -> None:
        """A sum of such a product over some dimensions; over all of them if none is named."""
        known = self._weighed[tensor] if isinstance(tensor, Tensor) and tensor in self._weighed else None
        if known is None or dims is None:
            return
        place = known[1].place_in(tensor)
        over = {dim % tensor.dim() for dim in (dims if isinstance(dims, (tuple, list)) else [dims])}
        if place is not None and place not in over:
            self.elsewhere.add(known[0])
            self.of_places.add(known[0])

    def divided(self, numerator: Any) -> None:
        """A quotient: weights that do not sum to one may be divided by their sum after the product."""
        if isinstance(numerator, Tensor) and numerator.layout is torch.strided:
            self.of_places.discard(self._mean_places.get(numerator.data_ptr()))

    def contracted(self, args: tuple[Any, ...]) -> None:
        """An einsum, which sums over the letters that its result does not have."""
        if not args or not isinstance(args[0], str) or "..." in args[0] or "->" not in args[0]:
            return
        left, _, right = args[0].replace(" ", "").partition("->")
        operands = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
        for letters, tensor in zip(left.split(","), operands, strict=False):
            if (known := self._known(tensor)) is not None and tensor.dim() > 2:
                key, dim = known
                if dim is not None and letters[dim] in right and not set(letters) <= set(right):
                    self.elsewhere.add(key)

    def _known(self, tensor: Any) -> tuple[Key, int | None] | None:
        """The key of weights, and the place of the dimension that they are normalized over."""
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            return None  # a sparse one is a graph's adjacency, and has no memory of its own
        known = self._weights.get(tensor.data_ptr())
        return None if known is None else (known[0], known[1].place_in(tensor))


def _are_coordinates(tensor: Any) -> bool:
    """Whether a factor is a table of places: constant, the same for all examples, of a few columns."""
    is_constant = isinstance(tensor, Tensor) and not tensor.requires_grad
    return is_constant and tensor.dim() == 2 and tensor.shape[1] <= COORDINATES


def compares_data(logits: Tensor) -> bool:
    """Whether logits are products of two signals, as of queries and keys, and not of a signal and a weight."""
    node: Node | None = logits.grad_fn
    while node is not None and plain(node) in PASSED_BY:
        above = inputs_of(node)
        node = above[0] if above else None
    return node is not None and plain(node) in ("Bmm", "Mm", "Baddbmm") and len(of_data(node)) > 1
