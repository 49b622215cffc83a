"""What every spectral function takes: anything that multiplies like a symmetric matrix."""

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
    """Anything that multiplies a tensor (n, k) like a symmetric matrix."""

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
    """Context for many products in a row; see `LinearOperator.in_a_row`."""
    return operator.in_a_row() if isinstance(operator, LinearOperator) else contextlib.nullcontext()


def as_symmetric(tensor: Tensor) -> Tensor:
    """A user's matrix, checked to be symmetric; integers and half precision become float64.

    Raises:
        ValueError: It is not a real symmetric matrix.
        NonFinite: It holds NaN or inf.
    """
    if tensor.dim() != 2 or tensor.shape[0] != tensor.shape[1] or not tensor.numel() or tensor.is_complex():
        shape = tuple(tensor.shape)
        raise ValueError(f"a real square matrix is needed, not {dtype_name(tensor.dtype)} of shape {shape}.")
    matrix = tensor.detach()
    matrix = matrix if matrix.dtype in (torch.float32, torch.float64) else matrix.double()
    off = float((matrix - matrix.T).abs().max())
    if not math.isfinite(off):
        raise NonFinite("the matrix holds NaN or inf.")
    # the rounding of the numbers as they were passed
    eps = torch.finfo(tensor.dtype if tensor.is_floating_point() else torch.float64).eps
    if off > eps**0.75 * float(matrix.abs().max()):
        raise ValueError(
            f"the matrix is not symmetric: entries differ by up to {off:.3g} from those of its transpose. "
            "Take (A + A.T) / 2 if that is what you mean, or torch.linalg.eigvals(A)."
        )
    return matrix / 2 + matrix.T / 2
