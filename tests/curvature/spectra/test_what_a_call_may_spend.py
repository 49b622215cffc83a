"""Seconds, memory and Ctrl-C: what is known when a measurement has to end early, and that it does end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from matrices import rotated
from torch import Tensor, nn

import wellcond as wc
from wellcond.curvature.spectra.lanczos import Lanczos, noise
from wellcond.errors import Interrupted
from wellcond_papers.models import mlp

MATRIX = rotated(np.linspace(-1, 1, 400), 0)
TRUE = 1.0


class Slow:
    """A matrix whose products take a known time, and that the user may stop."""

    def __init__(self, seconds: float = 0.0, stop_after: int | None = None) -> None:
        self.shape, self.dtype, self.device = MATRIX.shape, MATRIX.dtype, MATRIX.device
        self.seconds, self.stop_after, self.products = seconds, stop_after, 0

    def __matmul__(self, v: Tensor) -> Tensor:
        if self.stop_after is not None and self.products >= self.stop_after:
            raise KeyboardInterrupt
        self.products += v.shape[1]
        time.sleep(self.seconds * v.shape[1])
        return MATRIX @ v


MEASURE: dict[str, Callable[..., Any]] = {
    "eigenvalues": lambda a, **kw: wc.eigenvalues(a, tol=1e-9, **kw),
    "without": lambda a, **kw: wc.eigenvalues(a, tol=1e-9, confidence=None, **kw),
    "trace": lambda a, **kw: wc.trace(a, tol=1e-9, **kw),
    "density": lambda a, **kw: wc.density(a, probes=20, iterations=20, **kw),
}


@pytest.mark.parametrize("name", MEASURE)
@pytest.mark.parametrize("products", [1, 3, 25])
def test_a_budget_is_not_overrun(name: str, products: int) -> None:
    each = 0.02
    matrix = Slow(each)
    began = time.perf_counter()
    result = MEASURE[name](matrix, budget=(products + 0.5) * each)
    assert time.perf_counter() - began < (products + 0.5) * each + 0.05  # arithmetic of its own
    assert max(1, products // 2 - 1) <= matrix.products <= products
    assert result.matvecs == matrix.products
    assert f"stopped after {result.matvecs} products" in result.status
    assert "budget" in result.status


@pytest.mark.parametrize("name", MEASURE)
def test_a_budget_that_is_large_changes_nothing_but_the_plan(name: str) -> None:
    loose = {"trace": 0.5, "density": None}
    options = {} if name == "density" else {"tol": loose.get(name, 1e-2)}
    call = {"eigenvalues": wc.eigenvalues, "without": wc.eigenvalues, "trace": wc.trace, "density": wc.density}[name]
    result = call(MATRIX + 2 * torch.eye(400).double(), budget=1e6, **options)
    assert "budget" not in result.status


@pytest.mark.parametrize("budget", [0, -1.0, float("nan")])
def test_a_budget_is_positive(budget: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        wc.eigenvalues(MATRIX, budget=budget)


@pytest.mark.parametrize("name", MEASURE)
def test_ctrl_c_keeps_what_is_known(name: str) -> None:
    with pytest.raises(Interrupted) as caught:
        MEASURE[name](Slow(stop_after=8))
    result = caught.value.result
    assert isinstance(caught.value, KeyboardInterrupt)
    assert f"interrupted after {result.matvecs} products" in result.status
    assert result.matvecs == 8
    if name == "eigenvalues":
        assert abs(float(result.values[-1]) - TRUE) <= float(result.errors[-1])
        assert not result.converged
    if name == "density":
        assert len(result.nodes) == 1  # with fewer iterations than requested
        assert float((result.grid[1] - result.grid[0]) * result.density.sum()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", MEASURE)
def test_ctrl_c_before_anything_is_known_is_a_plain_one(name: str) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        MEASURE[name](Slow(stop_after=0))
    assert not isinstance(caught.value, Interrupted)


def test_a_density_cut_short_is_that_of_fewer_iterations() -> None:
    estimate = wc.density(Slow(stop_after=None), probes=1, iterations=7, seed=3)
    with pytest.raises(Interrupted) as caught:
        wc.density(Slow(stop_after=7), probes=5, iterations=30, seed=3)
    assert torch.allclose(caught.value.result.nodes, estimate.nodes)
    assert torch.allclose(caught.value.result.weights, estimate.weights)


def problem() -> wc.Problem:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 10, generator=generator), torch.randint(0, 4, (32,), generator=generator)
    return wc.Problem(mlp([10, 16, 4], seed=0), nn.CrossEntropyLoss(), [(x[:16], y[:16]), (x[16:], y[16:])])


def stopping_after(count: int) -> Callable[[str, float], None]:
    calls = []

    def progress(what: str, share: float) -> None:
        calls.append(what)
        if len(calls) == count:
            raise KeyboardInterrupt

    return progress


def test_max_lr_keeps_what_is_known() -> None:
    whole = wc.max_lr(problem())
    with pytest.raises(Interrupted) as caught:
        wc.max_lr(problem(), progress=stopping_after(4))
    result = caught.value.result
    assert result.status == "interrupted after 4 products"
    assert result.low <= whole.value <= result.high
    assert not result.converged


def test_max_lr_keeps_the_batches_that_are_done() -> None:
    whole = wc.max_lr(problem(), each_batch=True)
    alone = wc.max_lr(problem())
    with pytest.raises(Interrupted) as caught:
        wc.max_lr(problem(), each_batch=True, progress=stopping_after(alone.matvecs + whole.batches[0].matvecs + 1))
    result = caught.value.result
    assert result.value == whole.value
    assert result.converged
    assert 1 <= len(result.batches) < len(whole.batches)
    assert result.batches[0] == whole.batches[0]
    assert any("no time for 1 limits" in note for note in result.notes)


def test_max_lr_within_a_budget_says_what_it_left_out() -> None:
    limit = wc.max_lr(problem(), each_batch=True, budget=1e-9)
    assert limit.matvecs == 1
    assert limit.batches == ()
    assert "budget of 1e-09 s" in limit.status
    assert any("no time for 2 limits" in note for note in limit.notes)


# memory


@pytest.mark.parametrize("most", [3, 4, 10, 25])
def test_a_process_that_drops_vectors_finds_the_same_ends(most: int) -> None:
    generator = torch.Generator().manual_seed(0)
    start = noise(400, 1, generator, MATRIX)
    few, all_kept = (Lanczos(MATRIX, start, generator, limit) for limit in (most, None))
    for step in range(1, 121):
        few.step()
        all_kept.step()
        assert few._count - few._dropped <= most
        assert few.is_whole == (step < most)
    ends, true = (np.linalg.eigvalsh(process.projected())[[0, -1]] for process in (few, all_kept))
    assert np.allclose(ends, true, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_errors_hold_when_vectors_are_dropped(dtype: torch.dtype) -> None:
    """Also after the copies have come: their T has converged values twice."""
    values = np.concatenate([[5.0, 4.8, 4.0], np.random.default_rng(0).uniform(-1, 1, 197)])
    matrix = rotated(values, 1).to(dtype)
    four = 4 * 200 * dtype.itemsize / 2**30
    for seed in range(20):
        for products in (6, 12, 60):
            top = wc.eigenvalues(matrix, tol=1e-12, seed=seed, memory=four, max_matvecs=products)
            assert abs(float(top.values[-1]) - 5) <= float(top.errors[-1])
            assert top.vectors.shape == (200, 0)
        top = wc.eigenvalues(matrix, tol=1e-3, seed=seed, memory=four)
        assert top.converged
        assert abs(float(top.values[-1]) - 5) <= 5e-3


def test_several_eigenvalues_stop_when_the_memory_is_full() -> None:
    top = wc.eigenvalues(MATRIX, k=3, tol=1e-9, memory=18 * 400 * 8 / 2**30)
    assert top.matvecs == 12  # and the three vectors that come next, and the three being worked on
    assert not top.converged
    assert top.vectors.shape == (400, 3)


def test_a_density_from_few_vectors_is_the_same() -> None:
    few = wc.density(MATRIX, probes=4, iterations=60, memory=4 * 400 * 8 / 2**30)
    whole = wc.density(MATRIX, probes=4, iterations=60)
    assert few.moment(1) == pytest.approx(whole.moment(1), abs=1e-10)
    assert few.moment(2) == pytest.approx(whole.moment(2), rel=1e-10)
    assert torch.allclose(few.density, whole.density, atol=0.02 * float(whole.density.max()))


class Watched:
    """A matrix that remembers how many columns it was multiplied with at a time."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.shape, self.dtype, self.device = matrix, matrix.shape, matrix.dtype, matrix.device
        self.columns: list[int] = []

    def __matmul__(self, v: Tensor) -> Tensor:
        self.columns.append(v.shape[1])
        return self.matrix @ v


