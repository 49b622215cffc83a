"""lange2022, Theorem 1: convergence to a minimizer that scalings of the weights carry along a manifold, in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from lange2022_matrices import best_lr, optimal_rate, rate
from references import assert_same
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from torch.nn.utils import parameters_to_vector
from zoo import normal

import wellcond as wc


@dataclass(frozen=True)
class Invariant:
    """A network and its loss, at a minimizer θ* = manifold(1), whose scalings t leave the outputs as they are."""

    model: nn.Module
    loss: Any
    batch: tuple[Tensor, Tensor]
    manifold: Callable[[Tensor], Tensor]
    scalings: int

    def at(self, theta: Tensor) -> Tensor:
        """The loss at flat parameters θ."""
        parts = torch.split(theta, [p.numel() for p in self.model.parameters()])
        named = zip(self.model.named_parameters(), parts, strict=True)
        parameters = {name: part.view_as(p) for (name, p), part in named}
        return self.loss(torch.func.functional_call(self.model, parameters, self.batch[0]), self.batch[1])

    def gradient(self, theta: Tensor) -> Tensor:
        theta = theta.clone().requires_grad_()
        return torch.autograd.grad(self.at(theta), theta)[0]

    def hessian(self, theta: Tensor) -> Tensor:
        return hessian(self.at, theta)

    def tangent(self, t: Tensor) -> Tensor:
        """D_t θ*(t)."""
        return jacobian(self.manifold, t)

    def nearest(self, theta: Tensor) -> Tensor:
        """θ*(t) at t = argmin ‖θ − θ*(t)‖, by Newton's method; the error is orthogonal to the tangent there."""
        t = torch.ones(self.scalings).double()

        def distance(t: Tensor) -> Tensor:
            return ((theta - self.manifold(t)) ** 2).sum() / 2

        for _ in range(4):
            t = t - torch.linalg.solve(hessian(distance, t), jacobian(distance, t))
        error = theta - self.manifold(t)
        assert (self.tangent(t).T @ error).norm() <= 1e-9 * error.norm() + 1e-15
        return self.manifold(t)


def rescaled(model: nn.Sequential, t: Tensor, with_biases: bool = True) -> Tensor:
    """θ(t): row and bias of each hidden unit times its t, the next layer's column over it."""
    layers = [module for module in model if isinstance(module, nn.Linear)]
    factors = [*torch.split(t, [layer.out_features for layer in layers[:-1]]), torch.ones(1).double()]
    parts, before = [], torch.ones(1).double()
    for layer, factor in zip(layers, factors, strict=True):
        parts.append((layer.weight.detach() * factor[:, None] / before).reshape(-1))
        parts.append(layer.bias.detach() * (factor if with_biases else 1))
        before = factor
    return torch.cat(parts)


def rectifier(widths: list[int], seed: int, examples: int = 60) -> Invariant:
    """A ReLU network, its labels its own outputs: the minimum is 0, and it is smooth there."""
    model = network(widths, seed)
    x = normal(examples, widths[0], seed=seed + 50)
    scalings = sum(widths[1:-1])
    return Invariant(model, nn.MSELoss(), (x, model(x).detach()), lambda t: rescaled(model, t), scalings)


