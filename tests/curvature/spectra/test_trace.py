"""The trace: unbiased, with an error bar that is one."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
import torch
from matrices import network_like, rotated, uniform
from torch import nn

import wellcond as wc
from wellcond_papers.models import mlp


@pytest.fixture(scope="module")
def problem() -> wc.Problem:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 10, generator=generator, dtype=torch.float64), torch.arange(64) % 4
    return wc.Problem(mlp([10, 12, 12, 4], init="he", seed=0).double(), nn.CrossEntropyLoss(), (x, y))


def check_error_bars(exact: float, results: list, tol: float) -> None:
    """The truth lies within 1, 2 and 3 errors as often as it should, and a converged trace is as good as was asked.

    How often is known to a binomial spread, of which 2.33 leave one false alarm in a hundred; the root mean square of
    100 errors to 7 %. An exact trace is right to rounding.
    """
    count = len(results)
    misses = [abs(r.value - exact) for r in results]
    for times, share in ((1, 0.68), (2, 0.95), (3, 0.997)):
        within = sum(m <= times * r.error + 1e-9 * abs(exact) for m, r in zip(misses, results, strict=True)) / count
        assert within >= share - 2.33 * math.sqrt(share * (1 - share) / count) - 0.005
    assert all(r.converged for r in results)
    assert math.sqrt(statistics.fmean(m**2 for m in misses)) <= 1.1 * tol * abs(exact)


def with_dense_blocks(matrix: Any) -> float:
    """Let its products come from dense blocks, so that many seeds take little time; the exact trace."""
    blocks = {name: matrix.layer(name).dense() for name in dict.fromkeys(n.rpartition(".")[0] for n in matrix.names)}
    matrix.block_products = lambda jobs: [
        blocks[matrix.names[block[0]].rpartition(".")[0]] @ columns for block, columns in jobs
    ]
    return float(sum(block.trace() for block in blocks.values()))


@pytest.mark.parametrize("kind", [wc.Hessian, wc.GGN, "plain"])
@pytest.mark.slow
def test_the_trace_is_unbiased_and_its_error_bar_honest(problem: wc.Problem, kind) -> None:
    if kind == "plain":
        matrix, tol = rotated(uniform(np.random.default_rng(0), 120) + 1.2, 0), 0.02
        exact = float(matrix.trace())
    else:
        matrix, tol = kind(problem), 0.05
        exact = with_dense_blocks(matrix)
    check_error_bars(exact, [wc.trace(matrix, tol=tol, seed=seed) for seed in range(100)], tol)


TINY = {
    "small": lambda: nn.Sequential(nn.Linear(8, 2), nn.Tanh(), nn.Linear(2, 4)),
    "one layer": lambda: nn.Sequential(nn.Linear(8, 4)),
    "layers of a few parameters": lambda: nn.Sequential(
        nn.Linear(8, 1), nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 4)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("tol", [0.1, 0.05])
@pytest.mark.parametrize("model", TINY.values(), ids=TINY)
def test_the_error_bar_of_tiny_layers_holds(model, tol: float) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = model().double()
        x, y = torch.randn(64, 8, dtype=torch.float64) + 1, torch.arange(64) % 4
    matrix = wc.GGN(wc.Problem(network, nn.CrossEntropyLoss(), (x, y)))
    exact = with_dense_blocks(matrix)
    check_error_bars(exact, [wc.trace(matrix, tol=tol, seed=seed) for seed in range(200)], tol)


def test_one_direction_costs_few_products_however_many_parameters_it_has() -> None:
    direction = torch.randn(400, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    estimate = wc.trace(direction @ direction.T, tol=0.01)
    assert estimate.matvecs <= 24
    assert estimate.value == pytest.approx(float(direction.square().sum()))


@pytest.mark.slow
def test_two_coupled_parameters_among_many_idle_ones_are_noticed() -> None:
    matrix = torch.zeros(60, 60, dtype=torch.float64)
    matrix[:2, :2] = 1.0
    results = [wc.trace(matrix, tol=0.1, seed=seed) for seed in range(400)]
    # eight probes see the same sign of the coupling in one of 128 cases
    assert sum(abs(r.value - 2) > 3 * r.error + 1e-9 for r in results) <= 4


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_the_scale_of_the_matrix_does_not_matter(scale: float) -> None:
    matrix = rotated(uniform(np.random.default_rng(0), 120) + 1.2, 0)
    plain, scaled = wc.trace(matrix, tol=0.02), wc.trace(matrix * scale, tol=0.02)
    assert scaled.matvecs == plain.matvecs
    assert scaled.converged
    assert scaled.value == pytest.approx(plain.value * scale, rel=1e-9)
    assert scaled.error == pytest.approx(plain.error * scale, rel=1e-6)


@pytest.mark.parametrize("most", [1, 2, 3, 5, 9, 17, 30])
def test_no_more_products_are_taken_than_were_allowed(problem: wc.Problem, most: int) -> None:
    for matrix in (wc.Hessian(problem), rotated(uniform(np.random.default_rng(0), 120), 0)):
        estimate = wc.trace(matrix, tol=1e-9, max_matvecs=most)
        assert estimate.matvecs <= most
        assert not estimate.converged
        assert estimate.error > 0
        assert estimate == wc.trace(matrix, tol=1e-9, max_matvecs=most)
    with pytest.raises(ValueError, match="at least one product"):
        wc.trace(torch.eye(3), max_matvecs=0)


def test_a_trace_that_is_zero_is_not_reached_by_probes() -> None:
    matrix = torch.randn(300, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64).triu(1)
    estimate = wc.trace(matrix + matrix.T, max_matvecs=200)
    assert not estimate.converged
    assert estimate.matvecs == 200
    assert abs(estimate.value) < 4 * estimate.error


def test_a_matrix_that_is_not_finite_is_refused() -> None:
    with pytest.raises(wc.errors.NonFinite, match="NaN or inf"):
        wc.trace(torch.full((40, 40), math.nan))


def test_a_few_large_eigenvalues_cost_no_probes() -> None:
    values = np.concatenate([[100.0, 50, 30, 20, 10], np.full(500, 1e-3)])
    estimate = wc.trace(rotated(values, 0), tol=1e-3)
    assert estimate.converged
    assert estimate.matvecs <= 24
    assert estimate.value == pytest.approx(values.sum(), rel=1e-2)


@pytest.mark.slow
def test_layers_cost_fewer_products_than_probing_all_of_them_at_once(problem: wc.Problem) -> None:
    hessian = wc.Hessian(problem)
    dense = hessian.dense()
    off_diagonal = dense - torch.diag(dense.diagonal())
    hutchinson = 2 * float(off_diagonal.norm() ** 2) / (0.02 * float(dense.trace())) ** 2  # probes for 2 %
    assert wc.trace(hessian, tol=0.02).matvecs < hutchinson


@pytest.mark.slow
def test_a_layer_alone_and_several_batches_work(problem: wc.Problem) -> None:
    x, y = problem.batches[0]
    batches = wc.Problem(problem.model, problem.loss, [(x[:24], y[:24]), (x[24:], y[24:])])
    exact = float(wc.Hessian(problem).dense().trace())
    estimate = wc.trace(wc.Hessian(batches), tol=0.02)
    assert abs(estimate.value - exact) < 5 * estimate.error
    layer = wc.GGN(problem).layer("fc1")
    estimate = wc.trace(layer, tol=0.02)
    assert abs(estimate.value - float(layer.dense().trace())) < 5 * estimate.error


def test_small_matrices_are_summed_exactly_and_a_small_budget_is_reported() -> None:
    estimate = wc.trace(torch.diag(torch.arange(10.0)))
    assert estimate.value == 45.0
    assert 0 < estimate.error < 1e-4  # rounding of float32
    rough = wc.trace(rotated(network_like(np.random.default_rng(0), 200), 0), tol=1e-9, max_matvecs=40)
    assert not rough.converged
    assert "not reached" in str(rough)
