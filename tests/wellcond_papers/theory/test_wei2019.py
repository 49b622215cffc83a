"""The mean-field recursions of wei2019, against exact integrals and against wide random networks, in float64.

Weights N(0, σ_w²/fan_in), biases N(0, σ_b²), ReLU, one linear output. h^l are activations and δ^l = ∂f/∂z^l;
q, q̂, q̃ are the mean squares of z, h and δ over the units, `_xy` the mean products over two different inputs.
A *detached* BN takes its statistics for constants; a *batch* one is differentiated through them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from wei2019_means import mean_product, mean_square, term
from wei2019_recursions import (
    SIGMA_B2,
    SIGMA_W2,
    batchnorm,
    both_positive,
    rectified_product,
    vanilla,
)
from zoo import normal

import wellcond as wc
from wellcond.learning_rate.meanfield.prediction import LayerContribution
from wellcond_papers.papers.wei2019.printed import printed_contributions

WIDE = (784, 1000, 1000, 1000, 1)
NARROW = (100, 200, 200, 200, 1)
HIDDEN = range(1, 4)
"""The hidden layers of both networks."""


# random networks


@dataclass(frozen=True)
class Passes:
    """Of one random network: inputs h^{l−1}, pre-activations z^l and δ^l of the layers l = 1 to L, (N, units) each."""

    h: list[Tensor]
    z: list[Tensor]
    delta: list[Tensor]

    def gram(self, k: int) -> Tensor:
        """⟨∂f(x)/∂W^l, ∂f(y)/∂W^l⟩ / N: the dual of this layer's Fisher matrix of one output, (N, N)."""
        h, delta = self.h[k - 1], self.delta[k - 1]
        return (h @ h.T) * (delta @ delta.T) / len(h)

    def bias_gram(self, k: int) -> Tensor:
        return self.delta[k - 1] @ self.delta[k - 1].T / len(self.h[0])

    def norm_grams(self, k: int, gamma: float) -> tuple[Tensor, Tensor]:
        """The same of this layer's β and γ: BN's output is γu + β with u = (z − μ)/s, so that δ = (γ/s) ∂f/∂β."""
        scale, mean = torch.std_mean(self.z[k - 1], 0, correction=0)
        by_beta = scale / gamma * self.delta[k - 1]
        by_gamma = by_beta * (self.z[k - 1] - mean) / scale
        return by_beta @ by_beta.T / len(by_beta), by_gamma @ by_gamma.T / len(by_beta)


@functools.cache
def passes(widths: tuple[int, ...], gamma: float | None, seed: int = 0, examples: int = 400) -> Passes:
    """γ = None: without BN; else with a detached one, where f(x) depends on x alone."""
    h = [normal(examples, widths[0], seed=seed + 100).requires_grad_()]
    z: list[Tensor] = []
    for k, (n_in, n_out) in enumerate(pairwise(widths), start=1):
        weight = normal(n_out, n_in, seed=10 * seed + k) * math.sqrt(SIGMA_W2 / n_in)
        z.append(h[-1] @ weight.T + normal(n_out, seed=10 * seed + k + 50) * math.sqrt(SIGMA_B2))
        u = z[-1]
        if gamma is not None:
            u = gamma * (u - u.detach().mean(0)) / u.detach().std(0, correction=0)
        h.append(torch.relu(u))
    delta = torch.autograd.grad(z[-1].sum(), z)
    return Passes([x.detach() for x in h[:-1]], [x.detach() for x in z], list(delta))


def network(widths: tuple[int, ...], gamma: float, seed: int = 0) -> nn.Sequential:
    modules: list[nn.Module] = []
    for k, (n_in, n_out) in enumerate(pairwise(widths), start=1):
        linear = nn.Linear(n_in, n_out).double()
        linear.weight.data = normal(n_out, n_in, seed=10 * seed + k) * math.sqrt(SIGMA_W2 / n_in)
        linear.bias.data = normal(n_out, seed=10 * seed + k + 50) * math.sqrt(SIGMA_B2)
        bn = nn.BatchNorm1d(n_out, eps=1e-30).double()
        nn.init.constant_(bn.weight, gamma)
        modules += [linear, bn, nn.ReLU()]
    return nn.Sequential(*modules[:-2])


