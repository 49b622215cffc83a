"""Rows r of many layers: all of them or a sample is stored, and multiplied, together or as a matrix never formed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from wellcond.errors import NonFinite

if TYPE_CHECKING:
    from wellcond.curvature.kronecker.second_moment import SecondMoment

LIMIT = 2**30
"""Most bytes of one matrix, or of the rows that it is made of."""
TOGETHER = 2**32
"""Most bytes for all layers."""
SMALL = 2**14
"""Rows with at most this many entries wait for those of other layers, to be multiplied together."""
MOST_WAITING = 2**24
"""Most entries of all waiting rows."""
CACHED_ENTRIES = 2**18
"""Entries of the rows that are converted to float64 at a time: they fit a cache."""
STREAMS = 8
"""GPU streams, one matrix in each: an H200 then takes 0.2, 1.1, 5.4 ms for a side of 128, 256, 768, instead of 0.8,
2.0, 7.3. A CPU takes longer (0.7, 2.9, 53 ms on one core), also with several threads."""
LEAST_COLUMNS = 512
"""Fewest columns converted at a time, so that their products outweigh the additions."""

Item = TypeVar("Item")
Part = tuple[float, Tensor]
"""The weight of each row's outer product, and the rows, (groups, n, d)."""


class KeptRows:
    """Rows of d features, in groups.

    Attributes:
        parts: Rows with their weights.
        count: Number of rows.
        is_sample: Whether some rows were left out.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.count = 0
        self.is_sample = False
        self._keys: list[Tensor] = []  # of a sample: a random number for every row; the smallest ones stay
        self._generator: torch.Generator | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of all rows."""
        return sum(rows.numel() * rows.element_size() for _, rows in self.parts)

    def add(self, rows: Tensor, weight: float, most: int) -> None:
        """Add rows, (groups, blocks, rows of a block, d); beyond `most` rows, keep a uniform sample of all so far."""
        new = rows.shape[1] * rows.shape[2]
        self.is_sample |= self.count + new > most
        self.count = min(self.count + new, most)
        if not self.is_sample:
            # a copy: the network may write over its activations
            self.parts.append((weight, rows.clone(memory_format=torch.contiguous_format).flatten(1, 2)))
            return
        self.parts.append((weight, rows.flatten(1, 2)))
        self._generator = self._generator or torch.Generator().manual_seed(0)
        for _, part in self.parts[len(self._keys) :]:
            self._keys.append(torch.rand(part.shape[1], generator=self._generator, dtype=torch.float64, device="cpu"))
        last = torch.cat(self._keys).kthvalue(most).values
        for i, (keys, (own_weight, part)) in enumerate(zip(self._keys, self.parts, strict=True)):
            chosen = (keys <= last).nonzero().flatten()
            self._keys[i] = keys[chosen]
            self.parts[i] = own_weight, part.index_select(1, chosen.to(part.device))

    def scale(self, factor: float) -> None:
        """Multiply all weights."""
        self.parts = [(weight * factor, rows) for weight, rows in self.parts]

    def inner_products(self) -> Tensor:
        """√w √v ⟨r, s⟩ of all pairs of rows, (groups, n, n), in float64."""
        groups, _, d = self.parts[0][1].shape
        device = self.parts[0][1].device
        products = torch.zeros(groups, self.count, self.count, dtype=torch.float64, device=device)
        width = max(CACHED_ENTRIES // (groups * self.count), LEAST_COLUMNS)
        for start in range(0, d, width):
            parts = [rows[..., start : start + width].double() for _, rows in self.parts]
            rows = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            products.baddbmm_(rows, rows.mT)
        factors = torch.cat([rows.new_full((some.shape[1],), math.sqrt(weight)) for weight, some in self.parts])
        return products.mul_(factors).mul_(factors[:, None])


class SumOfProducts:
    """v → Σ w r (rᵀv) / `unit`: a matrix of order one that is never formed; groups lie one after the other.

    Attributes:
        unit: Factor of its eigenvalues. Squares of the rows may leave the range of their dtype.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._heaviest = max(weight for weight, _ in parts)
        largest = max(abs(float(end)) for _, rows in parts for end in rows.aminmax())
        self._size = 2.0 ** math.frexp(largest)[1]
        self.unit = self._heaviest * self._size**2
        self.dtype, self.device = parts[0][1].dtype, parts[0][1].device
        self._groups, _, self._features = parts[0][1].shape
        self.shape = (self._groups * self._features,) * 2

    def __matmul__(self, v: Tensor) -> Tensor:
        columns = v.reshape(self._groups, self._features, -1)
        total = torch.zeros_like(columns)
        for weight, rows in self._parts:
            total += rows.mT @ ((rows @ columns) * (weight / self._heaviest / self._size)) / self._size
        return total.reshape(v.shape)


class Workspace:
    """Shared by the moments of one pass: a limit on memory, and small products, which are formed together.

    Attributes:
        held: Bytes of stored rows and matrices.
    """

    def __init__(self) -> None:
        self.held = 0
        self._waiting: list[tuple[SecondMoment, Tensor, float]] = []
        self._entries = 0

    def take(self, size: int) -> bool:
        """Reserve bytes. Returns False if they exceed the limit; a negative size releases them."""
        fits = self.held + size <= TOGETHER
        self.held += size if fits else 0
        return fits

    def multiply_later(self, moment: SecondMoment, rows: Tensor, weight: float) -> None:
        """Add weight · Σ r rᵀ to a moment before anything is read from it."""
        self._waiting.append((moment, rows.clone(), weight))  # a copy: the network may write over its activations
        self._entries += rows.numel()
        if self._entries > MOST_WAITING:
            self.multiply()

    def multiply(self) -> None:
        """Form all waiting products."""
        if not self._waiting:
            return
        waiting, self._waiting, self._entries = self._waiting, [], 0
        alike: dict[object, list[tuple[SecondMoment, Tensor, float]]] = defaultdict(list)
        for moment, rows, weight in waiting:
            alike[rows.shape, rows.dtype, rows.device].append((moment, rows, weight))
        for group in alike.values():
            products = sum_of_products(torch.cat([rows for _, rows, _ in group]))
            for (moment, _, weight), product in zip(
                group, products.view(len(group), -1, *products.shape[1:]), strict=True
            ):
                moment.add_product(product if weight == 1 else product * weight)


def sum_of_products(rows: Tensor) -> Tensor:
    """Σ r rᵀ of (groups, blocks, n, d) in float64; also computed in it if squares leave the range of float32."""
    if rows.shape[2] < rows.shape[3]:  # a sum of every block's products would be larger than the rows
        rows = rows.flatten(1, 2).unsqueeze(1)
    total = (rows.mT @ rows).sum(1)
    largest = total.diagonal(dim1=-2, dim2=-1).amax(-1)
    if rows.dtype != torch.float64 and not bool(((largest > 1e-25) & (largest < 1e25)).all()):
        return sum_of_products(rows.double())
    return total.double()


def sum_of_squares(rows: Tensor) -> float:
    """Σ ‖r‖², in float64."""
    return float(torch.linalg.vector_norm(rows, dtype=torch.float64)) ** 2


def eigenvalues_of(matrices: Tensor, names: Sequence[str]) -> Tensor:
    """Eigenvalues of matrices (k, groups, n, n), or of diagonals (k, groups, d): (k, groups, n or d), on the CPU.

    Raises:
        NonFinite: One of the k matrices is not finite; the message has its name.
    """
    is_diagonal = matrices.dim() == 3
    largest = (matrices if is_diagonal else matrices.diagonal(dim1=-2, dim2=-1)).abs().amax((1, 2))
    for name, size in zip(names, largest.tolist(), strict=True):
        if not math.isfinite(size):
            raise NonFinite(f"{name} is not available: its rows hold NaN or inf.")
    if is_diagonal:
        return matrices.cpu()
    unit = torch.where(largest == 0, 1.0, largest)[:, None, None]
    values: Tensor = torch.linalg.eigvalsh(matrices / unit[..., None]) * unit
    return values.cpu()


def in_streams(function: Callable[[Item], Tensor], items: Sequence[Item], device: torch.device) -> Iterator[Tensor]:
    """Call `function` with each item, several at a time on a GPU: one decomposition alone leaves it mostly idle.

    Args:
        function: Function whose result is on the CPU, so that the stream has ended.
        items: Arguments of the calls.
        device: The GPU.
    """
    main = torch.cuda.current_stream(device)
    torch.linalg.eigvalsh(torch.ones(1, 1, device=device))  # loads torch's solvers, which threads must not do at once

    def in_own_stream(item: Item) -> Tensor:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            return function(item)

    with ThreadPoolExecutor(STREAMS) as pool:
        yield from pool.map(in_own_stream, items)