def network(widths: list[int], seed: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for k, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        layer = nn.Linear(fan_in, fan_out).double()
        layer.weight.data = normal(fan_out, fan_in, seed=seed + k)
        layer.bias.data = 0.3 * normal(fan_out, seed=seed + k)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def softened(widths: list[int], seed: int) -> Invariant:
    """The same under cross-entropy with the network's own probabilities as labels: the minimum is not 0."""
    case = rectifier(widths, seed)
    labels = case.batch[1].softmax(1)
    return Invariant(case.model, nn.CrossEntropyLoss(), (case.batch[0], labels), case.manifold, case.scalings)


def batchnorm_unit(inputs: int, seed: int) -> Invariant:
    """BN(wᵀx), which does not see ‖w‖."""
    # ε breaks the invariance, by its own size
    norm = nn.BatchNorm1d(1, eps=1e-30, affine=False, track_running_stats=False)
    model = nn.Sequential(nn.Linear(inputs, 1, bias=False), norm).double()
    model[0].weight.data = normal(1, inputs, seed=seed)
    x = normal(40, inputs, seed=seed + 50) * torch.linspace(0.6, 1.5, inputs).double()
    w = model[0].weight.detach().flatten()
    return Invariant(model, nn.MSELoss(), (x, model(x).detach()), lambda t: t * w, 1)


CASES: dict[str, Callable[[], Invariant]] = {
    "two layers": lambda: rectifier([2, 3, 1], 0),
    "two layers, three outputs": lambda: rectifier([3, 4, 3], 1),
    "three layers": lambda: rectifier([3, 4, 3, 2], 2),
    "cross-entropy": lambda: softened([3, 4, 3], 3),
    "batchnorm": lambda: batchnorm_unit(5, 4),
}


@pytest.mark.parametrize("name", CASES)
def test_theorem_1_the_null_space_holds_the_tangent_of_the_scalings(name: str) -> None:
    """∇²L(θ*(t)) D_t θ*(t) = 0 all along the manifold, by autograd and by wc.Hessian."""
    case = CASES[name]()
    for seed in range(3):
        t = (0.5 * normal(case.scalings, seed=seed)).exp()
        theta, tangent = case.manifold(t), case.tangent(t)
        assert int(torch.linalg.matrix_rank(tangent)) == case.scalings
        matrix = case.hessian(theta)
        assert case.gradient(theta).norm() <= 1e-13 * matrix.norm()
        assert matrix.norm() > 0.01
        assert (matrix @ tangent).norm() <= 1e-12 * matrix.norm() * tangent.norm()
    operator = wc.Hessian(wc.Problem(case.model, case.loss, case.batch))
    products = operator @ case.tangent(torch.ones(case.scalings).double())
    assert products.norm() <= 1e-12 * case.hessian(parameters_to_vector(case.model.parameters()).detach()).norm()


def test_theorem_1_elsewhere_than_at_a_minimizer_the_tangent_is_curved() -> None:
    """Off the minimum D_tᵀ ∇²L D_t = −Σ_i ∂_i L ∂²θ_i/∂t²: it is the gradient that must vanish."""
    case = rectifier([2, 3, 1], 0)
    wrong = Invariant(case.model, case.loss, (case.batch[0], case.batch[1] + 1), case.manifold, case.scalings)
    ones = torch.ones(case.scalings).double()
    theta, tangent = wrong.manifold(ones), wrong.tangent(ones)
    gradient = wrong.gradient(theta)
    bent = hessian(lambda t: gradient @ wrong.manifold(t), ones)
    assert_same(tangent.T @ wrong.hessian(theta) @ tangent, -bent, 1e-12)
    assert bent.norm() > 0.1


def test_theorem_1s_scalings_take_the_bias_along() -> None:
    """Section 3.2 scales rows of W⁽ˡ⁻¹⁾ and columns of W⁽ˡ⁾; its network (1) has biases, which must scale too."""
    case = rectifier([3, 4, 3, 2], 2)
    t = (0.5 * normal(case.scalings)).exp()
    right, printed = (case.at(rescaled(case.model, t, with_biases)) for with_biases in (True, False))
    assert float(right) < 1e-25
    assert float(printed) > 1e-3


CONVERGING = {name: CASES[name] for name in ("two layers", "two layers, three outputs", "batchnorm")}


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.0, 0.5])
@pytest.mark.parametrize("name", CONVERGING)
def test_theorem_1_nonzero_eigenvalues_set_the_rate_of_convergence(name: str, factor: float) -> None:
    """‖θ_{k+1} − θ*_{k+1}‖ ≤ (r + ε)‖θ_k − θ*_k‖, with ε of the order of ‖θ_0 − θ*_0‖, and r attained."""
    case = CONVERGING[name]()
    theta_star = case.manifold(torch.ones(case.scalings).double())
    values, vectors = torch.linalg.eigh(case.hessian(theta_star))
    nonzero = values > 1e-10 * values[-1]
    assert int((~nonzero).sum()) == case.scalings  # the null space is the tangent, as the theorem assumes
    lr = factor * best_lr(values[nonzero])
    if factor == 1:
        r = rate(values[nonzero], lr)
        assert r == pytest.approx(optimal_rate(float(values[-1] / values[nonzero][0])), rel=1e-9)

    slowest = vectors[:, nonzero][:, 0]
    for distance in (1e-3, 1e-5):
        for direction in (slowest, normal(len(theta_star), seed=1)):
            excess, theta = [], theta_star + distance * direction / direction.norm()
            nearest = case.nearest(theta)
            for _ in range(6):
                at_nearest = torch.linalg.eigvalsh(case.hessian(nearest))
                r = rate(at_nearest[at_nearest > 1e-10 * at_nearest[-1]], lr)
                error = (theta - nearest).norm()
                theta = theta - lr * case.gradient(theta)
                nearest = case.nearest(theta)
                excess.append(float((theta - nearest).norm() / error) - r)
            assert max(excess) <= 10 * distance
            if direction is slowest:
                assert excess[0] >= -10 * distance


def product(theta: Tensor) -> Tensor:
    """½(w v − 1)²: one weight after another. Invariant under (w t, v/t), minimal where w v = 1."""
    return (theta[0] * theta[1] - 1) ** 2 / 2


@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-9])
def test_theorem_1_needs_a_learning_rate_below_2_over_lambda_max(distance: float) -> None:
    """The proof's "clearly, r < 1" is no consequence of the statement, and without it the bound fails at some k.

    At w = v = 1, λ* = 2. With α = 1.1, r = 1.2: however close the start, the error grows until it does so 1.6-fold.
    """
    ratios, error, lr, r = [], distance, 1.1, 1.2
    for _ in range(200):
        theta = torch.full((2,), 1 + error, dtype=torch.float64)
        moved = theta - lr * jacobian(product, theta)
        assert moved[0] == moved[1] > 0  # it stays on the line on which (1, 1) is the nearest minimizer
        ratios.append(abs(float(moved[0]) - 1) / abs(error))
        error = float(moved[0]) - 1
    assert ratios[0] == pytest.approx(r, abs=10 * distance + 1e-6)
    assert max(ratios) > r + 0.3


def test_theorem_1_needs_a_null_space_that_is_the_tangent_alone() -> None:
    """An input that is always 0 adds a null direction that is no scaling: an error along it stays for good."""
    case = batchnorm_unit(4, 4)
    case.batch[0][:, 2] = 0
    case = Invariant(case.model, case.loss, (case.batch[0], case.model(case.batch[0]).detach()), case.manifold, 1)
    theta_star = case.manifold(torch.ones(1).double())
    values = torch.linalg.eigvalsh(case.hessian(theta_star))
    nonzero = values[values > 1e-10 * values[-1]]
    assert len(nonzero) == 4 - 2
    assert rate(nonzero, best_lr(nonzero)) < 0.9
    theta = theta_star + 1e-4 * normal(4, seed=2)
    first = (theta - case.nearest(theta)).norm()
    for _ in range(200):
        theta = theta - best_lr(nonzero) * case.gradient(theta)
    assert (theta - case.nearest(theta)).norm() > 0.1 * first
    assert case.at(theta) < 1e-20  # though the loss has converged
