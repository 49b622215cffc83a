"""The trace: unbiased, with an error bar that is one."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch
from matrices import network_like, rotated, uniform
from torch import nn

import wellcond as wc
from wellcond.models import mlp


@pytest.fixture(scope="module")
def problem() -> wc.Problem:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, 10, generator=generator, dtype=torch.float64), torch.arange(64) % 4
    return wc.Problem(mlp([10, 12, 12, 4], init="he", seed=0).double(), nn.CrossEntropyLoss(), (x, y))


def check_error_bars(exact: float, results: list) -> None:
    """Standardised errors have mean 0 and spread 1. 100 runs: the mean is known to 0.1, the spread to 7 %.

    Stopping once the error bar is small picks runs whose bar came out small, so the spread may be up to 1.35.
    """
    standardised = [(r.value - exact) / r.error for r in results]
    spread = statistics.pstdev(standardised)
    assert abs(statistics.fmean(standardised)) < 4 * spread / math.sqrt(len(results))
    assert 0.7 < spread < 1.35


@pytest.mark.parametrize("kind", [wc.Hessian, wc.GGN, wc.Fisher, "plain"])
@pytest.mark.slow
def test_the_trace_is_unbiased_and_its_error_bar_honest(problem: wc.Problem, kind) -> None:
    if kind == "plain":
        matrix, tol = rotated(uniform(np.random.default_rng(0), 120) + 1.2, 0), 0.02
        exact = float(matrix.trace())
    else:
        matrix, tol = kind(problem), 0.05
        exact = float(matrix.dense().trace())
    check_error_bars(exact, [wc.trace(matrix, tol=tol, seed=seed) for seed in range(100)])


def test_a_few_large_eigenvalues_cost_no_probes() -> None:
    values = np.concatenate([[100.0, 50, 30, 20, 10], np.full(500, 1e-3)])
    found = wc.trace(rotated(values, 0), tol=1e-3)
    assert found.converged
    assert found.matvecs <= 24
    assert found.value == pytest.approx(values.sum(), rel=1e-2)


def test_layers_cost_fewer_products_than_probing_all_of_them_at_once(problem: wc.Problem) -> None:
    hessian = wc.Hessian(problem)
    dense = hessian.dense()
    off_diagonal = dense - torch.diag(dense.diagonal())
    hutchinson = 2 * float(off_diagonal.norm() ** 2) / (0.02 * float(dense.trace())) ** 2  # probes for 2 %
    assert wc.trace(hessian, tol=0.02).matvecs < hutchinson


def test_a_layer_alone_and_several_batches_work(problem: wc.Problem) -> None:
    x, y = problem.batches[0]
    batches = wc.Problem(problem.model, problem.loss, [(x[:24], y[:24]), (x[24:], y[24:])])
    exact = float(wc.Hessian(problem).dense().trace())
    found = wc.trace(wc.Hessian(batches), tol=0.02)
    assert abs(found.value - exact) < 5 * found.error
    layer = wc.GGN(problem).layer("fc1")
    found = wc.trace(layer, tol=0.02)
    assert abs(found.value - float(layer.dense().trace())) < 5 * found.error


def test_small_matrices_are_summed_exactly_and_a_budget_that_is_too_small_is_said() -> None:
    found = wc.trace(torch.diag(torch.arange(10.0)))
    assert (found.value, found.error) == (45.0, 0.0)
    rough = wc.trace(rotated(network_like(np.random.default_rng(0), 200), 0), tol=1e-9, max_matvecs=40)
    assert not rough.converged
    assert "not reached" in str(rough)
