"""λ_max and the largest rate: against the formulas of wei2019 written out, and against random networks.

Measured is the largest eigenvalue of J Jᵀ/N, J the gradients of one output over the weights at N Gaussian inputs, with
the statistics of BatchNorm constant ("detached") or differentiated ("batch").
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from measured import mean_of_samples
from torch import Tensor
from wei2019_recursions import SIGMA_B2 as B2
from wei2019_recursions import SIGMA_W2 as W2
from wei2019_recursions import batchnorm, convolution_terms, rectified_product, vanilla
from zoo import normal

from wellcond.learning_rate.meanfield import Architecture, predict
from wellcond.learning_rate.meanfield.moments import Moments
from wellcond.learning_rate.meanfield.prediction import contributions
from wellcond.learning_rate.meanfield.stages import Variant

VARIANTS: list[Variant] = ["detached", "batch"]
FC = "fc 784-1000-1000-1000-10"
WIDTHS = [784, 1000, 1000, 1000]
CONV = "conv 1x28x28 {} k3 s2 10"
SIDES = [28, 13, 6, 2]


# the formulas of wei2019, for ReLU


@pytest.mark.parametrize(("gamma", "expected"), [(0.1, 3.62), (1.0, 361.5), (3.0, 3254)])
def test_a_dense_network_with_batchnorm_is_the_formula(gamma: float, expected: float) -> None:
    """Differentiated statistics leave only the last term."""
    prediction, terms = predict(FC, gamma, variant="detached"), batchnorm(4, gamma).terms(WIDTHS)
    assert [layer.term for layer in prediction.layers] == pytest.approx(terms, rel=1e-12)
    assert prediction.lambda_max == pytest.approx(sum(terms), rel=1e-12)
    assert prediction.lambda_max == pytest.approx(expected, rel=2e-3)
    trained = predict(FC, gamma)
    assert (trained.variant, [layer.term for layer in trained.layers[:-1]]) == ("batch", [0.0] * 3)
    assert trained.lambda_max == pytest.approx(1000 * gamma**2 / (2 * math.pi), rel=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_batchnorm_all_variants_agree(variant: Variant) -> None:
    prediction = predict(f"{FC} vanilla", variant=variant)
    assert [layer.term for layer in prediction.layers] == pytest.approx(vanilla(4).terms(WIDTHS), rel=1e-12)
    assert prediction.lambda_max == pytest.approx(2234, rel=1e-3)


@pytest.mark.parametrize(("channels", "expected"), [([30, 60, 90], 143.5), ([200, 300, 400], 724)])
@pytest.mark.parametrize("head", ["flatten", "pool"])
def test_convolutions_are_the_formula(channels: list[int], expected: float, head: str) -> None:
    prediction = predict(CONV.format("-".join(map(str, channels))) + f" {head}", variant="detached")
    terms = convolution_terms([1, *channels], SIDES, 1.0, head)
    assert [layer.term for layer in prediction.layers] == pytest.approx(terms, rel=1e-12)
    if head == "flatten":
        assert prediction.lambda_max == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("line", [FC, CONV.format("8-8-8"), "conv 1x9x9 8-8 k3 p1 10 pool", "fc 9-30-30-2 gelu"])
@pytest.mark.parametrize("gamma", [0.3, 2.0])
def test_detached_lambda_max_of_homogeneous_activations_is_as_gamma2(line: str, gamma: float) -> None:
    one, other = (predict(line, g, variant="detached", sigma_b2=0.0).lambda_max for g in (1.0, gamma))
    assert (other / one == pytest.approx(gamma**2, rel=1e-9)) == ("gelu" not in line)


def test_order_parameters() -> None:
    _, second, _, head = predict(FC, 0.7, variant="detached").layers
    q_hat, q_hat_xy = 0.49 / 2, 0.49 / (2 * math.pi)
    assert (second.q_hat, second.q_hat_xy) == pytest.approx((q_hat, q_hat_xy), rel=1e-12)
    assert (second.q, second.q_xy) == pytest.approx((B2 + W2 * q_hat, B2 + W2 * q_hat_xy), rel=1e-12)
    assert second.q_tilde_xy == pytest.approx(batchnorm(4, 0.7).q_tilde_xy[2], rel=1e-12)
    assert (head.q_tilde, head.q_tilde_xy) == (1.0, 1.0)
    assert second.term == pytest.approx(1000 * second.q_hat_xy * second.q_tilde_xy, rel=1e-12)
    # below the last norm, through its statistics: E φ'², less (E φ')², less (E uφ')²
    s2, left = W2 * (1 / 2 - 1 / (2 * math.pi)), 1 / 2 - 1 / 4 - 1 / (2 * math.pi)
    assert predict(FC).layers[2].q_tilde == pytest.approx(W2 / s2 * left, rel=1e-12)


def test_biases_gamma_and_beta_count_where_all_parameters_do() -> None:
    """∂f/∂b has q̃_xy; ∂f/∂β = φ'·g has q̃ above/4 and ∂f/∂γ = u φ'·g has it over 2π."""
    results = {layer.name: layer.term for layer in predict(FC, variant="detached", parameters="all").layers}
    order = batchnorm(4, 1.0)
    for name, term, g in zip(("fc1", "fc2", "fc3", "head"), order.terms(WIDTHS), order.q_tilde_xy[1:], strict=True):
        assert results[name] == pytest.approx(term + g, rel=1e-12)
    for k in (1, 2, 3):
        g = order.q_tilde_xy[k + 1]
        assert results[f"norm{k}"] == pytest.approx(W2 * g * (1 / 4 + 1 / (2 * math.pi)), rel=1e-12)


@pytest.mark.parametrize(("loss", "factor"), [("half-squared", 1.0), ("mse", 0.2), ("cross-entropy", 0.1)])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_losses_and_momentum(loss: Any, factor: float, momentum: float) -> None:
    prediction = predict(FC, 1.0, momentum, "detached", loss=loss)
    expected = factor * sum(batchnorm(4, 1.0).terms(WIDTHS))
    assert prediction.lambda_max == pytest.approx(expected, rel=1e-12)
    assert sum(layer.term for layer in prediction.layers) == pytest.approx(expected, rel=1e-12)
    assert prediction.max_lr == pytest.approx(2 * (1 + momentum) / expected, rel=1e-12)


@pytest.mark.parametrize("line", [FC, "fc 20-30-30-3 tanh vanilla", "conv 2x6x6 4-5 k3 p1 3", "fc 9-8-8-8-2 residual"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_grid_is_its_networks_one_by_one(line: str, variant: Variant) -> None:
    gammas, sigmas = torch.tensor([0.4, 1.0, 2.5], dtype=torch.float64), torch.tensor([1.0, 3.0], dtype=torch.float64)
    grid = predict(line, gammas[:, None], variant=variant, sigma_w2=sigmas)
    assert grid.lambda_max.shape == grid.max_lr.shape == grid.layers[0].term.shape == (3, 2)
    for i, gamma in enumerate(gammas.tolist()):
        for j, sigma in enumerate(sigmas.tolist()):
            one = predict(line, gamma, variant=variant, sigma_w2=sigma)
            assert isinstance(one.lambda_max, float)
            assert float(grid.lambda_max[i, j]) == pytest.approx(one.lambda_max, rel=1e-12)
            for layers in zip(grid.layers, one.layers, strict=True):
                assert float(layers[0].term[i, j]) == pytest.approx(layers[1].term, rel=1e-10, abs=1e-14)
                assert float(layers[0].q_tilde[i, j]) == pytest.approx(layers[1].q_tilde, rel=1e-10)
    widths = predict(FC, width=torch.tensor([100.0, 1000.0])).lambda_max
    assert widths.tolist() == pytest.approx([100 / (2 * math.pi), 1000 / (2 * math.pi)], rel=1e-12)


# random networks


DENSE = "fc 100-250-250-250-1"
WITH_BATCHNORM = ["", "gamma=0.3", "gamma=3", "gelu", "silu gamma=2", "sigmoid", "leaky_relu(0.3)", "residual gelu"]
WITHOUT = ["vanilla", "vanilla tanh", "vanilla erf", "vanilla gelu", "vanilla residual", "ln", "ln tanh"]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "variant", "seeds", "examples", "share"), [
    *((f"{DENSE} {words}", "batch", 2, 60, 0.1) for words in WITH_BATCHNORM),
    *((f"{DENSE} {words}", "detached", 2, 60, 0.1) for words in ("", "gamma=3", "gelu", "residual gelu")),
    *(("fc 100-250-250-250-250-1 residual", variant, 2, 60, 0.1) for variant in VARIANTS),
    *((f"{DENSE} {words}", "batch", 4, 40, None) for words in WITHOUT),
    *((f"conv 2x15x15 120-120 k3 s2 {words}", variant, 2, 40, 0.15) for words, variant in (
        ("p0 1 flatten", "detached"), ("p0 1 pool", "batch"), ("p1 1 flatten", "batch"), ("p1 1 pool", "detached"))),
])  # fmt: skip
def test_random_networks_measure_as_predicted(
    line: str, variant: Variant, seeds: int, examples: int, share: float | None
) -> None:
    """Within 15 %, and each layer's term within a share of λ_max."""
    result = mean_of_samples(line, variant, seeds, examples)
    prediction = predict(line, variant=variant, examples=examples)
    assert result.lambda_max == pytest.approx(prediction.lambda_max, rel=0.15)
    if share is not None:
        terms = [layer.term for layer in prediction.layers]
        assert result.terms == pytest.approx(terms, abs=share * prediction.lambda_max)