@pytest.mark.parametrize("at_once", [1, 3, 14])
def test_a_trace_multiplies_no_more_probes_than_fit_and_its_error_holds(at_once: int) -> None:
    values = np.concatenate([[20.0, 15.0], np.random.default_rng(0).uniform(0, 1, 198)])
    matrix = Watched(rotated(values, 1))
    memory = (1 + 5 * at_once) * 200 * 8 / 2**30  # means, and five vectors of every column
    inside = []
    for seed in range(60):
        estimate = wc.trace(matrix, tol=0.1, seed=seed, memory=memory)
        assert estimate.converged
        inside.append(abs(estimate.value - values.sum()) <= 2 * estimate.error)
    assert max(matrix.columns) <= at_once
    assert np.mean(inside) >= 0.9


@pytest.mark.slow
def test_a_layerwise_trace_of_one_probe_at_a_time_is_right() -> None:
    x, y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)).double(), torch.arange(16) % 3
    hessian = wc.Hessian(wc.Problem(mlp([6, 12, 12, 3], seed=0).double(), nn.CrossEntropyLoss(), (x, y)))
    true = float(hessian.dense().trace())
    results = [wc.trace(hessian, tol=0.05, seed=seed, memory=1e-9) for seed in range(20)]
    assert all(each.converged for each in results)
    assert np.mean([abs(each.value - true) <= 2 * each.error for each in results]) >= 0.9


def test_the_numbers_of_a_trace_are_the_same_wherever_it_fits() -> None:
    matrix = rotated(np.linspace(0, 2, 200), 1)
    assert wc.trace(matrix, memory=0.1) == wc.trace(matrix) == wc.trace(matrix, memory=10)
