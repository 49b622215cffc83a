"""Eigenvalues: a tolerance is a true error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matrices import SPECTRA, cluster, multiple, network_like, rotated, two_close
from torch import nn

import wellcond as wc
from wellcond.curvature.spectra.lanczos import Lanczos
from wellcond_papers.models import mlp


def wanted(values: np.ndarray, k: int, which: str) -> np.ndarray:
    values = np.sort(values)
    ends = {"largest": values[-k:], "smallest": values[:k], "both": np.concatenate([values[:k], values[-k:]])}
    return ends[which]


@pytest.mark.parametrize("case", range(105))
def test_converged_means_a_true_relative_error_within_the_tolerance(case: int) -> None:
    rng = np.random.default_rng(case)
    spectrum = SPECTRA[case % len(SPECTRA)]
    n, k = int(rng.integers(20, 150)), int(rng.choice([1, 1, 2, 3, 5]))
    tol, which = 10 ** rng.uniform(-6, -1), str(rng.choice(["largest", "smallest", "both"]))
    values = spectrum(rng, n)
    matrix = rotated(values, case)
    top = wc.eigenvalues(matrix, k=k, which=which, tol=tol, seed=case)
    # LAPACK on the rounded matrix is the truth; `values` is off by the rounding of the rotation
    true = wanted(torch.linalg.eigvalsh(matrix).numpy(), k, which)
    error = np.abs(top.values.numpy() - true)
    rounding = 1e-14 * np.abs(values).max()
    assert (error <= top.errors.numpy() + rounding).all(), "an error bound was broken"
    if top.converged:
        assert (error <= tol * np.abs(true)).all()
    assert (np.diff(top.values.numpy()) >= 0).all()


@pytest.mark.parametrize("spectrum", [cluster, two_close, multiple, network_like])
def test_it_does_converge_where_the_wanted_eigenvalues_are_not_zero(spectrum) -> None:
    for seed in range(5):
        values = spectrum(np.random.default_rng(seed), 80)
        assert wc.eigenvalues(rotated(values, seed), k=2, which="largest", tol=1e-5).converged


@pytest.mark.slow
def test_the_plain_residual_criterion_would_break_its_promise() -> None:
    """Why the residual is not enough: on two close eigenvalues it is met while the larger one is still unseen."""
    broken = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        values = np.concatenate([[1.0, 1 - 3e-3], rng.uniform(0, 0.3, 98)])
        matrix = rotated(values, seed)
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(100, 1, generator=generator, dtype=torch.float64)
        process = Lanczos(matrix, start, generator)
        while True:
            process.step()
            theta, vectors = np.linalg.eigh(process.projected())
            if process.residuals(vectors[:, -1:])[0] <= 1e-3 * theta[-1]:
                break
        broken += abs(theta[-1] - 1) > 1e-3
        top = wc.eigenvalues(matrix, tol=1e-3, seed=seed)
        assert abs(float(top.values[-1]) - 1) <= 1e-3
    assert broken > 0


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        ([5.0, 5, 5, 2, 2, 1, 0.5, *np.zeros(40)], {"k": 5}, [2, 2, 5, 5, 5]),
        ([-10.0, -1, *np.linspace(0.1, 2, 30)], {"which": "largest"}, [2]),
        ([-10.0, -1, *np.linspace(0.1, 2, 30)], {"which": "both"}, [-10, 2]),
    ],
    ids=["multiple", "largest_is_not_largest_in_magnitude", "both_signs"],
)
def test_copies_and_signs_are_kept(values: list[float], options: dict, expected: list[float]) -> None:
    top = wc.eigenvalues(rotated(np.array(values), 0), tol=1e-8, **options)
    assert top.values.tolist() == pytest.approx(expected, rel=1e-8)


def test_vectors_are_eigenvectors_to_the_stated_error() -> None:
    matrix = rotated(network_like(np.random.default_rng(3), 120), 3)
    top = wc.eigenvalues(matrix, k=3, tol=1e-7)
    residuals = (matrix @ top.vectors - top.vectors * top.values).norm(dim=0)
    assert (residuals <= top.errors + 1e-13).all()
    assert torch.allclose(top.vectors.T @ top.vectors, torch.eye(3, dtype=torch.float64), atol=1e-12)


@pytest.mark.slow
def test_a_warm_start_knows_more_after_the_same_products() -> None:
    """It saves what sharpens a value. What shows that nothing larger hides takes as long."""
    for seed in range(5):
        values = network_like(np.random.default_rng(seed), 600)
        matrix = torch.diag(torch.from_numpy(values))
        known = wc.eigenvalues(matrix, k=3, tol=1e-9, seed=100).vectors
        cold, warm = (
            wc.eigenvalues(matrix, k=3, seed=seed, start=start, max_matvecs=9).values.numpy() for start in (None, known)
        )
        true = np.sort(values)[-3:]
        assert np.abs(warm - true).max() < 0.1 * np.abs(cold - true).max()
        assert wc.eigenvalues(matrix, k=3, tol=1e-3, seed=seed, start=known).converged


def test_without_enough_products_it_says_so_and_returns_what_it_has() -> None:
    matrix = rotated(np.linspace(0, 1, 300), 0)
    top = wc.eigenvalues(matrix, tol=1e-6, max_matvecs=5)
    assert not top.converged
    assert top.matvecs == 5
    assert "not converged" in top.status
    assert abs(float(top.values[0]) - 1) <= float(top.errors[0])


def test_a_zero_eigenvalue_is_never_called_converged() -> None:
    top = wc.eigenvalues(rotated(np.array([0.0, *np.linspace(1, 2, 40)]), 0), which="smallest", tol=0.1)
    assert not top.converged
    assert abs(float(top.values[0])) <= float(top.errors[0])
    assert "rounding" in top.status


@pytest.mark.slow
def test_a_matrix_of_zeros_is_zero_to_a_vanishing_error() -> None:
    top = wc.eigenvalues(torch.zeros(2001, 2001), k=2, which="both")  # more rows than it takes products
    assert top.values.tolist() == [0.0] * 4
    assert (top.errors < 1e-100).all()


def test_float32_does_not_promise_what_its_rounding_cannot_keep() -> None:
    matrix = rotated(network_like(np.random.default_rng(1), 100), 1).float()
    assert not wc.eigenvalues(matrix, tol=1e-7).converged
    assert wc.eigenvalues(matrix, tol=1e-4).converged


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-6])
def test_on_networks_the_error_is_within_the_tolerance_too(norm: str, tol: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 6, generator=generator, dtype=torch.float64), torch.arange(40) % 3
    model = mlp([6, 8, 8, 3], norm=norm, init="he", seed=1).double()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (x, y))
    for operator in (wc.Hessian(problem), wc.GGN(problem), wc.Fisher(problem, "data")):
        true = torch.linalg.eigvalsh(operator.dense())
        top = wc.eigenvalues(operator, k=2, which="largest", tol=tol)
        assert top.converged
        assert ((top.values - true[-2:]).abs() <= tol * true[-2:].abs()).all()


def test_the_basis_stays_orthonormal_on_a_rank_deficient_matrix() -> None:
    rng = np.random.default_rng(0)
    factor = rng.normal(size=(71, 35))
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(71, 3, generator=generator, dtype=torch.float64)
    process = Lanczos(torch.from_numpy(factor @ factor.T), start, generator)
    while not process.is_complete:
        process.step()
    basis = process.combined(np.eye(71))
    assert torch.allclose(basis.T @ basis, torch.eye(71, dtype=torch.float64), atol=1e-12)
    true = np.linalg.eigvalsh(factor @ factor.T)
    assert np.allclose(np.linalg.eigvalsh(process.projected()), true, atol=1e-11 * true.max())


@pytest.mark.parametrize(
    ("matrix", "arguments", "message"),
    [
        (torch.eye(3), {"k": 0}, "k is 0"),
        (torch.eye(3), {"k": 4}, "3 eigenvalues"),
        (torch.eye(3), {"which": "LM"}, "largest"),
        (torch.eye(3), {"tol": 0.0}, "positive"),
        (torch.ones(2, 3), {}, "square"),
    ],
)
def test_bad_arguments_are_named(matrix: torch.Tensor, arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wc.eigenvalues(matrix, **arguments)