def lambda_max(model: nn.Sequential, x: Tensor, statistics: str) -> float:
    """Of the Fisher matrix of the weights, E ∇f∇fᵀ: half the Gauss-Newton matrix of the squared error.

    Detached statistics are `batchnorm="running"` with the batch's own as the running ones.
    """
    h = x
    for module in model:
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean, module.running_var = h.mean(0).detach(), h.var(0, correction=0).detach()
        h = module(h)
    mode = {"detached": "running", "batch": "batch"}[statistics]
    problem = wc.Problem(model, nn.MSELoss(), (x, torch.zeros(len(x), 1, dtype=x.dtype)), batchnorm=mode)
    weights = [f"{name}.weight" for name, module in model.named_children() if isinstance(module, nn.Linear)]
    return float(wc.eigenvalues(wc.GGN(problem, layers=weights), k=1, tol=1e-10).values[-1]) / 2


def printed(widths: tuple[int, ...], gamma: float) -> tuple[float, list[LayerContribution]]:
    """λ_max as printed, and what each layer adds."""
    lambda_max, layers = printed_contributions(f"fc {'-'.join(map(str, widths))}", gamma)
    return float(lambda_max), layers


# exact integrals


CORRELATIONS = [-0.9, -0.3, 0.0, 0.4, 0.95]


