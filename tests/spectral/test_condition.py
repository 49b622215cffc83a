"""κ_p and the numerical rank, by hand."""

from __future__ import annotations

import math

import pytest
import torch

import wellcond as wc


@pytest.mark.parametrize(("p", "expected"), [(0.1, 1.0), (0.2, 10 / 9), (0.25, 10 / 8), (0.5, 10 / 6), (1.0, 10.0)])
def test_kappa_p_is_the_largest_over_the_one_at_the_share_rounded_up(p: float, expected: float) -> None:
    values = torch.arange(1.0, 11.0)[torch.randperm(10)]
    assert wc.condition_number(values, p) == pytest.approx(expected)


def test_a_share_that_is_a_whole_number_up_to_rounding_is_not_rounded_up() -> None:
    # 0.07 · 100 is 7.000000000000001 in floating point
    assert wc.condition_number(torch.arange(1.0, 101.0), 0.07) == pytest.approx(100 / 94)


def test_a_zero_eigenvalue_gives_infinity_never_a_number() -> None:
    values = torch.tensor([1.0, 0.5, 1e-18, 0.0], dtype=torch.float64)
    assert wc.condition_number(values, 1.0) == math.inf
    assert wc.condition_number(values, 0.5) == 2.0
    assert wc.numerical_rank(values) == 2


def test_the_zero_matrix_has_rank_zero_and_no_finite_condition() -> None:
    assert wc.condition_number(torch.zeros(3)) == math.inf
    assert wc.numerical_rank(torch.zeros(3)) == 0


def test_what_counts_as_zero_follows_the_dtype() -> None:
    values = torch.tensor([1.0, 1e-9], dtype=torch.float64)
    assert wc.condition_number(values, 1.0) == pytest.approx(1e9)
    assert wc.condition_number(values.float(), 1.0) == math.inf


def test_an_indefinite_matrix_has_no_condition_number() -> None:
    with pytest.raises(ValueError, match="indefinite"):
        wc.condition_number(torch.tensor([1.0, -0.5]))


@pytest.mark.parametrize("p", [0.0, -1.0, 1.5])
def test_shares_outside_0_to_1_are_refused(p: float) -> None:
    with pytest.raises(ValueError, match="share"):
        wc.condition_number(torch.ones(3), p)


@pytest.mark.parametrize("values", [torch.ones(2, 2), torch.tensor([]), torch.tensor([1.0, float("nan")])])
def test_values_that_are_no_spectrum_are_refused(values: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="eigenvalues"):
        wc.condition_number(values)
