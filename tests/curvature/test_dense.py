"""Every curvature operator against dense float64 references."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from references import assert_same, dense_fisher, dense_ggn, dense_hessian
from zoo import ARCHITECTURES, LOSSES, OTHER_LOSSES, Case

import wellcond as wc

EVERYTHING = ARCHITECTURES | LOSSES | OTHER_LOSSES
WITH_LIKELIHOOD = ARCHITECTURES | LOSSES


def cases(table: dict[str, Callable[[], Case]]) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(build(), id=name) for name, build in table.items()])


def matrix(operator: Any) -> torch.Tensor:
    """Products with the unit vectors: unlike `.dense()` they are not made symmetric afterwards."""
    return operator @ torch.eye(operator.shape[0], dtype=operator.dtype)


@cases(EVERYTHING)
def test_hessian_is_the_second_derivative_of_the_loss(case: Case) -> None:
    assert_same(matrix(wc.Hessian(case.problem())), dense_hessian(case.model, case.loss, case.batch, case.batchnorm))


@cases(EVERYTHING)
def test_ggn_is_the_curvature_of_the_loss_pulled_back_by_the_jacobian(case: Case) -> None:
    assert_same(matrix(wc.GGN(case.problem())), dense_ggn(case.model, case.loss, case.batch, case.batchnorm))


@cases(WITH_LIKELIHOOD)
def test_fisher_is_the_second_moment_under_the_models_labels(case: Case) -> None:
    expected = dense_fisher(case.model, case.terms, case.batch, "model", case.batchnorm)
    assert_same(matrix(wc.Fisher(case.problem())), expected)


@cases(WITH_LIKELIHOOD)
def test_fisher_of_the_data_is_the_second_moment_of_the_term_gradients(case: Case) -> None:
    expected = dense_fisher(case.model, case.terms, case.batch, "data", case.batchnorm)
    assert_same(matrix(wc.Fisher(case.problem(), "data")), expected)