def half_line(f: Callable[[Tensor], Tensor], upper: float = 12.0) -> float:
    """∫_0^∞ f(u) φ(u) du by Gauss-Legendre; what lies above 12 is below 1e-30."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    u = torch.from_numpy(upper * (nodes + 1) / 2)
    density = torch.exp(-u.square() / 2) / math.sqrt(2 * math.pi)
    return float((torch.from_numpy(weights) * density * f(u)).sum()) * upper / 2


@pytest.mark.parametrize("c", CORRELATIONS)
@pytest.mark.parametrize("q", [0.2, 3.0])
def test_equation_21_is_the_mean_product_of_two_rectified_gaussians(c: float, q: float) -> None:
    """Given u, v = cu + √(1−c²)w, and E relu(a + sw) = aΦ(a/s) + sφ(a/s)."""
    s = math.sqrt(1 - c**2)

    def given(u: Tensor) -> Tensor:
        a = c * u
        return u * (a * torch.special.ndtr(a / s) + s * torch.exp(-((a / s) ** 2) / 2) / math.sqrt(2 * math.pi))

    assert rectified_product(q, c) == pytest.approx(q * half_line(given), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("c", CORRELATIONS)
def test_equation_22_is_the_probability_that_two_gaussians_are_positive(c: float) -> None:
    exact = half_line(lambda u: torch.special.ndtr(c * u / math.sqrt(1 - c**2)))
    assert both_positive(c) == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_equations_54_and_62_rectified_normalized_gaussians(gamma: float) -> None:
    """q̂ = γ²/2 and, for two independent inputs, q̂_xy = γ²/2π; eqs. 52 and 53 have a σ_w² too many."""
    square, mean = half_line(lambda u: (gamma * u) ** 2), half_line(lambda u: gamma * u)
    assert square == pytest.approx(gamma**2 / 2, rel=1e-12)
    assert mean**2 == pytest.approx(gamma**2 / (2 * math.pi), rel=1e-12)
    assert rectified_product(gamma**2, 0.0) == pytest.approx(mean**2, rel=1e-12)
    assert both_positive(0.0) == 1 / 4  # the 4 of eq. 25


# forward


def test_base_case_of_independent_normalized_inputs_is_one_and_zero() -> None:
    """q̂⁰ = 1 and q̂⁰_xy = 0, as in claim 6.1; section 3.1.1 prints them swapped."""
    x = normal(400, 784)
    assert mean_square(x) == pytest.approx(1.0, abs=0.01)
    assert mean_product(x) == pytest.approx(0.0, abs=0.01)


def test_base_case_as_printed_contradicts_cauchy_schwarz() -> None:
    """|q̂_xy| ≤ q̂ for any data, and 1 > 0."""
    for x in (normal(50, 20), normal(50, 20).abs(), torch.ones(50, 20, dtype=torch.float64)):
        assert abs(mean_product(x)) <= mean_square(x) * (1 + 1e-12)


@pytest.mark.slow
def test_equations_20_to_22_hold_in_a_wide_vanilla_network() -> None:
    order, measured = vanilla(4), passes(WIDE, gamma=None)
    for k in HIDDEN:
        assert mean_square(measured.z[k - 1]) == pytest.approx(order.q[k], rel=0.1)
        assert mean_product(measured.z[k - 1]) == pytest.approx(order.q_xy[k], rel=0.1)
        assert mean_square(measured.h[k]) == pytest.approx(order.q_hat[k], rel=0.1)
        assert mean_product(measured.h[k]) == pytest.approx(order.q_hat_xy[k], rel=0.1)
        units = WIDE[k]
        assert units * mean_square(measured.delta[k - 1]) == pytest.approx(order.q_tilde[k], rel=0.1)
        assert units * mean_product(measured.delta[k - 1]) == pytest.approx(order.q_tilde_xy[k], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_equations_23_and_24_hold_in_a_wide_network_with_batchnorm(gamma: float) -> None:
    order, measured = batchnorm(4, gamma), passes(WIDE, gamma)
    for k in HIDDEN:
        assert mean_square(measured.z[k - 1]) == pytest.approx(order.q[k], rel=0.1)
        assert mean_product(measured.z[k - 1]) == pytest.approx(order.q_xy[k], rel=0.1)
        assert mean_square(measured.h[k]) == pytest.approx(gamma**2 / 2, rel=0.02)
        assert mean_product(measured.h[k]) == pytest.approx(gamma**2 / (2 * math.pi), rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("m", "units"), [(16, 400_000), (64, 100_000)])
def test_after_equation_62_m_examples_make_an_error_of_order_1_over_m(m: int, units: int) -> None:
    """Over all pairs it is (¼ − 1/2π)γ²/m. Pairs x = y, of which the source speaks, add (½ − 1/2π)γ²/m; those of
    different inputs lose γ²/4m, since the m outputs of BN add up to 0."""
    z, gamma = normal(m, units), 3.0
    h = torch.relu(gamma * (z - z.mean(0)) / z.std(0, correction=0))
    limit, different, all_pairs = gamma**2 / (2 * math.pi), mean_product(h), float(h.mean(0).square().mean())
    assert all_pairs == pytest.approx(different + (mean_square(h) - different) / m, rel=1e-12)
    assert m * (all_pairs - limit) == pytest.approx((1 / 4 - 1 / (2 * math.pi)) * gamma**2, rel=0.1)
    assert m * (different - limit) == pytest.approx(-(gamma**2) / 4, rel=0.1)


# the variance that BN divides by


@pytest.mark.parametrize(("seed", "units"), [(0, 3), (1, 40)])
def test_the_variance_is_the_mean_square_less_the_mean_product(seed: int, units: int) -> None:
    """Exact for any data: the average over all pairs of ⟨z(x), z(y)⟩ is ‖E z‖²."""
    z = normal(17, units, seed=seed) @ normal(units, units, seed=seed + 1) + normal(units, seed=seed + 2)
    all_pairs = float((z @ z.T).mean()) / units
    assert float(z.var(0, correction=0).mean()) == pytest.approx(mean_square(z) - all_pairs, rel=1e-12)


@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_the_variance_is_q_less_q_xy_and_not_q_as_printed(gamma: float) -> None:
    """The part of z that all inputs share, the bias included, is the mean that BN takes away first."""
    order, measured = batchnorm(4, gamma), passes(WIDE, gamma)
    for k in HIDDEN:
        s2 = float(measured.z[k - 1].var(0, correction=0).mean())
        assert s2 == pytest.approx(order.q[k] - order.q_xy[k], rel=0.05)
        assert order.q[k] > 1.2 * s2


# backward


@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_equation_25_holds_with_the_variance_and_not_as_printed(gamma: float) -> None:
    corrected, measured, (_, layers) = batchnorm(4, gamma), passes(WIDE, gamma), printed(WIDE, gamma)
    for k in HIDDEN:
        q_tilde, q_tilde_xy = (WIDE[k] * mean(measured.delta[k - 1]) for mean in (mean_square, mean_product))
        assert q_tilde == pytest.approx(corrected.q_tilde[k], rel=0.15)
        assert q_tilde_xy == pytest.approx(corrected.q_tilde_xy[k], rel=0.15)
        assert q_tilde_xy > 1.15 * float(layers[k - 1].q_tilde_xy)


@pytest.mark.parametrize("gamma", [0.1, 3.0])
def test_below_every_batchnorm_the_output_gradients_sum_to_zero(gamma: float) -> None:
    """Exactly, through the statistics: adding a constant to z changes nothing. With detached ones they do not."""
    model, x = network((20, 30, 30, 1), gamma).train(), normal(25, 20)
    h, z = x, []
    for module in model:
        if isinstance(module, nn.BatchNorm1d):
            z.append(h)
        h = module(h)
    probe = normal(25, 1, seed=9)
    for gradient in torch.autograd.grad((probe * h).sum(), z):
        assert float(gradient.sum(0).abs().max()) < 1e-12 * float(gradient.abs().max())
    detached = passes((20, 30, 30, 1), gamma, examples=25)
    for delta in detached.delta[:-1]:
        assert float(delta.sum(0).norm()) > 0.1 * float(delta.norm())


# the largest eigenvalue


@pytest.mark.parametrize(("examples", "parameters"), [(6, 20), (30, 8)])
def test_equation_147_bounds_lambda_max_from_both_sides(examples: int, parameters: int) -> None:
    """Eqs. 148 to 153: with the Fisher matrix's dual, the mean row sum bounds from below and the trace from above."""
    B = normal(examples, parameters) + 0.5
    fisher, dual = B.T @ B / examples, B @ B.T / examples
    largest = float(torch.linalg.eigvalsh(fisher)[-1])
    assert float(torch.linalg.eigvalsh(dual)[-1]) == pytest.approx(largest, rel=1e-12)
    below, above = float(dual.sum()) / examples, float(dual.diagonal().sum())
    assert 0 < below <= largest <= above
    alike = torch.ones(examples, 1, dtype=torch.float64) * B[0]  # both bounds are attained where all inputs agree
    dual = alike @ alike.T / examples
    assert float(dual.sum()) / examples == pytest.approx(float(torch.linalg.eigvalsh(dual)[-1]), rel=1e-12)


