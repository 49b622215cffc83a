"""lange2022, Proposition 11: what the condition numbers of S and Ĥ say about that of the Hessian ĤᵀSĤ, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from lange2022_matrices import extended, kappa, matrix
from torch import Tensor, nn
from zoo import normal, seeded

import wellcond as wc
from wellcond_papers.papers.lange2022.unit import conditioning


def definite(size: int, seed: int) -> Tensor:
    root = normal(size, size, seed=seed)
    return root @ root.T + 0.05 * torch.eye(size).double()


SHAPES = [(9, 4, 4), (5, 5, 5), (4, 9, 4), (10, 7, 3)]
"""m, n and the rank of Ĥ."""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("m", "n", "rank"), SHAPES)
def test_proposition_11_bounds_the_condition_number_of_the_hessian(m: int, n: int, rank: int, seed: int) -> None:
    """For positive definite S and any Ĥ, κ over the nonzero eigenvalues."""
    H_hat = normal(m, rank, seed=seed) @ normal(rank, n, seed=seed + 10)
    S = definite(m, seed + 20)
    root = torch.linalg.cholesky(S).T @ H_hat
    squared, found_rank = conditioning(root)
    assert found_rank == rank
    assert squared <= kappa(H_hat) ** 2 * kappa(S)
    # attained when Ĥ's singular vectors are S's eigenvectors, largest with largest
    aligned = torch.linalg.eigh(S).eigenvectors.flip(1) * torch.linspace(3, 1, m).double()
    assert kappa(aligned.T @ S @ aligned) == pytest.approx(3**2 * kappa(S), rel=1e-9)


@pytest.mark.parametrize("diagonal", [[1.0, 1.0, -1.0], [1.0, 1.0, 0.0]], ids=["indefinite", "singular"])
def test_proposition_11_fails_without_a_positive_definite_s(diagonal: list[float]) -> None:
    """κ(S) = κ(Ĥ) = 1, κ(ĤᵀSĤ) > 1: section 3.3 uses the bound for any S, but S has L″ < 0 and L″ = 0 in it."""
    H_hat = torch.linalg.qr(matrix([[1.0, 0.0], [0.0, 1.0], [1.0, 0.5]])).Q
    S = torch.diag(matrix(diagonal))
    assert kappa(H_hat) == pytest.approx(1, rel=1e-12)
    assert kappa(S) == 1
    assert kappa(H_hat.T @ S @ H_hat) > 1.5


@pytest.mark.parametrize("seed", range(4))
def test_proposition_11_does_not_cover_a_relu_that_is_sometimes_off(seed: int) -> None:
    """Squared error of v ReLU(ŵᵀĥ): L″ is v² where the unit is on and 0 elsewhere, so that κ(S) = 1 in the source's
    sense, while the Hessian is that of the examples that are on alone."""
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 1), nn.ReLU(), nn.Linear(1, 1)))
    x = normal(40, 3, seed=seed)
    on = model[0](x).flatten() > 0
    assert 4 <= on.sum() < 40
    problem = wc.Problem(model, nn.MSELoss(), (x, normal(40, 1, seed=seed + 10)))
    of_hessian = kappa(wc.Hessian(problem, layers="0").dense())
    assert of_hessian == pytest.approx(kappa(extended(x[on])) ** 2, rel=1e-9)
    assert of_hessian > 1.5 * kappa(extended(x)) ** 2


def test_condition_numbers_of_rectangular_factors_do_not_multiply() -> None:
    """κ(AB) ≤ κ(A)κ(B) fails: orthonormal rows times orthonormal columns."""
    angle = 0.1
    A = torch.eye(2, 3).double()
    B = matrix([[1.0, 0.0], [0.0, math.sin(angle)], [0.0, math.cos(angle)]])
    assert kappa(A) == 1
    assert kappa(B) == pytest.approx(1, rel=1e-12)
    assert kappa(A @ B) == pytest.approx(1 / math.sin(angle), rel=1e-12)
