"""The dual side: A with F = AᵀA, and its Gram matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_zoo import LAYERS
from loss_zoo import LOSSES, OTHER_LOSSES
from references import assert_same, dense_ggn, dense_hessian
from zoo import ARCHITECTURES, Case, classifier, integers, mlp, normal, split

import wellcond as wc
from wellcond.curvature import gram
from wellcond.curvature.gram import Factor
from wellcond.errors import InvalidProblem, TooLarge

EVERYTHING = ARCHITECTURES | LOSSES | LAYERS
KINDS: dict[str, Any] = {
    "fisher": wc.Fisher,
    "fisher_data": lambda problem: wc.Fisher(problem, "data"),
    "fisher_sample": lambda problem: wc.Fisher(problem, "sample", samples=2),
}


def check_sides(operator: Any) -> None:
    factor = Factor(operator)
    (matrix, unit), (gram, unit_of_gram) = factor.matrix(), factor.gram()
    a = unit * matrix
    assert a.shape == (factor.row_count, operator.shape[0])
    v = normal(operator.shape[0], 16, seed=1)
    assert_same(a.T @ (a @ v), operator @ v)
    assert_same(unit_of_gram * gram, a @ a.T)


@pytest.mark.parametrize("build", EVERYTHING.values(), ids=EVERYTHING)
def test_factor_squares_to_the_operator_on_both_sides(build: Callable[[], Case]) -> None:
    check_sides(wc.GGN(build().problem()))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("build", (ARCHITECTURES | LOSSES).values(), ids=ARCHITECTURES | LOSSES)
def test_the_rows_of_a_fisher_are_those_of_its_labels(build: Callable[[], Case], kind: Any) -> None:
    check_sides(kind(build().problem()))


@pytest.mark.parametrize("build", EVERYTHING.values(), ids=EVERYTHING)
def test_spectrum_is_that_of_the_dense_matrix_on_either_side(build: Callable[[], Case]) -> None:
    case = build()
    expected = torch.linalg.eigvalsh(dense_ggn(case.model, case.loss, case.batch, case.batchnorm))
    operator = wc.GGN(case.problem())
    exact = wc.spectrum(operator)
    assert exact.side == ("dense" if operator.shape[0] <= Factor(operator).row_count else "gram")
    assert_same(exact.values, expected)


def test_few_examples_take_the_gram_side_and_many_the_dense_side() -> None:
    few, many = (classifier(mlp, normal(n, 4), n) for n in (2, 40))
    assert wc.spectrum(wc.Fisher(few.problem())).side == "gram"
    assert wc.spectrum(wc.Fisher(many.problem())).side == "dense"
    for case in (few, many):
        assert_same(
            wc.spectrum(wc.Fisher(case.problem())).values,
            torch.linalg.eigvalsh(dense_ggn(case.model, case.loss, case.batch)),
        )


@pytest.mark.parametrize("name", ["mlp_tanh", "conv2d_grouped", "transposed1d", "embedding_padding", "tokens"])
def test_layers_with_a_rule_need_no_backward_pass_a_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a row was differentiated by itself")

    monkeypatch.setattr(gram, "_pulled_back", refuse)
    operator = wc.GGN((ARCHITECTURES | LAYERS)[name]().problem())
    check_sides(operator)


@pytest.mark.parametrize("params", [["0"], ["2.weight"], ["0.bias", "2.weight"]])
def test_factor_of_some_parameters_is_its_columns(params: list[str]) -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    operator = wc.GGN(case.problem(), layers=params)
    check_sides(operator)


@pytest.mark.slow
def test_sequences_of_different_lengths_have_different_numbers_of_rows() -> None:
    case = LOSSES["tokens"]()
    batches = [(integers(5, 2, t, seed=t), integers(3, 2, t, seed=t)) for t in (2, 4)]
    operator = wc.GGN(case.problem(batches=batches))
    factor = Factor(operator)
    assert factor.row_count == 2 * 3 * (2 + 4)
    check_sides(operator)


@pytest.mark.parametrize("name", ["mlp_relu", "lstm", "cnn_running"])
def test_ragged_batches_give_the_spectrum_of_the_joined_data(name: str) -> None:
    case = ARCHITECTURES[name]()
    whole = wc.spectrum(wc.GGN(case.problem()))
    sizes = [3, len(case.batch[1]) - 3]
    assert_same(wc.spectrum(wc.GGN(case.problem(batches=split(case.batch, sizes)))).values, whole.values)


def test_a_loss_without_likelihood_takes_the_dense_side() -> None:
    case = OTHER_LOSSES["log_cosh"]()
    exact = wc.spectrum(wc.GGN(case.problem()))
    assert exact.side == "dense"
    assert_same(exact.values, torch.linalg.eigvalsh(dense_ggn(case.model, case.loss, case.batch)))
    with pytest.raises(InvalidProblem, match="not recognized"):
        Factor(wc.GGN(case.problem()))


def test_spectrum_of_a_hessian_keeps_negative_eigenvalues() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    expected = torch.linalg.eigvalsh(dense_hessian(case.model, case.loss, case.batch))
    assert float(expected[0]) < 0
    assert_same(wc.spectrum(wc.Hessian(case.problem())).values, expected)


def test_spectrum_refuses_what_is_larger_than_the_limit() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    for operator in (wc.GGN(case.problem()), wc.Hessian(case.problem())):
        with pytest.raises(TooLarge, match="limit"):
            wc.spectrum(operator, limit=10)
