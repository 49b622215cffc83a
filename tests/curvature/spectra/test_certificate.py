"""Stated errors as rates: how often they are exceeded, for several eigenvalues, converged or not, at every scale."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matrices import rotated

import wellcond as wc
from wellcond.curvature.spectra.certificate import Certificate
from wellcond.curvature.spectra.lanczos import Lanczos
from wellcond.errors import NonFinite

SIZE = 80


def above(values: list[float], seed: int = 1) -> np.ndarray:
    """Some eigenvalues above a bulk."""
    return np.concatenate([values, np.random.default_rng(seed).uniform(0, 1, SIZE - len(values))])


def most_failures(runs: int, rate: float) -> int:
    """Number of failures that is still likely (99 %) if each run fails with this probability."""
    tail, count = 1.0, -1
    while tail > 0.01:
        count += 1
        tail -= math.comb(runs, count) * rate**count * (1 - rate) ** (runs - count)
    return count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "k", "tol"),
    [
        ([5, 5, 5, 4.9, 4.9], 3, 0.01),
        ([5, 5, 5, 4, 4], 3, 0.1),
        ([2, 2, 1.9], 2, 0.02),
        ([10, 10, 9, 9, 8, 8, 7, 7, 6, 6], 8, 0.1),
    ],
    ids=["triple", "triple_and_double", "pair", "pairs"],
)
def test_converged_keeps_its_promise_for_several_eigenvalues(values: list[float], k: int, tol: float) -> None:
    """A copy that is missed moves all the others up by one place, each of them with a residual of zero."""
    spectrum = above(values)
    matrix, true = rotated(spectrum, 0), np.sort(spectrum)[-k:]
    runs = [wc.eigenvalues(matrix, k=k, tol=tol, seed=seed) for seed in range(60)]
    assert all(run.converged for run in runs)
    broken = sum(bool((np.abs(run.values.numpy() - true) > tol * true).any()) for run in runs)
    assert broken <= most_failures(60, 0.01)


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "values",
    [np.logspace(0, -8, SIZE), 1 / np.arange(1.0, SIZE + 1), np.linspace(-1, 1, SIZE), above([50, 30, 20, 15, 12])],
    ids=["log", "power", "linear", "network_like"],
)
def test_errors_hold_before_convergence(values: np.ndarray, k: int) -> None:
    matrix, true = rotated(values, 3), np.sort(values)
    for which, expected in (("largest", true[-k:]), ("both", np.concatenate([true[:k], true[-k:]]))):
        exceeded = runs = 0
        for products in (2 * k, 4 * k, 6 * k):
            for seed in range(7):
                top = wc.eigenvalues(matrix, k=k, which=which, tol=1e-9, seed=seed, max_matvecs=products)
                assert len(top.values) == len(expected)
                exceeded += bool((np.abs(top.values.numpy() - expected) > top.errors.numpy()).any())
                runs += 1
        assert exceeded <= most_failures(runs, 0.01)


def test_errors_say_something() -> None:
    """A bound of infinity would hold as well."""
    matrix = rotated(above([50, 30, 20, 15, 12]), 3)
    top = wc.eigenvalues(matrix, k=3, tol=1e-9, max_matvecs=24)
    assert (top.errors < 0.05 * top.values).all()


@pytest.mark.slow
@pytest.mark.parametrize("is_shifted", [False, True])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_probability_is_that_of_a_nearly_singular_gaussian_matrix(rank: int, is_shifted: bool) -> None:
    starts, generator = 3, torch.Generator().manual_seed(0)
    process = Lanczos(rotated(np.linspace(0, 1, 40), 0), torch.eye(40, starts, dtype=torch.float64), generator)
    for _ in range(3):
        process.step()
    ritz, vectors = np.linalg.eigh(process.projected())
    certificate = Certificate(process, ritz, vectors, is_shifted=is_shifted)
    value = np.array([1.05])
    sigma = float(certificate._seen_at_most(value)[0]) * math.sqrt(process.size)
    bound = float(certificate.probability(value, rank)[0])
    noise = np.random.default_rng(0).normal(size=(50_000, rank, starts))
    shifts = [np.zeros((rank, starts)), np.ones((rank, starts)), np.eye(rank, starts)]
    for shift in shifts if is_shifted else shifts[:1]:
        share = float((np.linalg.svd(noise + shift, compute_uv=False)[:, -1] <= sigma).mean())
        assert share <= bound + 4 * math.sqrt(share / len(noise))
        assert is_shifted or rank < starts or bound < 1.5 * share  # the leading term is exact


def test_no_eigenvector_has_more_in_the_start_than_the_certificate_says() -> None:
    """‖eᵀQ₁R‖ ≤ σ(λ) for every eigenpair (λ, e): the one fact that all bounds rest on."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values = np.sort(rng.uniform(-1, 1, 30))
        start = torch.from_numpy(rng.normal(size=(30, 1 + seed % 3)))
        process = Lanczos(torch.diag(torch.from_numpy(values)), start, torch.Generator().manual_seed(0))
        for _ in range(2 + seed % 5):
            process.step()
        ritz, vectors = np.linalg.eigh(process.projected())
        seen = Certificate(process, ritz, vectors, is_shifted=False)._seen_at_most(values)
        assert (np.linalg.norm(start.numpy(), axis=1) <= seen * (1 + 1e-9)).all()


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-24, 1e-21, 1e-12, 1e12, 1e25, 1e36])
@pytest.mark.parametrize("k", [1, 3])
def test_every_scale_of_float32(scale: float, k: int) -> None:
    values = above([4.0, 3.0, 2.5]) / 4
    matrix = (rotated(values, 0) * scale).float()
    true = torch.linalg.eigvalsh(matrix.double())
    top = wc.eigenvalues(matrix, k=k, tol=1e-3)
    assert top.converged
    assert ((top.values - true[-k:]).abs() <= top.errors).all()
    plain = wc.eigenvalues(matrix.double() / scale, k=k, tol=1e-3)
    assert plain.matvecs <= top.matvecs <= plain.matvecs + 2 * k  # one more to find the scale, at most two


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-30, 1e-21, 1.0, 1e25])
def test_the_density_has_the_matrix_own_scale(scale: float) -> None:
    values = above([4.0, 3.0, 2.5])
    matrix = (rotated(values, 0) * scale).float()
    result, plain = wc.density(matrix, iterations=30), wc.density(rotated(values, 0), iterations=30)
    assert result.moment(1) / scale == pytest.approx(plain.moment(1), rel=1e-4)
    assert torch.allclose(result.grid / scale, plain.grid, rtol=1e-3, atol=1e-3)
    same = wc.density(torch.eye(20) * scale)
    assert float(same.grid.max()) == pytest.approx(scale, rel=0.1)


