"""What every spectral tool takes: anything that multiplies as a symmetric matrix does."""

from __future__ import annotations

import contextlib
import math
from typing import Any, Protocol

import torch
from torch import Tensor

from wellcond.curvature.operator import LinearOperator
from wellcond.errors import NonFinite
from wellcond.network.calling import dtype_name


class Operator(Protocol):
    """What every spectral tool takes: a symmetric matrix that can be multiplied with (n, k)."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    def __matmul__(self, v: Tensor, /) -> Tensor: ...


def as_operator(operator: Operator) -> Operator:
    """The operator; a tensor is checked to be a symmetric matrix first."""
    return as_symmetric(operator) if isinstance(operator, Tensor) else operator


def in_a_row(operator: Operator) -> contextlib.AbstractContextManager[Any]:
    """For many products one after the other; see `LinearOperator.in_a_row`."""
    return operator.in_a_row() if isinstance(operator, LinearOperator) else contextlib.nullcontext()


def as_symmetric(given: Tensor) -> Tensor:
    """A user's matrix, checked; of integers or half precision in float64.

    Raises:
        ValueError: It is not a real symmetric matrix.
        NonFinite: It holds NaN or inf.
    """
    if given.dim() != 2 or given.shape[0] != given.shape[1] or not given.numel() or given.is_complex():
        shape = tuple(given.shape)
        raise ValueError(f"a real square matrix is needed, not {dtype_name(given.dtype)} of shape {shape}.")
    matrix = given.detach()
    matrix = matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.double()
    off = float((matrix - matrix.T).abs().max())
    if not math.isfinite(off):
        raise NonFinite("the matrix holds NaN or inf.")
    # as coarse as the numbers came
    eps = torch.finfo(given.dtype if given.is_floating_point() else torch.float64).eps
    if off > eps**0.75 * float(matrix.abs().max()):
        raise ValueError(
            f"the matrix is not symmetric: entries differ by up to {off:.3g} from those of its transpose. "
            "Take (A + A.T) / 2 if that is what you mean, or torch.linalg.eigvals(A)."
        )
    return matrix / 2 + matrix.T / 2