@pytest.mark.slow
def test_padding_that_is_ignored_is_far_off() -> None:
    """With position-independent moments the flattened network above comes out a third lower through the statistics."""
    line = "conv 1x14x14 60-80-100 k3 s2 p1 1"
    result = mean_of_samples(line, "batch", seeds=2, examples=40)
    ignored, _ = contributions(Architecture.parse(line).stages(), Moments.independent(), "batch")
    assert float(ignored) < 0.75 * result.lambda_max


def test_finitely_many_examples() -> None:
    """One adds what it shares with itself; N without their mean have a correlation of −1/(N−1), by eq. 21."""
    line = f"{FC} vanilla"
    few, many, order = predict(line, examples=1), predict(line, examples=10**9), predict(line)
    own = sum(n * layer.q_hat * layer.q_tilde for n, layer in zip(WIDTHS, order.layers, strict=True))
    assert few.lambda_max == pytest.approx(own, rel=1e-12)
    assert many.lambda_max == pytest.approx(order.lambda_max, rel=1e-6)
    assert predict(FC, examples=10).layers[-1].q_hat_xy == pytest.approx(rectified_product(1, -1 / 9), rel=1e-12)


@pytest.mark.parametrize("examples", [5, 50])
@pytest.mark.parametrize("line", [FC, "conv 1x9x9 4-5 k3 p1 3", "conv 1x9x9 4-5 k3 3 pool"])
def test_below_every_batchnorm_the_gradients_of_the_batch_sum_to_zero(line: str, examples: int) -> None:
    """Also of few examples: what the mean over all pairs has of β of the norm below is then nothing."""
    hidden = predict(line, examples=examples, parameters="all").layers
    biases = [
        wide.term - narrow.term
        for wide, narrow in zip(hidden[:-1:2], predict(line, examples=examples).layers[:-1], strict=True)
    ]
    assert max(map(abs, biases)) < 1e-12 * hidden[-1].term


@pytest.mark.parametrize(
    ("line", "x"),
    [
        ("fc 100-300-10 vanilla", (normal(80, 100) + normal(100, seed=1)) * math.sqrt(0.5)),
        ("conv 2x6x6 8-8 k3 3", normal(40, 2, 6, 6) + 3 * normal(2, 6, 6, seed=1)),
    ],
)
def test_given_inputs_that_are_alike_raise_the_first_term(line: str, x: Tensor) -> None:
    """x = m + noise: q̂⁰_xy is the mean square of what they share, and the first layer has a term."""
    products = x.flatten(1) @ x.flatten(1).T
    shared = float(products.sum() - products.trace()) / (len(x) * (len(x) - 1) * x[0].numel())
    first, *_ = predict(line, inputs=x).layers
    assert first.q_hat_xy == pytest.approx(shared, rel=1e-12)
    if line.startswith("fc"):
        assert first.term == pytest.approx(100 * shared * first.q_tilde_xy, rel=0.05)
