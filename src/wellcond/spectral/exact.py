"""Exact spectra, from whichever side of the matrix is smaller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from wellcond.curvature.ggn import OutputCurvature
from wellcond.curvature.gram import Factor
from wellcond.curvature.operator import DENSE_LIMIT
from wellcond.errors import InvalidProblem, TooLarge
from wellcond.network.arithmetic import own_arithmetic
from wellcond.results import Result, Row, quantities
from wellcond.spectral.condition import condition_number, numerical_rank
from wellcond.spectral.lanczos import Operator


class DenseOperator(Operator, Protocol):
    """An operator that can be written out."""

    def dense(self, limit: int = ...) -> Tensor: ...


@runtime_checkable
class AsFactor(Protocol):
    """A with F = AᵀA: what is decomposed is AᵀA or AAᵀ."""

    @property
    def row_count(self) -> int: ...
    def matrix(self) -> Tensor: ...
    def gram(self) -> Tensor: ...


@dataclass(frozen=True)
class Spectrum(Result):
    """All eigenvalues, ascending.

    Attributes:
        values: (n,), ascending.
        side: The matrix they were computed from, `"dense"` (P × P) or `"gram"` (N·R × N·R).
    """

    values: Tensor
    side: Literal["dense", "gram"]

    @property
    def lambda_max(self) -> float:
        return float(self.values[-1])

    @property
    def rank(self) -> int:
        """Numerical rank, for positive semi-definite matrices."""
        return numerical_rank(self.values)

    def condition_number(self, p: float = 0.5) -> float:
        """κ_p, for positive semi-definite matrices."""
        return condition_number(self.values, p)

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
        TooLarge: Both sides are above `limit`.

    Example:
        >>> spectrum(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).values.round(decimals=4).tolist()
        [1.0, 3.0]
    """
    if isinstance(operator, Tensor):
        return Spectrum(torch.linalg.eigvalsh(operator), "dense")
    factor = _factor(operator)
    if factor is None:
        return Spectrum(torch.linalg.eigvalsh(operator.dense(limit)), "dense")
    size = operator.shape[0]
    if min(size, factor.row_count) > limit:
        raise TooLarge(
            f"{type(operator).__name__} has {size:,} columns and its factor {factor.row_count:,} rows of examples and "
            f"outputs; both are above the limit of {limit:,}. Take fewer examples, .layer(name), or raise "
            "spectrum(limit=...)."
        )
    if size <= factor.row_count:
        return _of_factor(factor.matrix())
    return _padded(torch.linalg.eigvalsh(factor.gram()), size)


def block_spectra(operator: OutputCurvature) -> tuple[Spectrum, dict[str, Spectrum]]:
    """The whole spectrum, and that of every parameter's own diagonal block, from one factor A.

    A is formed, rows × P: use it for matrices whose smaller side is decomposed anyway.
    """
    a = Factor(operator).matrix()
    blocks = torch.split(a, [p.numel() for p in operator.params.values()], dim=1)
    return _of_factor(a), {name: _of_factor(block) for name, block in zip(operator.names, blocks, strict=True)}


def _of_factor(a: Tensor) -> Spectrum:
    rows, size = a.shape
    if size <= rows:
        return Spectrum(torch.linalg.eigvalsh(a.T @ a), "dense")
    return _padded(torch.linalg.eigvalsh(a @ a.T), size)


def _padded(values: Tensor, size: int) -> Spectrum:
    """Of the Gram matrix's eigenvalues, those of the matrix itself: the same ones and zeros."""
    return Spectrum(torch.cat([values.new_zeros(size - len(values)), values]).sort().values, "gram")


def _factor(operator: DenseOperator) -> AsFactor | None:
    if not isinstance(operator, OutputCurvature):
        return operator if isinstance(operator, AsFactor) else None
    try:
        return Factor(operator)
    except InvalidProblem:
        if operator.problem.likelihood is not None:
            raise
        return None
