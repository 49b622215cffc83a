"""Lemma 1, proposition 1 and theorems 1 and 2 of huang2020, in float64, through the library's own factors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from references import assert_same
from torch import Tensor, nn
from zoo import CLASSES, integers, normal, seeded

import wellcond as wc
from wellcond.measurements.layers.conditioning import ConditioningTable

SCALES = [1.5, 0.4, 2.0, 0.7]
"""α_k of the four layers."""


def random_spd(size: int, seed: int) -> np.ndarray:
    root = normal(size, size, seed=seed).numpy()
    return root @ root.T + 0.1 * np.eye(size)


@pytest.mark.parametrize(("m", "n"), [(3, 5), (6, 2)])
def test_lemma_1_eigenvalues_of_a_kronecker_product_are_the_products(m: int, n: int) -> None:
    """Also for indefinite matrices, where λ_max is then not the product of the two λ_max."""
    a, b = random_spd(m, 1) - 4 * np.eye(m), random_spd(n, 2) - 9 * np.eye(n)
    x, g = np.linalg.eigvalsh(a), np.linalg.eigvalsh(b)
    product = np.linalg.eigvalsh(np.kron(a, b))
    np.testing.assert_allclose(product, np.sort(np.outer(x, g).ravel()), rtol=1e-10, atol=1e-10 * product[-1])
    assert x[0] * g[0] > x[-1] * g[-1]
    assert product[-1] == pytest.approx(x[0] * g[0], rel=1e-12)


@pytest.mark.parametrize(("m", "n"), [(3, 5), (6, 2)])
def test_proposition_1_lambda_max_and_condition_numbers_multiply(m: int, n: int) -> None:
    a, b = random_spd(m, 1), random_spd(n, 2)
    product, x, g = (torch.from_numpy(np.linalg.eigvalsh(matrix)) for matrix in (np.kron(a, b), a, b))
    assert float(product[-1]) == pytest.approx(float(x[-1] * g[-1]), rel=1e-12)
    expected = wc.condition_number(x, 1.0) * wc.condition_number(g, 1.0)
    assert wc.condition_number(product, 1.0) == pytest.approx(expected, rel=1e-10)


def test_proposition_1_is_about_the_usual_condition_number_alone() -> None:
    """κ_50% of diag(1, 1/2) ⊗ diag(1, 1/3) is λ_1/λ_2 = 2, and those of the factors are 1."""
    x, g = torch.tensor([1 / 2, 1.0], dtype=torch.float64), torch.tensor([1 / 3, 1.0], dtype=torch.float64)
    product = torch.sort(torch.outer(x, g).reshape(-1)).values
    assert [wc.condition_number(values, 0.5) for values in (x, g, product)] == pytest.approx([1, 1, 2], rel=1e-12)


def test_proposition_1_is_the_second_moment_for_constant_inputs() -> None:
    """M_k = Σx ⊗ Σ∇h is exact then, whatever the labels; else it is an approximation."""
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES)))
    errors = []
    for inputs in (normal(1, 4).repeat(6, 1), normal(6, 4)):
        problem = wc.Problem(model, nn.CrossEntropyLoss(), (inputs, integers(CLASSES, 6)))
        factors = wc.kronecker_factors(problem, labels="data")["0"]
        moment = wc.Fisher(problem, labels="data", layers="0.weight").dense()
        product = torch.kron(factors.g.mean[0], factors.x.mean[0])  # the weight's flat index has the output first
        errors.append(float((product - moment).norm() / moment.norm()))
    assert errors[0] < 1e-12
    assert errors[1] > 1e-2


@pytest.mark.parametrize(("seed", "examples"), [(0, 5), (1, 30)])
def test_equation_8_the_gradient_through_batchnorm(seed: int, examples: int) -> None:
    """∂L/∂h = (∂L/∂s − E ∂L/∂s − E(∂L/∂s · s) s)/σ, unit by unit."""
    h, gradient = 3 * normal(examples, 4, seed=seed) + 1, normal(examples, 4, seed=seed + 5)
    bn = nn.BatchNorm1d(4, eps=1e-30, affine=False, track_running_stats=False)
    s, sigma = bn(h), h.std(0, correction=0)
    expected = (gradient - gradient.mean(0) - (gradient * s).mean(0) * s) / sigma
    (computed,) = torch.autograd.grad(bn(h.requires_grad_()), h, gradient)
    assert_same(computed, expected, 1e-12)


def rectifier(batchnorm: bool) -> nn.Sequential:
    """Four linear layers without bias, ReLU between them; with BN after every linear layer if asked."""
    layers: list[nn.Module] = []
    for k, (width_in, width) in enumerate([(4, 6), (6, 5), (5, 6), (6, CLASSES)]):
        layers.append(nn.Linear(width_in, width, bias=False))
        if batchnorm:
            # ε breaks the invariance under scaling, by its own size
            layers.append(nn.BatchNorm1d(width, eps=1e-30, affine=False))
        if k < 3:
            layers.append(nn.ReLU())
    return seeded(lambda: nn.Sequential(*layers))


def linears(model: nn.Sequential) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_children() if isinstance(module, nn.Linear)}


def passes(model: nn.Sequential, weights: Tensor, batch: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Per linear layer: input x_k, output-gradient ∂L/∂h_k and weight-gradient, with L = ⟨weights, outputs⟩."""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    x = batch
    for module in model.train():
        if isinstance(module, nn.Linear):
            inputs.append(x)
            x = module(x)
            outputs.append(x)
        else:
            x = module(x)
    loss = (weights * x).sum()
    params = [module.weight for module in linears(model).values()]
    gradients = torch.autograd.grad(loss, [*outputs, *params])
    return [x.detach() for x in inputs], list(gradients[: len(outputs)]), list(gradients[len(outputs) :])


