"""Moments of given examples, against wide random layers and against the gradients of whole networks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from measured import sample
from torch import Tensor
from zoo import normal

from wellcond.learning_rate.meanfield.architecture import Architecture
from wellcond.learning_rate.meanfield.gaussian import PiecewiseLinear, Smooth
from wellcond.learning_rate.meanfield.gram import Gram, StatisticsStep
from wellcond.learning_rate.meanfield.moments import Kernel, Moments, float64
from wellcond.learning_rate.meanfield.stages import Affine, Nonlinearity, Residual, Stage, Variant, visits

RELU = PiecewiseLinear(0.0)


def unlike_examples(count: int = 12, features: int = 20) -> Tensor:
    """Examples with a common mean, two strong directions, and different sizes."""
    x = normal(count, features) + 0.7 + normal(count, 2, seed=1) @ normal(2, features, seed=2)
    return x * torch.linspace(0.5, 1.5, count, dtype=torch.float64).unsqueeze(1)


def terms(stages: Sequence[Stage], start: Kernel, variant: Variant = "batch") -> list[Any]:
    result, _ = visits(stages, start, start.of_output(), variant)
    return [term for visit in result for term in visit.stage.terms(visit.inputs, visit.gradient)]


def top(stages: Sequence[Stage], start: Kernel, variant: Variant = "batch") -> Tensor:
    return functools.reduce(operator.add, terms(stages, start, variant)).top()


def slopes_of(activation: PiecewiseLinear | Smooth, z: Tensor) -> Tensor:
    """φ' by automatic differentiation."""
    return torch.func.vmap(torch.func.grad(activation))(z.flatten()).view_as(z)


def dense(widths: Sequence[int], norm: str, gamma: float = 1.0) -> list[Stage]:
    stages: list[Stage] = []
    for k, n in enumerate(widths[:-1]):
        stages.append(Affine(f"fc{k}", float64(float(n)), float64(2.0), float64(0.5)))
        if k < len(widths) - 2:
            stages.append(Nonlinearity(f"norm{k}", RELU, norm, float64(gamma)))  # type: ignore[arg-type]
    return stages


# the algebra


def test_products_inverse_sizes_and_top_are_those_of_the_examples() -> None:
    x = unlike_examples()
    products = torch.tensor([[float((a * b).sum() / 20) for b in x] for a in x], dtype=torch.float64)
    root = products.diagonal().sqrt()
    for result, expected in (
        (Gram.of(x.view(12, 4, 5)).matrix, products),
        (Gram.of(x).inverse_size().matrix, 1 / torch.outer(root, root)),
        (Gram.of(x).top(), torch.linalg.matrix_norm(x, 2) ** 2 / (20 * 12)),
    ):
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [RELU, PiecewiseLinear(0.2), Smooth("tanh", torch.tanh)])
def test_a_wide_random_layer_has_the_moments_of_the_algebra(activation: PiecewiseLinear | Smooth) -> None:
    x, units = unlike_examples(5), 400_000
    z = x @ normal(20, units, seed=3) * (1.5 / 20) ** 0.5 + 0.3**0.5 * normal(1, units, seed=4)
    slope = slopes_of(activation, z)
    k = Gram.of(x).affine(float64(1.5), float64(0.3))
    for got, units_of in (
        (k, z),
        (k.expected(activation.product), activation(z)),
        (k.expected(activation.slopes), slope),
        (k.expected(activation.weighted_slopes), z * slope),
    ):
        measured = units_of @ units_of.mT / units
        # 400 000 units: a standard error of some 0.3 % of the largest entry
        assert (got.matrix - measured).abs().max() < 0.012 * measured.abs().max()


def unit_samples(k: Tensor, units: int = 400_000) -> Tensor:
    """(N, units) of N(0, k)."""
    eigenvalues, vectors = torch.linalg.eigh(k)
    return (vectors * eigenvalues.clamp(min=0).sqrt()) @ normal(len(k), units, seed=5)


@pytest.mark.slow
def test_units_are_standardized_each_by_its_own_variance() -> None:
    """Against 400 000 units, whose standard error is below 0.5 % of the largest entry; E s² is off by 30 %."""
    k = Gram.of(unlike_examples())
    u, variance = k.centered()
    z = unit_samples(k.matrix)
    z = z - z.mean(0)
    s2 = z.square().mean(0)
    measured = (z / s2) @ z.mT / z.shape[1]
    assert float(1 / variance) == pytest.approx(float((1 / s2).mean()), rel=0.01)
    assert float(1 / variance) > 1.1 / float(s2.mean())
    assert (u.matrix / variance - measured).abs().max() < 0.01 * measured.abs().max()
    torch.testing.assert_close(u.mean_square(), variance, rtol=1e-6, atol=0)


