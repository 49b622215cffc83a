"""lange2022, eqs. (5) to (8): how fast gradient descent converges on a quadratic, plain and preconditioned."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from lange2022_matrices import best_lr, centering, extended, kappa, optimal_rate, rate, scaling
from references import assert_same
from torch import Tensor, nn
from zoo import normal

import wellcond as wc


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("size", [2, 6, 15])
def test_equations_5_and_6_bound_the_error_on_a_quadratic(size: int, seed: int) -> None:
    root = normal(size, size, seed=seed)
    A = root @ root.T + 0.1 * torch.eye(size).double()
    values, vectors = torch.linalg.eigh(A)

    def error_after(error: Tensor, lr: float) -> Tensor:
        return error - lr * A @ error

    for lr in (0.3 * best_lr(values), best_lr(values), 2.2 / float(values[-1])):
        r = rate(values, lr)
        ratios = [float(error_after(e, lr).norm() / e.norm()) for e in normal(50, size, seed=seed + 10)]
        assert max(ratios) <= r * (1 + 1e-12)
        attained = [float(error_after(e, lr).norm()) for e in (vectors[:, 0], vectors[:, -1])]
        assert max(attained) == pytest.approx(r, rel=1e-10)
        assert (r < 1) == (lr < 2 / values[-1])
    assert rate(values, best_lr(values)) == pytest.approx(optimal_rate(kappa(A)), rel=1e-10)
    for factor in (0.9, 0.99, 1.01, 1.1):
        assert rate(values, factor * best_lr(values)) > rate(values, best_lr(values))


@pytest.mark.parametrize("seed", range(3))
def test_equations_7_and_8_a_bnp_step_is_gradient_descent_in_z(
    seed: int,
) -> None:
    """Least squares of one unit, ½ mean(ŵᵀĥ − y)²: P z_k = ŵ_k, and ‖z − z*‖ shrinks by r of κ(Ĝ)² each step."""
    N, n, steps = 30, 4, 12
    H = normal(N, n, seed=seed) * torch.linspace(0.1, 3, n).double() + 2
    y = normal(N, 1, seed=seed + 10)
    P = centering(H) @ scaling(H)
    G_hat = extended(H) @ P
    values = torch.linalg.eigvalsh(G_hat.T @ G_hat / N)
    lr, r = best_lr(values), optimal_rate(kappa(G_hat) ** 2)
    z_star = torch.linalg.lstsq(G_hat, y).solution.flatten()

    unit = nn.Linear(n, 1).double()
    nn.init.zeros_(unit.weight)
    nn.init.zeros_(unit.bias)
    optimizer = torch.optim.SGD(unit.parameters(), lr=lr)
    bnp = wc.BNP(unit, optimizer, rho=0.0, eps1=0.0, eps2=0.0)
    z = torch.zeros(n + 1).double()
    for _ in range(steps):
        error = (z - z_star).norm()
        z = z - lr * G_hat.T @ (G_hat @ z - y.flatten()) / N
        optimizer.zero_grad()
        (F.mse_loss(unit(H), y) / 2).backward()
        optimizer.step()
        w_hat = torch.cat([unit.bias, unit.weight[0]]).detach()
        assert_same(w_hat, P @ z, 1e-11)
        assert (z - z_star).norm() <= r * error * (1 + 1e-10)
    bnp.remove()
    plain = optimal_rate(kappa(extended(H)) ** 2)
    assert (z - z_star).norm() <= r**steps * z_star.norm() * (1 + 1e-9)
    assert r < 0.9 < 0.99 < plain
