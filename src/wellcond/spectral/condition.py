"""The generalised condition number κ_p and the numerical rank."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def condition_number(values: Tensor, p: float = 0.5) -> float:
    """κ_p = λ_max / λ_⌈p·d⌉ of a positive semi-definite matrix with eigenvalues `values`, counted from the largest.

    κ_1 is the usual condition number; smaller p leave out the smallest eigenvalues (huang2020).

    Args:
        values: Eigenvalues, (d,) in any order.
        p: A share of the eigenvalues, above 0 and at most 1.

    Returns:
        κ_p; inf if that eigenvalue is zero to rounding, at most d·ε·λ_max (see `numerical_rank`).

    Raises:
        ValueError: An eigenvalue is negative, as a Hessian's can be: such a matrix has no κ_p.

    Example:
        >>> condition_number(torch.tensor([4.0, 2.0, 1.0, 0.0]), p=0.5)
        2.0
        >>> condition_number(torch.tensor([1.0, 0.0]), p=1.0)
        inf
    """
    if not 0 < p <= 1:
        raise ValueError(f"p is {p}; it is a share of the eigenvalues, above 0 and at most 1.")
    descending = _checked(values)
    # ⌈p·d⌉, safe from p·d = 7.000000000000001
    index = max(1, math.ceil(p * len(descending) - 1e-9))
    largest, chosen = float(descending[0]), float(descending[index - 1])
    return largest / chosen if chosen > _zero_level(descending) else math.inf


def numerical_rank(values: Tensor) -> int:
    """How many eigenvalues of a positive semi-definite matrix are above d·ε·λ_max, ε of their dtype's rounding.

    Args:
        values: Eigenvalues, (d,) in any order.

    Returns:
        The rank.

    Example:
        >>> numerical_rank(torch.tensor([1.0, 1e-3, 1e-12]))
        2
    """
    descending = _checked(values)
    return int((descending > _zero_level(descending)).sum())


def _checked(values: Tensor) -> Tensor:
    values = torch.as_tensor(values)
    if values.dim() != 1 or values.numel() == 0:
        raise ValueError(f"eigenvalues must be a non-empty vector, not of shape {tuple(values.shape)}.")
    if not bool(torch.isfinite(values).all()):
        raise ValueError("eigenvalues hold NaN or inf.")
    descending = values.sort(descending=True).values
    # rounding leaves eigenvalues a little below zero; the square root of ε is far above that
    if float(descending[-1]) < -(torch.finfo(values.dtype).eps ** 0.5) * float(descending[0].abs()):
        raise ValueError(
            f"the smallest eigenvalue is {float(descending[-1]):.3g}: an indefinite matrix has no κ_p. "
            "For a Hessian report λ_max, or take the GGN or Fisher matrix."
        )
    return descending


def _zero_level(descending: Tensor) -> float:
    return len(descending) * torch.finfo(descending.dtype).eps * max(float(descending[0]), 0.0)
