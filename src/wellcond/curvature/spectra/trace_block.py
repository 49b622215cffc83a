"""The trace of one diagonal block: exact, or exact on a basis and estimated by random probes on the rest."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from wellcond.curvature.spectra.operators import Operator
from wellcond.errors import NonFinite

SKETCH = 8
"""Most products of random vectors from which a basis is made at once."""
ENOUGH_ALIKE = 16
"""Probes that must agree to be trusted; with two coupled parameters, four of them can agree by luck."""

CONVERTED_ENTRIES = 2**22
"""Entries of a vector that are converted to float64 at a time."""

Request = tuple[Tensor, Callable[[Tensor], None]]
"""Columns to multiply the block with, and the function that receives the products."""


class TraceBlock:
    """An estimate of tr B that improves with every product.

    tr B = tr(QᵀBQ) + E[zᵀCz] for an orthonormal Q, C = (I − QQᵀ) B (I − QQᵀ) and z uniform on {−1, 1}ⁿ.

    The variance of zᵀCz is 2 Σ_{j≠k} C_jk². It is not estimated from the few sums zᵀCz but from all entries of z ∘ Cz:
    entry k has the variance Σ_{j≠k} C_jk². That is unbiased too. If C has rank one, the worst case, it is as noisy as
    the variance of the same number of normal numbers; the variance of the sums is seven times as noisy.

    Args:
        size: Side of the block.
        cost: Cost of a product, as a share of one with the whole matrix.
        operator: Matrix that it is a block of.
        generator: Generator of the probes.

    Attributes:
        count: Number of probes in the mean.
        is_exact: Whether the trace is known exactly.
    """

    def __init__(self, size: int, cost: float, operator: Operator, generator: torch.Generator) -> None:
        self.size = size
        self.cost = cost
        self.dtype, self.device = operator.dtype, operator.device
        self.generator = generator
        self.is_exact = False
        self._inside = self._inside_size = 0.0
        self._basis = torch.empty(size, 0, dtype=self.dtype, device=self.device)
        self._forget()

    def _forget(self) -> None:
        self.count = 0
        self._scale = 0.0  # numbers are brought near one before they are squared, so that nothing over- or underflows
        self._mean = torch.zeros(self.size, dtype=torch.float64, device=self.device)
        self._squares = 0.0
        self._products = self._basis[:, :0]

    # what is known

    @property
    def basis_width(self) -> int:
        """Number of directions that are summed exactly."""
        return self._basis.shape[1]

    @property
    def value(self) -> float:
        """The estimate of the trace."""
        return self._inside + self._scale * float(self._mean.sum())

    @property
    def rounding(self) -> float:
        """Error of the trace from the rounding of the products."""
        return 10 * torch.finfo(self.dtype).eps * (self._inside_size + self._scale * float(self._mean.abs().sum()))

    @property
    def spread(self) -> float:
        """Standard deviation of one probe."""
        if self.is_exact:
            return 0.0
        return self._scale * math.sqrt(2 * self._squares / (self.count - 1)) if self.count > 1 else math.inf

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the spread, halved if few directions carry it: a small sum then has a small spread."""
        return (self.count - 1) * (1 - self.captured / 2)

    @property
    def may_be_luck(self) -> bool:
        """Whether the probes are few and agree so well that it may be chance."""
        if self.is_exact or self._basis.shape[1] or self.count >= ENOUGH_ALIKE:
            return False
        return self.spread <= math.sqrt(torch.finfo(self.dtype).eps) * abs(self.value)

    @property
    def captured(self) -> float:
        """Share of the variance that a basis of the last products would remove: 1 if it lies in few directions.

        That is ‖Cz‖² minus the part outside the span of the other products, 1/(G⁻¹)_ii for the Gram matrix G of all.
        It is 0 in half precision, which has no basis to remove it with.
        """
        columns = self._products.shape[1]
        if columns < 2 or not self._scale or torch.finfo(self.dtype).bits < 32:
            return 0.0
        scaled = self._products / self._scale
        gram = (scaled.T @ scaled).double()
        gram = gram / gram.trace() + 1e-6 * torch.eye(columns, dtype=torch.float64, device=self.device)
        return max(0.0, 1.0 - float((1 / torch.linalg.inv(gram).diagonal()).sum()))

    # how more becomes known

    def unit_vectors(self) -> Request:
        """Request the diagonal: the trace is then exact."""

        def receive(products: Tensor) -> None:
            self._check_finite(products)
            self._forget()
            self._inside = float(products.diagonal().double().sum())
            self._inside_size = float(products.diagonal().double().abs().sum())
            self.is_exact = True

        return torch.eye(self.size, dtype=self.dtype, device=self.device), receive

    def probes(self, count: int) -> Request:
        """Request more probes."""
        signs = torch.randint(0, 2, (self.size, count), generator=self.generator, dtype=torch.int8, device="cpu")
        signs = (signs * 2 - 1).to(self.device, self.dtype)
        return self._outside(signs), lambda products: self._add(signs, self._outside(products))

    def deflation(self, count: int) -> Request:
        """Request an exact sum over the range of the last products, and `count` new probes of the rest."""
        known = self._basis.shape[1]
        wider = torch.linalg.qr(torch.cat([self._basis, self._products / self._scale], 1)).Q
        new = wider[:, known:]
        self._basis = wider
        self._forget()
        columns, receive_probes = self.probes(count)

        def receive(products: Tensor) -> None:
            inside, outside = products.tensor_split([new.shape[1]], 1)
            self._check_finite(products)
            self._inside += float((new * inside).sum(dtype=torch.float64))
            self._inside_size += float((new * inside).abs().sum(dtype=torch.float64))
            receive_probes(outside)

        return torch.cat([new, columns], 1), receive

    def _outside(self, columns: Tensor) -> Tensor:
        return columns - self._basis @ (self._basis.T @ columns) if self._basis.shape[1] else columns

    def _add(self, signs: Tensor, products: Tensor) -> None:
        largest = self._check_finite(products)
        self._scale = self._scale or largest
        for sign, product in zip(signs.T, products.T, strict=True):
            self.count += 1
            for own, mean in zip(
                *(torch.split(t, CONVERTED_ENTRIES) for t in (sign * product, self._mean)), strict=True
            ):
                entries = own.double() / (self._scale or 1.0)
                change = entries - mean
                mean += change / self.count
                self._squares += float(change @ (entries - mean))
        self._products = products[:, :SKETCH]

    def _check_finite(self, products: Tensor) -> float:
        low, high = products.aminmax()
        largest = max(-float(low), float(high))
        if not math.isfinite(largest):
            raise NonFinite(
                f"the matrix is NaN or inf, or too large for {self.dtype}; "
                "measure a copy: copy.deepcopy(model).double()."
            )
        return largest