@pytest.mark.parametrize(("size", "k"), [(1, 1), (2, 1), (3, 2), (10, 1), (10, 4), (30, 3)])
def test_both_ends_are_both_there(size: int, k: int) -> None:
    for matrix in (torch.eye(size, dtype=torch.float64), torch.diag(torch.arange(1.0, size + 1).double())):
        top = wc.eigenvalues(matrix, k=k, which="both", max_matvecs=1)
        assert len(top.values) == min(2 * k, size)
        top = wc.eigenvalues(matrix, k=k, which="both")
        true = torch.diagonal(matrix)
        expected = true if size < 2 * k else torch.cat([true[:k], true[-k:]])
        assert torch.allclose(top.values, expected)


@pytest.mark.parametrize("measure", [wc.eigenvalues, wc.density, wc.trace, wc.spectrum])
def test_only_symmetric_matrices_are_taken(measure) -> None:
    with pytest.raises(ValueError, match="not symmetric"):
        measure(torch.tensor([[1.0, 5.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="square matrix"):
        measure(torch.ones(2, 3))
    with pytest.raises(NonFinite):
        measure(torch.full((3, 3), math.nan))
    for dtype in (torch.int64, torch.float16, torch.bfloat16):
        measure(torch.eye(3, dtype=dtype))
    measure(torch.eye(3, requires_grad=True))