def test_claim_3_1_the_lower_bound_is_close_for_a_wide_vanilla_network() -> None:
    measured = passes(WIDE, gamma=None)
    gram = sum(measured.gram(k) for k in range(1, 5))
    largest = float(torch.linalg.eigvalsh(gram)[-1])
    assert float(gram.sum()) / len(gram) <= largest
    assert largest == pytest.approx(sum(vanilla(4).terms(WIDE)), rel=0.1)


@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_claim_3_1_with_detached_statistics_needs_the_variance(gamma: float) -> None:
    """Within 10 % with s² = q − q_xy, layer by layer within 15 %; the printed s² = q is 28 to 57 % too low."""
    measured = passes(WIDE, gamma)
    grams = [measured.gram(k) for k in range(1, 5)]
    largest = float(torch.linalg.eigvalsh(sum(grams))[-1])
    corrected = batchnorm(4, gamma).terms(WIDE)
    assert largest == pytest.approx(sum(corrected), rel=0.1)
    assert printed(WIDE, gamma)[0] < 0.8 * largest
    for gram, f in zip(grams[1:], corrected[1:], strict=True):
        assert term(gram) == pytest.approx(f, rel=0.15)


@pytest.mark.slow
def test_claim_3_1_scales_exactly_with_gamma_squared_and_not_as_printed() -> None:
    """h is proportional to γ, and γ/s of the layers above the first does not depend on it: so is every gradient.

    With s² = q − q_xy the sum of f_l is too; with s² = q the bias makes it something else.
    """
    x = normal(150, NARROW[0], seed=100)
    measured = {gamma: lambda_max(network(NARROW, gamma), x, "detached") for gamma in (0.1, 3.0)}
    assert measured[3.0] / measured[0.1] == pytest.approx(900.0, rel=1e-8)
    corrected = {gamma: sum(batchnorm(4, gamma).terms(NARROW)) for gamma in (0.1, 3.0)}
    assert corrected[3.0] / corrected[0.1] == pytest.approx(900.0, rel=1e-12)
    assert printed(NARROW, 3.0)[0] / printed(NARROW, 0.1)[0] > 1400


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_claim_3_1_through_the_statistics_leaves_the_last_layer_alone(gamma: float) -> None:
    """λ_max = f_L = Nγ²/2π within 10 %, for `batchnorm="batch"`; all the f_l of the layers below are canceled."""
    x = normal(300, NARROW[0], seed=100)
    last = NARROW[-2] * gamma**2 / (2 * math.pi)
    batch, detached = (lambda_max(network(NARROW, gamma), x, statistics) for statistics in ("batch", "detached"))
    assert batch == pytest.approx(last, rel=0.1)
    assert detached > 1.8 * batch


