"""Suites that every object of some type must pass: a new object is added to a table, and no test is copied."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from references import assert_same
from torch import Tensor
from zoo import normal

from wellcond.curvature.operator import LinearOperator
from wellcond.errors import TooLarge


def assert_operator_conforms(operator: LinearOperator, expected: Tensor, tolerance: float = 1e-10) -> None:
    """All that a `LinearOperator` promises, against the dense matrix it stands for."""
    n = len(expected)
    assert operator.shape == (n, n)
    u, v, block = normal(n, seed=1), normal(n, seed=2), normal(n, 3, seed=3)

    # products: against the matrix, linear, symmetric, column by column, counted
    before = operator.matvecs
    assert_same(operator @ u, expected @ u, tolerance)
    assert_same(operator @ block, expected @ block, tolerance)
    assert operator.matvecs - before == 4
    assert_same(operator @ (2 * u - 3 * v), 2 * (operator @ u) - 3 * (operator @ v), 1e-11)
    assert math.isclose(float(u @ (operator @ v)), float(v @ (operator @ u)), rel_tol=1e-9, abs_tol=1e-12)
    assert_same(operator @ block, torch.stack([operator @ column for column in block.T], 1), 1e-12)

    # algebra
    assert_same((operator + operator * 0.5) @ u, 1.5 * (expected @ u), tolerance)
    assert_same((-2 * operator).dense(), -2 * expected, tolerance)
    with pytest.raises(TypeError):
        _ = operator + expected  # type: ignore[operator]

    # other forms
    before = operator.matvecs
    assert_same(operator.dense(), expected, tolerance)
    assert operator.matvecs - before == n
    foreign = operator.to_scipy()
    assert foreign.shape == (n, n)
    assert_same(torch.from_numpy(foreign @ block.numpy()), expected @ block, tolerance)
    assert_same(torch.from_numpy(foreign.T @ u.numpy()), expected @ u, tolerance)

    # what is refused
    with pytest.raises(ValueError, match=rf"\({n},\) or \({n}, k\)"):
        _ = operator @ torch.ones(n + 1)
    with pytest.raises(TooLarge, match=f"{n:,} rows, above the limit of {n - 1:,}"):
        operator.dense(limit=n - 1)


def assert_progress_rises(calls: list[tuple[Any, float]]) -> None:
    """Called as (words, share), with shares between 0 and 1 that never fall."""
    assert calls
    assert all(isinstance(what, str) and what for what, _ in calls)
    shares = [share for _, share in calls]
    assert all(0 <= share <= 1 for share in shares)
    assert shares == sorted(shares)
