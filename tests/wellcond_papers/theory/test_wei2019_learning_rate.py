"""§ 2.1 of wei2019: the Fisher matrix as a mean Hessian, and the largest learning rate, in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from references import assert_same, dense_hessian, dense_jacobian
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from zoo import CLASSES, integers, normal, seeded

import wellcond as wc

# the Fisher matrix


def gradient_products(model: nn.Module, loss: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Mean over the examples of ∇ℓ ∇ℓᵀ."""
    rows = []
    for k in range(len(x)):
        by_weights = torch.autograd.grad(loss(model(x[k : k + 1]), labels[k : k + 1]), list(model.parameters()))
        rows.append(parameters_to_vector(by_weights))
    return torch.stack(rows).T @ torch.stack(rows) / len(x)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_equation_4_the_fisher_matrix_is_the_mean_hessian_of_the_models_own_labels(activation: type[nn.Module]) -> None:
    """E ∇ log p ∇ log pᵀ = −E Hess log p where labels are the model's, for every input; with the data's it fails."""
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, CLASSES)))
    loss, x, labels = nn.CrossEntropyLoss(), normal(5, 3), integers(CLASSES, 5)
    fisher, mean_hessian = 0, 0
    for label in range(CLASSES):
        p = model(x).softmax(1)[:, label].detach()
        for k in range(len(x)):
            one = (x[k : k + 1], torch.tensor([label]))
            fisher += p[k] * gradient_products(model, loss, *one) / len(x)
            mean_hessian += p[k] * dense_hessian(model, loss, one) / len(x)
    assert_same(fisher, mean_hessian, 1e-12)
    assert_same(wc.Fisher(wc.Problem(model, loss, (x, labels))).dense(), mean_hessian, 1e-12)
    of_data, hessian = gradient_products(model, loss, x, labels), dense_hessian(model, loss, (x, labels))
    assert float((of_data - hessian).norm() / hessian.norm()) > 0.1


def test_equation_10_is_the_fisher_matrix_of_unit_gaussians() -> None:
    """p ∝ exp(−½‖f − y‖²): E over y = f ± e_c, which has the moments of N(f, I); printed is exp(½‖f − y‖²), which has
    no integral."""
    model = seeded(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    x, half_squared = normal(6, 3), lambda f, y: (f - y).square().sum() / 2
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]).double()
    fisher = sum(gradient_products(model, half_squared, x, (model(x) + sign).detach()) for sign in signs) / 4
    jacobian = dense_jacobian(model, x)
    assert_same(fisher, jacobian.T @ jacobian / len(x), 1e-12)
    ggn = wc.GGN(wc.Problem(model, nn.MSELoss(), (x, model(x).detach())))  # the mean over two outputs is half their sum
    assert_same(ggn.dense(), fisher, 1e-12)


def test_equation_6_at_a_perfect_fit_the_hessian_is_the_fisher_matrix() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    x = normal(7, 3)
    targets = model(x).detach()
    J = dense_jacobian(model, x)
    fisher = J.T @ J / len(x)
    at_the_optimum = wc.Hessian(wc.Problem(model, nn.MSELoss(), (x, targets))).dense()
    assert_same(at_the_optimum / 2, fisher, 1e-10)
    elsewhere = dense_hessian(model, nn.MSELoss(), (x, targets + 1))
    assert float((elsewhere / 2 - fisher).norm() / fisher.norm()) > 1e-2


# the largest learning rate


def spectral_radius(eta_lambda: float, mu: float) -> float:
    """Of (θ_t, θ_{t−1}) ↦ (θ_{t+1}, θ_t) on one mode of a quadratic: eq. 1."""
    return float(np.abs(np.linalg.eigvals(np.array([[1 + mu - eta_lambda, -mu], [1.0, 0.0]]))).max())


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("lam", [0.03, 7.0])
def test_equation_7_is_where_momentum_descent_starts_to_diverge(mu: float, lam: float) -> None:
    limit = 2 * (1 + mu) / lam
    assert spectral_radius(limit * lam, mu) == pytest.approx(1.0, abs=1e-12)
    assert spectral_radius(0.999 * limit * lam, mu) < 1 < spectral_radius(1.001 * limit * lam, mu)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.9])
def test_equation_7_seen_in_torch_sgd(mu: float) -> None:
    curvature = torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64)
    limit = 2 * (1 + mu) / 5.0

    def distance(lr: float) -> float:
        theta = torch.ones(3, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([theta], lr, momentum=mu)
        for _ in range(1500):
            theta.grad = curvature * theta.detach()
            optimizer.step()
        return float(theta.detach().norm())

    assert distance(0.98 * limit) < 1e-3
    assert distance(1.02 * limit) > 1e3


@pytest.mark.parametrize("mu", [0.0, 0.5, 0.9])
def test_half_the_largest_rate_is_the_best_on_one_mode(mu: float) -> None:
    """η*/2 makes the radius √μ, which no rate can better: the product of the two roots is μ."""
    at_half = spectral_radius(1 + mu, mu)
    assert at_half == pytest.approx(math.sqrt(mu), abs=1e-12)
    assert all(spectral_radius(eta, mu) >= at_half - 1e-12 for eta in np.linspace(0.01, 2 * (1 + mu), 200))


def test_half_the_largest_rate_is_not_the_best_on_several_modes() -> None:
    """Plain gradient descent is best at 2/(λ_max + λ_min), which lies between η*/2 and η*."""
    modes = np.array([1.0, 3.0, 10.0])
    rates = np.linspace(1e-3, 0.2, 20001)
    worst = np.abs(1 - rates[:, None] * modes).max(1)
    best = float(rates[worst.argmin()])
    assert best == pytest.approx(2 / 11, abs=1e-4)
    assert 0.1 < best < 0.2
    assert worst.min() < 0.95 * np.abs(1 - 0.1 * modes).max()
