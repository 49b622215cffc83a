"""lange2022: what centering and scaling do to the condition number of Ĥ, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from lange2022_matrices import centering, extended, kappa, matrix, scaling
from torch import Tensor
from zoo import normal

from wellcond_papers.papers.lange2022.unit import Preconditioner, conditioning

SIZES = [(12, 2, 0), (20, 5, 1), (30, 8, 2), (9, 6, 3)]
"""N, n and a seed."""
ROUNDING = 1 + 1e-10


def features(N: int, n: int, seed: int) -> Tensor:
    """Correlated columns whose means and scales differ by orders of magnitude."""
    mixed = normal(N, n, seed=seed) @ normal(n, n, seed=seed + 100)
    return 10 ** (1.5 * normal(n, seed=seed + 200)) * (mixed + normal(n, seed=seed + 300))


def mirrored(rows: Tensor) -> Tensor:
    """[rows; −rows]: mean 0, and the Gram matrix of the rows, twice."""
    return torch.cat([rows, -rows])


def normalized(A: Tensor) -> Tensor:
    """Columns of norm 1."""
    return A / torch.linalg.vector_norm(A, dim=0)


def least_kappa(A: Tensor) -> float:
    """min κ(A D₀) over positive diagonal D₀: a (1+1) evolution in log D₀, begun anew with long steps five times."""
    rank = int(torch.linalg.matrix_rank(A))

    def at(logs: Tensor) -> float:
        values = torch.linalg.svdvals(A * logs.exp())
        return float(values[0] / values[rank - 1])

    starts = torch.zeros(A.shape[1]).double(), -torch.linalg.vector_norm(A, dim=0).log()
    logs = min(starts, key=at)
    best = at(logs)
    for attempt in range(5):
        step = 1.0
        for direction in normal(400, A.shape[1], seed=attempt):
            value = at(logs + step * direction)
            if value < best:
                best, logs, step = value, logs + step * direction, 1.5 * step
            else:
                step *= 0.93
    return best


# Theorem 4, the first bound


@pytest.mark.parametrize(("N", "n", "seed"), SIZES)
def test_theorem_4_centring_lowers_the_condition_number(N: int, n: int, seed: int) -> None:
    """κ(ĤU) < κ(Ĥ), since λ_max does not grow and λ_min does not shrink; strictly, as μ is not orthogonal to x_max."""
    H = features(N, n, seed)
    H_hat, U = extended(H), centering(H)
    before, after = torch.linalg.svdvals(H_hat), torch.linalg.svdvals(H_hat @ U)
    principal = torch.linalg.eigh((H - H.mean(0)).T @ (H - H.mean(0))).eigenvectors[:, -1]
    assert abs(principal @ H.mean(0)) > 1e-3
    assert kappa(H_hat @ U) < kappa(H_hat)
    assert after[0] < before[0]
    assert after[-1] >= before[-1]
    by_library = Preconditioner(H.mean(0), torch.ones(n).double()).applied_to(H_hat)
    assert conditioning(by_library)[0] == pytest.approx(kappa(H_hat @ U) ** 2, rel=1e-9)


def test_theorem_4_centering_may_not_help_if_the_mean_is_orthogonal() -> None:
    """Orthogonal columns of scales 10, 1 and 0.01; the mean is that of the second. And for mean 0, U = I."""
    signs = matrix([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    centered = signs * matrix([10.0, 1.0, 0.01])
    H = centered + matrix([0.0, 2.0, 0.0])
    assert kappa(extended(H) @ centering(H)) == pytest.approx(kappa(extended(H)), rel=1e-12)
    assert torch.equal(centering(centered), torch.eye(4).double())


def test_theorem_4_the_first_bound_needs_full_column_rank() -> None:
    """Two examples, three columns, κ over the nonzero singular values: centering makes it three times as large."""
    H = matrix([[-2.0, 4.0], [4.0, 2.0]])
    H_hat = extended(H)
    gram, centered = H_hat @ H_hat.T, (H_hat @ centering(H)) @ (H_hat @ centering(H)).T
    assert gram.tolist() == [[21, 1], [1, 21]]  # eigenvalues 22 and 20
    assert centered.tolist() == [[11, -9], [-9, 11]]  # 20 and 2
    assert kappa(H_hat) == pytest.approx(math.sqrt(1.1), rel=1e-12)
    assert kappa(H_hat @ centering(H)) == pytest.approx(math.sqrt(10), rel=1e-12)


# Lemma A1 and Theorem 4, the second bound


@pytest.mark.parametrize(("m", "n", "seed"), [*SIZES, (4, 7, 4), (3, 9, 5)])
def test_lemma_a1_columns_of_norm_1_are_within_root_n_of_the_best_scaling(m: int, n: int, seed: int) -> None:
    """κ(AD) ≤ √n min κ(AD₀). Full column rank, which the source asks for, is not needed: two cases are wide."""
    A = features(m, n, seed)
    best = least_kappa(A)
    assert best <= kappa(A) * ROUNDING
    assert best <= kappa(normalized(A)) <= math.sqrt(n) * best
    for other in range(20):
        scaled = A * 10 ** normal(n, seed=other)
        assert kappa(normalized(scaled)) == pytest.approx(kappa(normalized(A)), rel=1e-8)
        assert kappa(normalized(A)) <= math.sqrt(n) * kappa(scaled)


@pytest.mark.parametrize(("N", "n", "seed"), [*SIZES, (5, 8, 4)])
def test_theorem_4_scaling_by_d_is_within_root_n_of_the_best(N: int, n: int, seed: int) -> None:
    """κ(Ĝ) ≤ √n min κ(ĤUD₀), a little less than the √(n+1) printed.

    e is orthogonal to G and of the norm of its columns, so κ(Ĝ) = κ(G), to which Lemma A1 applies with n columns.
    """
    H = features(N, n, seed)
    HU = extended(H) @ centering(H)
    G_hat = HU @ scaling(H)
    best = least_kappa(HU)
    assert best <= kappa(G_hat) * ROUNDING
    assert kappa(G_hat) <= math.sqrt(n) * best
    if n < N:
        assert kappa(G_hat) == pytest.approx(kappa(G_hat[:, 1:]), rel=1e-10)
    squared, _ = conditioning(Preconditioner.of(H).applied_to(extended(H)))
    assert squared == pytest.approx(kappa(G_hat) ** 2, rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_theorem_4_scaling_by_d_can_be_worse_than_none_by_root_half_n(n: int) -> None:
    """Two columns that are almost one, and n − 2 small ones near to it: with norm 1, λ_max rises from 2 to n.

    So the factor of Lemma A1 must grow with √n, and κ(Ĝ) ≤ κ(ĤU) does not hold in general.
    """
    H = almost_parallel(n)
    HU = extended(H) @ centering(H)
    worse = kappa(HU @ scaling(H)) / kappa(HU)
    assert worse == pytest.approx(math.sqrt(n / 2), rel=0.01)
    assert worse <= math.sqrt(n)


def almost_parallel(n: int, close: float = 1e-4, small: float = 0.05, apart: float = 0.05) -> Tensor:
    """n(u ± close·f₁) and n·small·(u + apart·f_j), u and f_j orthonormal; twice, with both signs."""
    columns = torch.diag(matrix([0.0, -close, *[apart] * (n - 2)]))
    columns[1, 0] = close
    columns[0] = 1
    columns[:, 2:] *= small
    return mirrored(n * columns)


@pytest.mark.parametrize("seed", range(3))
def test_theorem_4_with_property_a_scaling_by_d_is_the_best(seed: int) -> None:
    """Covariance [[D₁, F], [Fᵀ, D₂]] with diagonal D₁, D₂: no D₀ beats D, and κ(Ĝ)² = (1 + ‖F̃‖)/(1 − ‖F̃‖)."""
    coupling = normal(2, 3, seed=seed)
    coupling *= 0.8 / torch.linalg.matrix_norm(coupling, 2)
    correlation = torch.eye(5).double()
    correlation[:2, 2:], correlation[2:, :2] = coupling, coupling.T
    factor = torch.linalg.cholesky(correlation).T
    H = mirrored(factor * 10 ** normal(5, seed=seed + 10))
    HU = extended(H) @ centering(H)
    G_hat = HU @ scaling(H)
    assert kappa(G_hat) == pytest.approx(math.sqrt(1.8 / 0.2), rel=1e-10)
    assert least_kappa(HU) == pytest.approx(kappa(G_hat), rel=1e-6)
    for other in range(50):
        assert kappa(HU * 10 ** normal(6, seed=other)) >= kappa(G_hat)


# κ(D)²


@pytest.mark.parametrize(("N", "n", "seed"), SIZES)
def test_the_chain_after_theorem_4_bounds_centered_features_by_kappa_of_d(N: int, n: int, seed: int) -> None:
    """κ(ĤU) ≤ κ(Ĝ) κ(D), with equality for orthogonal columns."""
    H = features(N, n, seed)
    HU = extended(H) @ centering(H)
    of_D = Preconditioner.of(H).condition_number()
    assert of_D == pytest.approx(kappa(scaling(H)), rel=1e-12)
    assert kappa(HU) <= kappa(HU @ scaling(H)) * of_D * ROUNDING
    orthogonal = mirrored(torch.diag(10 ** normal(n, seed=seed)))
    HU = extended(orthogonal) @ centering(orthogonal)
    assert kappa(HU @ scaling(orthogonal)) == pytest.approx(1, rel=1e-12)
    assert kappa(HU) == pytest.approx(Preconditioner.of(orthogonal).condition_number(), rel=1e-12)


def improvement(H: Tensor) -> float:
    """κ(∇²L)/κ(Pᵀ∇²L P) of one unit under squared error, for which S = I/N."""
    factor = extended(H) / math.sqrt(len(H))
    return conditioning(factor)[0] / conditioning(Preconditioner.of(H).applied_to(factor))[0]


def test_the_hessian_need_not_improve_by_kappa_of_d_squared() -> None:
    """It does for orthogonal centered columns; it may improve more, by the mean, and less, or get worse.

    What holds is 1/κ(P)² ≤ improvement ≤ κ(P)².
    """
    signs = matrix([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    scaled, shifted, parallel = signs * matrix([100.0, 1.0, 0.1]), signs + 30.0, almost_parallel(8)
    squares = [Preconditioner.of(H).condition_number() ** 2 for H in (scaled, shifted, parallel)]
    gains = [improvement(H) for H in (scaled, shifted, parallel)]
    assert squares[0] == pytest.approx(1e6, rel=1e-9)
    assert gains[0] == pytest.approx(1e6, rel=1e-9)
    assert squares[1] == pytest.approx(1, rel=1e-12)
    assert gains[1] > 1e6
    assert squares[2] > 100
    assert gains[2] == pytest.approx(1 / 4, rel=0.02)
    for H, gain in zip((scaled, shifted, parallel), gains, strict=True):
        of_P = kappa(centering(H) @ scaling(H)) ** 2 * ROUNDING
        assert 1 / of_P <= gain <= of_P