def test_few_examples_have_the_mean_of_the_variances() -> None:
    x = unlike_examples(4)
    u, variance = Gram.of(x).centered()
    centered = x - x.mean(0)
    torch.testing.assert_close(u.matrix, centered @ centered.mT / 20, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(variance, centered.square().mean(), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("activation", "gamma"), [(RELU, 1.0), (PiecewiseLinear(0.2), 1.7), (Smooth("tanh", torch.tanh), 1.7)]
)
def test_the_mixing_of_examples_is_that_of_gaussian_units(activation: PiecewiseLinear | Smooth, gamma: float) -> None:
    """E[φ'φ'ᵀ ∘ P Θ P] over 400 000 units u ~ N(0, U), with P written out."""
    centered = Gram(torch.eye(12, dtype=torch.float64) - 1 / 12).matrix
    u_moments = centered @ Gram.of(unlike_examples()).matrix @ centered
    u_moments = u_moments / u_moments.diagonal().mean()
    theta = Gram.of(unlike_examples(12, 7)).matrix
    u = unit_samples(u_moments)
    slope = slopes_of(activation, gamma * u)
    # P Θ P = HΘH − u (HΘu)ᵀ/N − (HΘu) uᵀ/N + (uᵀΘu) u uᵀ/N², unit by unit
    v = centered @ theta @ u / 12
    share = (u * (theta @ u)).sum(0) / 144
    cross = (slope * u) @ (slope * v).mT / u.shape[1]
    expected = (slope @ slope.mT / u.shape[1]) * (centered @ theta @ centered)
    expected = expected - cross - cross.mT + (slope * u * share) @ (slope * u).mT / u.shape[1]
    step = StatisticsStep(gamma**2 * u_moments, activation, float64(gamma**2))
    assert (step(theta) - expected).abs().max() < 0.01 * expected.abs().max()


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_shares_of_layers_add_up_to_the_top(norm: str) -> None:
    every = terms(dense([20, 50, 50, 1], norm), Gram.of(unlike_examples()))
    total = functools.reduce(operator.add, every)
    torch.testing.assert_close(sum(term.share_of(total) for term in every), total.top(), rtol=1e-10, atol=0)
    assert total.top() < sum(term.top() for term in every) + 1e-9


def test_a_grid_of_networks_is_each_of_its_networks() -> None:
    start, gammas = Gram.of(unlike_examples()), torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)
    stages = dense([20, 50, 50, 1], "batch")
    grid = [Nonlinearity(s.name, RELU, "batch", gammas) if isinstance(s, Nonlinearity) else s for s in stages]
    single = [top(dense([20, 50, 50, 1], "batch", float(gamma)), start) for gamma in gammas]
    torch.testing.assert_close(top(grid, start), torch.stack(single), rtol=1e-10, atol=0)


@pytest.mark.slow
def test_of_independent_inputs_it_approaches_two_numbers() -> None:
    start = Gram.of(normal(400, 20_000))
    for norm in ("none", "batch", "layer"):
        stages = dense([784, 1000, 1000, 1], norm)
        # what 400 examples have in common with themselves adds some (same − pair)/400
        scalars = top(stages, Moments.independent(), "detached")
        torch.testing.assert_close(top(stages, start, "detached"), scalars, rtol=0.03, atol=0)


# a norm that is differentiated through its statistics


def test_a_sum_over_examples_has_no_gradient_before_a_batch_norm() -> None:
    """The sum of γ u over the batch is constant, whatever the weights before it."""
    below, norm, head = dense([20, 50, 1], "batch", 1.5)
    term, _ = terms([below, replace(norm, activation=PiecewiseLinear(1.0)), head], Gram.of(unlike_examples()))
    assert term.value.sum((-1, -2)).abs() < 1e-10 * term.value.abs().sum()


def test_ways_that_part_and_meet_again_are_walked_once() -> None:
    """40 blocks: walked one by one they would be 2⁴⁰ ways."""
    block = [Nonlinearity("norm", RELU, "batch", float64(1.0)), Affine("fc", float64(50.0), float64(0.1), float64(0.0))]
    assert top([Residual(block) for _ in range(40)], Gram.of(unlike_examples())).isfinite()


@pytest.mark.parametrize("words", ["", "residual"])
@pytest.mark.parametrize(
    ("norm", "variant"), [("vanilla", "batch"), ("ln", "batch"), ("bn", "detached"), ("bn", "batch")]
)
def test_lambda_max_of_unlike_examples_is_that_of_their_gradients(norm: str, variant: Variant, words: str) -> None:
    """Within 15 % at width 300, much of it of one draw of the weights."""
    x, net = unlike_examples(24, 60), Architecture.parse(f"fc 60-300-300-300-1 {norm} {words}")
    assert float(top(net.stages(), Gram.of(x), variant)) == pytest.approx(sample(net, variant, x).lambda_max, rel=0.15)


def test_two_numbers_miss_what_strong_directions_add_under_a_batch_norm() -> None:
    x, net = unlike_examples(24, 60), Architecture.parse("fc 60-300-300-300-1")
    start = Moments(*(k.view(1, 1) for k in Gram.of(x).same_and_pair()))
    assert top(net.stages(), start) < 0.7 * sample(net, "batch", x).lambda_max