def test_claim_3_1_leaves_out_biases_that_matter_for_a_small_gamma() -> None:
    """Eq. 158 drops the biases as N times smaller; they are N q̂_xy = Nγ²/2π times smaller: 2/5 of all at γ = 0.1."""
    order, measured = batchnorm(4, 0.1), passes(WIDE, 0.1)
    largest = float(torch.linalg.eigvalsh(sum(measured.gram(k) + measured.bias_gram(k) for k in range(1, 5)))[-1])
    weights = sum(order.terms(WIDE))
    assert largest == pytest.approx(weights + sum(order.q_tilde_xy[1:]), rel=0.1)
    assert largest > 1.5 * weights


@pytest.mark.parametrize("gamma", [0.1, 1.0, 3.0])
def test_equation_157_the_terms_of_gamma_and_beta_need_not_be_small(gamma: float) -> None:
    """σ_w² q̃_xy^{l+1} times ¼ for β and 1/2π for γ. Eq. 158 drops them as N times smaller than the weights' term: that
    of β is Nγ⁴/2πs² times smaller, which is 2.3 times at γ = 0.1 and N = 1000."""
    order, measured = batchnorm(4, gamma), passes(WIDE, gamma)
    for k in HIDDEN:
        back = SIGMA_W2 * order.q_tilde_xy[k + 1]
        for gram, expected in zip(measured.norm_grams(k, gamma), (back / 4, back / (2 * math.pi)), strict=True):
            assert term(gram) == pytest.approx(expected, rel=0.15)
    of_weights, of_beta = term(measured.gram(2)), term(measured.norm_grams(2, gamma)[0])
    smaller = WIDE[1] * gamma**4 / (2 * math.pi * (order.q[2] - order.q_xy[2]))
    assert of_weights / of_beta == pytest.approx(smaller, rel=0.15)
    assert (of_weights / of_beta < WIDE[1] / 100) == (gamma == 0.1)
