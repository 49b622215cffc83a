"""The generalized condition number κ_p and the numerical rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Values = Tensor | np.ndarray | Sequence[float]
COARSE = (np.float16, np.float32)


def condition_number(values: Values, p: float = 0.5) -> float:
    """κ_p = λ_max / λ_⌈p·d⌉ of a positive semi-definite matrix with eigenvalues `values`, counted from the largest.

    κ_1 is the usual condition number; smaller p leave out the smallest eigenvalues (huang2020).

    Args:
        values: Eigenvalues, (d,) in any order: a tensor, an array or a list.
        p: Share of the eigenvalues, above 0 and at most 1.

    Returns:
        κ_p; inf if that eigenvalue is zero to rounding, at most d·ε·λ_max (see `numerical_rank`).

    Raises:
        ValueError: An eigenvalue is negative, as a Hessian's can be: such a matrix has no κ_p.

    Example:
        >>> condition_number([4, 2, 1], p=1.0)
        4.0
        >>> condition_number(torch.tensor([4.0, 2.0, 1.0, 0.0]), p=0.5)
        2.0
        >>> condition_number(torch.tensor([1.0, 0.0]), p=1.0)
        inf
    """
    kappa, _ = condition_numbers_and_rank(values, [p])
    return kappa[p]


def numerical_rank(values: Values) -> int:
    """Number of eigenvalues of a positive semi-definite matrix above d·ε·λ_max, with ε the rounding of their dtype.

    Args:
        values: Eigenvalues, (d,) in any order: a tensor, an array or a list; Python numbers count as float64.

    Returns:
        The rank.

    Example:
        >>> numerical_rank(torch.tensor([1.0, 1e-3, 1e-12]))
        2
        >>> numerical_rank([1.0, 1e-3, 1e-12])
        3
    """
    return condition_numbers_and_rank(values, [])[1]


def condition_numbers_and_rank(values: Values, shares: Sequence[float]) -> tuple[dict[float, float], int]:
    """κ_p for each share p, and the rank, of one matrix."""
    vector = values.detach().cpu() if isinstance(values, Tensor) else _as_tensor(values)
    if vector.dim() != 1 or vector.numel() == 0:
        raise ValueError(f"eigenvalues must be a non-empty vector, not of shape {tuple(vector.shape)}.")
    if vector.is_complex():
        raise ValueError("eigenvalues are complex; those of a symmetric matrix are real: pass values.real.")
    if not bool(torch.isfinite(vector).all()):
        raise ValueError("eigenvalues hold NaN or inf.")
    return condition_numbers_and_ranks(vector.unsqueeze(0), shares)[0]


def condition_numbers_and_ranks(values: Tensor, shares: Sequence[float]) -> list[tuple[dict[float, float], int]]:
    """κ_p for each share p, and the rank, of several matrices of one size, whose eigenvalues are (matrices, d)."""
    count, d = values.shape
    rounding = torch.finfo(values.dtype if values.is_floating_point() else torch.float64).eps
    descending = values.double().sort(descending=True).values
    largest, smallest = descending[:, :1], descending[:, -1:]
    # rounding can leave eigenvalues slightly below zero; the square root of ε is far above that
    if bool((smallest < -(rounding**0.5) * largest.abs()).any()):
        raise ValueError(
            f"the smallest eigenvalue is {float(smallest.min()):.3g}: an indefinite matrix has no κ_p. "
            "For a Hessian report λ_max, or take the GGN or Fisher matrix."
        )
    places = {}
    for p in shares:
        if not 0 < p <= 1:
            raise ValueError(f"p is {p}; it is a share of the eigenvalues, above 0 and at most 1.")
        # ⌈p·d⌉, safe from p·d = 7.000000000000001
        places[p] = max(1, math.ceil(p * d - 1e-9))
    ranks = (descending > d * rounding * largest.clamp(min=0)).sum(1).tolist()
    ratios = (largest / descending[:, [place - 1 for place in places.values()]]).tolist()
    return [
        ({p: ratios[i][j] if places[p] <= ranks[i] else math.inf for j, p in enumerate(places)}, ranks[i])
        for i in range(count)
    ]


def _as_tensor(values: np.ndarray | Sequence[float]) -> Tensor:
    """The values in their own dtype if it is coarser than float64, and in float64 otherwise."""
    try:
        array = np.asarray(values)
        if array.dtype.kind == "c":
            return torch.from_numpy(array)
        return torch.from_numpy(array.astype(array.dtype.type if array.dtype.type in COARSE else np.float64))
    except (TypeError, ValueError) as error:
        raise ValueError(f"eigenvalues must be numbers, one after the other ({error}).") from None