def scaled(model: nn.Sequential) -> None:
    with torch.no_grad():
        for alpha, layer in zip(SCALES, linears(model).values(), strict=True):
            layer.weight.mul_(alpha)


def test_theorem_1_scaled_weights_of_a_rectifier_network() -> None:
    """x̂_{k+1} scales by ∏_{i≤k} α_i, ∂L/∂ĥ_k by μ ∏_{i>k} α_i, ∂L/∂Ŵ_k by μ ∏_{i≠k} α_i.

    μ is what the loss makes of the scaled output; for a loss linear in the outputs it is 1.
    """
    model, batch, weights = rectifier(batchnorm=False), normal(7, 4), normal(7, CLASSES, seed=1)
    x, g, w = passes(model, weights, batch)
    scaled(model)
    x_hat, g_hat, w_hat = passes(model, weights, batch)
    for k in range(4):
        assert_same(x_hat[k], math.prod(SCALES[:k]) * x[k], 1e-12)
        assert_same(g_hat[k], math.prod(SCALES[k + 1 :]) * g[k], 1e-12)
        assert_same(w_hat[k], math.prod(SCALES) / SCALES[k] * w[k], 1e-12)


def test_theorem_1_seen_through_the_conditioning_table() -> None:
    """Σx scales by the square of the input's factor, Σ∇h by that of the gradient's; κ does not change.

    Squared error against zero has gradient 2f, which scales with the output: μ = ∏ α_i.
    """
    batch = (normal(40, 4), torch.zeros(40, CLASSES, dtype=torch.float64))
    model = rectifier(batchnorm=False)
    before = wc.conditioning(wc.Problem(model, nn.MSELoss(), batch))
    scaled(model)
    after = wc.conditioning(wc.Problem(model, nn.MSELoss(), batch))
    mu = math.prod(SCALES)
    for k, name in enumerate(linears(model)):
        inputs, gradients = math.prod(SCALES[:k]) ** 2, (mu * math.prod(SCALES[k + 1 :])) ** 2
        assert after[name].x.lambda_max == pytest.approx(inputs * before[name].x.lambda_max, rel=1e-10)
        assert after[name].g.lambda_max == pytest.approx(gradients * before[name].g.lambda_max, rel=1e-10)
        for part, old in ((after[name].x, before[name].x), (after[name].g, before[name].g)):
            assert part.kappa[0.5] == pytest.approx(old.kappa[0.5], rel=1e-8)


def test_theorem_2_batchnorm_undoes_the_scale_of_the_weights() -> None:
    """x̂_k = x_k, ∂L/∂ĥ_k = (1/α_k) ∂L/∂h_k and ∂L/∂Ŵ_k = (1/α_k) ∂L/∂W_k."""
    model, batch, weights = rectifier(batchnorm=True), normal(9, 4), normal(9, CLASSES, seed=1)
    x, g, w = passes(model, weights, batch)
    scaled(model)
    x_hat, g_hat, w_hat = passes(model, weights, batch)
    for k, alpha in enumerate(SCALES):
        assert_same(x_hat[k], x[k], 1e-10)
        assert_same(g_hat[k], g[k] / alpha, 1e-10)
        assert_same(w_hat[k], w[k] / alpha, 1e-10)


def test_theorem_2_in_the_conditioning_table_and_the_fisher_matrix() -> None:
    model, batch = rectifier(batchnorm=True), (normal(40, 4), integers(CLASSES, 40))

    def measured() -> tuple[ConditioningTable, dict[str, float]]:
        problem = wc.Problem(model, nn.CrossEntropyLoss(), batch)
        fisher = {name: wc.spectrum(wc.Fisher(problem, layers=name)).lambda_max for name in linears(model)}
        return wc.conditioning(problem), fisher

    before, fisher_before = measured()
    scaled(model)
    after, fisher_after = measured()
    for alpha, name in zip(SCALES, linears(model), strict=True):
        assert_same(after[name].x.values, before[name].x.values, 1e-9)
        assert_same(after[name].g.values, before[name].g.values / alpha**2, 1e-9)
        assert fisher_after[name] == pytest.approx(fisher_before[name] / alpha**2, rel=1e-9)
