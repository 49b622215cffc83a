"""Exact spectra, from whichever side of the matrix is smaller."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from wellcond.curvature.ggn import OutputCurvature
from wellcond.curvature.gram import Factor
from wellcond.curvature.operator import DENSE_LIMIT
from wellcond.curvature.read_layer import power_of_two
from wellcond.curvature.spectra.condition import condition_number, numerical_rank
from wellcond.curvature.spectra.operators import Operator, as_symmetric
from wellcond.errors import InvalidProblem, TooLarge
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.results import Result, Row, quantities


class DenseOperator(Operator, Protocol):
    """An operator that has its matrix as a tensor."""

    def dense(self, limit: int = ...) -> Tensor: ...


@runtime_checkable
class AsFactor(Protocol):
    """A with F = AᵀA, of which AᵀA or AAᵀ is decomposed. Each comes in a unit, so that squares stay within range."""

    @property
    def row_count(self) -> int: ...
    def matrix(self) -> tuple[Tensor, float]: ...
    def gram(self) -> tuple[Tensor, float]: ...


@dataclass(frozen=True)
class Spectrum(Result):
    """All eigenvalues, ascending.

    Attributes:
        values: Eigenvalues, ascending, (n,), in the dtype of the matrix, or in float64 if they leave its range.
        side: Matrix they were computed from, `"dense"` (P × P) or `"gram"` (N·R × N·R).
        rounding: Dtype whose rounding they have; None for their own.
    """

    values: Tensor
    side: Literal["dense", "gram"]
    rounding: torch.dtype | None = None

    @property
    def lambda_max(self) -> float:
        return float(self.values[-1])

    @property
    def rank(self) -> int:
        """Numerical rank, for positive semi-definite matrices."""
        return numerical_rank(self._relative)

    def condition_number(self, p: float = 0.5) -> float:
        """κ_p, for positive semi-definite matrices."""
        return condition_number(self._relative, p)

    @property
    def _relative(self) -> Tensor:
        """The eigenvalues in the dtype whose rounding they have, if necessary relative to the largest."""
        if self.rounding in (None, self.values.dtype):
            return self.values
        return (self.values / self.values.abs().max().clamp(min=torch.finfo(self.values.dtype).tiny)).to(self.rounding)

    def rows(self, step: int | None = None) -> list[Row]:
        named = {
            quantities.LAMBDA_MIN: float(self.values[0]),
            quantities.LAMBDA_MAX: self.lambda_max,
            quantities.TRACE: float(self.values.double().sum()),
            quantities.DIMENSION: float(len(self.values)),
        }
        return [Row(step, "", quantity, value, "") for quantity, value in named.items()]

    def __str__(self) -> str:
        return f"{len(self.values)} eigenvalues from {self.values[0]:.4g} to {self.lambda_max:.4g} ({self.side} side)"


@own_arithmetic()
def spectrum(operator: DenseOperator | Tensor, *, limit: int = DENSE_LIMIT) -> Spectrum:
    """Every eigenvalue of a curvature matrix, exactly.

    GGN and Fisher matrices are F = AᵀA with a row of A for each example and label; their eigenvalues follow from AᵀA
    (P × P) or from the Gram matrix A Aᵀ (N·R × N·R, filled up with zeros), whichever is smaller. So do local
    Gauss-Newton matrices, with a row for each entry of the block's output. Hessians take the dense side.

    Args:
        operator: Any operator of this library, or a symmetric tensor.
        limit: Largest side that is decomposed.

    Returns:
        All eigenvalues, ascending, and which side they come from.

    Raises:
        TooLarge: Both sides are above `limit`, or the smaller one takes more memory than that allows.
        NonFinite: An entry is NaN or inf.
        ValueError: A tensor is not a symmetric matrix.

    Example:
        >>> spectrum(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).values.round(decimals=4).tolist()
        [1.0, 3.0]
    """
    if isinstance(operator, Tensor):
        if len(operator) > limit:
            raise TooLarge(
                f"the matrix has {len(operator):,} rows, above the limit of {limit:,}. "
                "Use wc.eigenvalues(matrix) for its ends, or raise spectrum(limit=...)."
            )
        exact = _of_matrix(as_symmetric(operator))
        return replace(exact, rounding=operator.dtype) if operator.is_floating_point() else exact
    size = operator.shape[0]
    try:
        factor = _factor(operator, limit)
    except TooLarge:
        if size > limit:
            raise
        factor = None
    if factor is None:
        return _of_products(operator, limit)
    return _of_factor(factor, size)


def block_spectra(
    operator: OutputCurvature, blocks: Mapping[str, Sequence[str]], *, limit: int = DENSE_LIMIT
) -> dict[str, Spectrum]:
    """The spectra of diagonal blocks, all from one factor A.

    Args:
        operator: The whole matrix.
        blocks: The names of each block's parameters.
        limit: Largest side that is decomposed.

    Raises:
        TooLarge: Both sides of a block are above `limit`.
    """
    sizes = {key: sum(operator.params[name].numel() for name in names) for key, names in blocks.items()}
    try:
        factor = Factor(operator, limit, max(sizes.values()))
    except TooLarge:  # one at a time may fit
        return {key: spectrum(operator.layer(*names), limit=limit) for key, names in blocks.items()}
    return {key: _of_factor(factor.of(names), sizes[key]) for key, names in blocks.items()}


def _of_factor(factor: AsFactor, size: int) -> Spectrum:
    if size <= factor.row_count:
        a, unit = factor.matrix()
        return _eigenvalues(a.T @ a, unit**2)
    return _padded(_eigenvalues(*factor.gram()), size)


def _of_products(operator: DenseOperator, limit: int) -> Spectrum:
    matrix = operator.dense(limit)
    info = torch.finfo(matrix.dtype)
    if float(matrix.abs().max()) >= info.tiny / info.eps:
        return _of_matrix(matrix)
    # the products of a vanished network underflow: repeat them with longer vectors
    length = 2.0 ** (int(math.log2(info.max)) * 3 // 4)
    matrix = operator @ (length * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device))
    return _of_matrix((matrix + matrix.T) / 2, length)


def _of_matrix(matrix: Tensor, over: float = 1.0) -> Spectrum:
    unit = power_of_two([matrix], "the matrix")
    return _eigenvalues(matrix / unit, unit / over)


def _eigenvalues(matrix: Tensor, unit: float) -> Spectrum:
    """The spectrum of unit · matrix, with matrix entries of order one."""
    info = torch.finfo(matrix.dtype)
    values = torch.linalg.eigvalsh(matrix).double() * unit
    largest = float(values.abs().max())
    fits = largest == 0 or info.tiny / info.eps <= largest <= info.max
    return Spectrum(values.to(matrix.dtype) if fits else values, "dense", matrix.dtype)


def _padded(gram: Spectrum, size: int) -> Spectrum:
    """The spectrum of the matrix itself, which is that of its Gram matrix and zeros."""
    zeros = gram.values.new_zeros(size - len(gram.values))
    return Spectrum(torch.cat([zeros, gram.values]).sort().values, "gram", gram.rounding)


def _factor(operator: DenseOperator, limit: int) -> AsFactor | None:
    """The operator's factor; None if it has only the dense side."""
    if isinstance(operator, OutputCurvature):
        try:
            return Factor(operator, limit)
        except InvalidProblem:
            if operator.problem.likelihood is not None:
                raise
            return None
    if not isinstance(operator, AsFactor):
        return None
    size = operator.shape[0]
    if min(size, operator.row_count) > limit:
        raise TooLarge(
            f"{operator!r} has {size:,} columns and its factor {operator.row_count:,} rows (entries of the block's "
            f"output); both are above the limit of {limit:,}. Take fewer examples, .layer(name), or raise "
            "spectrum(limit=...)."
        )
    return operator
