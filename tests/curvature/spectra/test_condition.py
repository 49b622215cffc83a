"""κ_p and the numerical rank, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import wellcond as wc


@pytest.mark.parametrize(
    ("d", "p", "expected"),
    [
        (10, 0.1, 1.0), (10, 0.2, 10 / 9), (10, 0.25, 10 / 8), (10, 0.5, 10 / 6), (10, 1.0, 10.0),
        (100, 0.07, 100 / 94),  # 0.07 · 100 is 7.000000000000001 in floating point
    ],
)  # fmt: skip
def test_kappa_p_is_the_largest_over_the_one_at_the_share_rounded_up(d: int, p: float, expected: float) -> None:
    values = torch.arange(1.0, d + 1.0)[torch.randperm(d)]
    assert wc.condition_number(values, p) == pytest.approx(expected)


def test_a_zero_eigenvalue_gives_infinity_never_a_number() -> None:
    values = torch.tensor([1.0, 0.5, 1e-18, 0.0], dtype=torch.float64)
    assert (wc.condition_number(values, 1.0), wc.condition_number(values, 0.5)) == (math.inf, 2.0)
    assert wc.numerical_rank(values) == 2
    assert (wc.condition_number(torch.zeros(3)), wc.numerical_rank(torch.zeros(3))) == (math.inf, 0)
    small = torch.tensor([1.0, 1e-9], dtype=torch.float64)  # zero in float32 only
    assert wc.condition_number(small, 1.0) == pytest.approx(1e9)
    assert wc.condition_number(small.float(), 1.0) == math.inf


@pytest.mark.parametrize(
    "values",
    [
        [4, 2, 1],
        (4.0, 2, 1),
        range(1, 5),
        [4, 2, np.float32(1)],
        np.array([1, 4, 2], dtype=np.uint8),
        np.array([1, 2, 4], dtype=">f8"),
        np.array([4.0, 2.0, 1.0], dtype=np.longdouble)[::-1],
        torch.tensor([4, 2, 1]),
        torch.tensor([4.0, 2.0, 1.0]).half(),
        torch.tensor([4.0, 2.0, 1.0], dtype=torch.bfloat16),
        torch.tensor([4.0, 2.0, 1.0], requires_grad=True),
    ],
    ids=str,
)
def test_eigenvalues_come_as_any_sequence_of_numbers(values) -> None:
    assert wc.condition_number(values, 1.0) == 4.0
    assert wc.numerical_rank(values) == len(values)


def test_what_counts_as_zero_is_the_rounding_of_the_given_dtype() -> None:
    values = [1.0, 1e-5, 1e-9]
    assert wc.numerical_rank(values) == wc.numerical_rank(np.array(values)) == 3
    assert wc.numerical_rank(np.float32(values)) == wc.numerical_rank(torch.tensor(values)) == 2
    assert wc.numerical_rank(np.float16(values)) == wc.numerical_rank(torch.tensor(values).half()) == 1


@pytest.mark.parametrize(("largest", "dtype"), [(1e-44, torch.float32), (3e38, torch.float32), (6e4, torch.float16)])
def test_the_ends_of_a_dtypes_range_neither_overflow_nor_vanish(largest: float, dtype: torch.dtype) -> None:
    values = torch.full((100,), largest, dtype=dtype)
    values[0] /= 2
    assert wc.numerical_rank(values) == 100
    assert wc.condition_number(values, 1.0) == float(values[1].double() / values[0].double())


@pytest.mark.parametrize(
    ("values", "p", "message"),
    [
        (torch.tensor([1.0, -0.5]), 0.5, "indefinite"),
        (torch.ones(3), 0.0, "share"),
        (torch.ones(3), -1.0, "share"),
        (torch.ones(3), 1.5, "share"),
        (torch.ones(2, 2), 0.5, "eigenvalues"),
        (torch.tensor([]), 0.5, "eigenvalues"),
        (torch.tensor([1.0, math.nan]), 0.5, "eigenvalues"),
        ([1.0, 2j], 0.5, "complex"),
        (["a", "b"], 0.5, "must be numbers"),
        ([[1.0], [1.0, 2.0]], 0.5, "must be numbers"),
    ],
)
def test_what_has_no_condition_number_is_refused(values, p: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wc.condition_number(values, p)
