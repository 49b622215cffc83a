"""λ_max and the largest rate: against the formulas of wei2019 written out, and against random networks.

Measured is the largest eigenvalue of J Jᵀ/N, J the gradients of one output over the weights at N Gaussian inputs, with
the statistics of BatchNorm constant ("detached") or differentiated ("batch").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from wei2019_recursions import SIGMA_B2 as B2
from wei2019_recursions import SIGMA_W2 as W2
from wei2019_recursions import batchnorm, convolution_terms, vanilla
from zoo import normal

import wellcond as wc
from wellcond.errors import InvalidProblem, Unsupported, WellcondError
from wellcond.meanfield import Architecture, predict
from wellcond.meanfield.moments import Moments
from wellcond.meanfield.prediction import contributions
from wellcond.meanfield.stages import Variant

VARIANTS: list[Variant] = ["detached", "batch"]
FC = "fc 784-1000-1000-1000-10"
WIDTHS = [784, 1000, 1000, 1000]
CONV = "conv 1x28x28 {} k3 s2 10"
SIDES = [28, 13, 6, 2]
GAMMAS = [0.1, 1.0, 3.0]


# the formulas of wei2019, for ReLU


@pytest.mark.parametrize(("gamma", "expected"), [(0.1, 3.62), (1.0, 361.5), (3.0, 3254)])
def test_a_dense_network_with_batchnorm_is_the_formula(gamma: float, expected: float) -> None:
    prediction, terms = predict(FC, gamma, variant="detached"), batchnorm(4, gamma).terms(WIDTHS)
    assert [layer.term for layer in prediction.layers] == pytest.approx(terms, rel=1e-12)
    assert prediction.lambda_max == pytest.approx(sum(terms), rel=1e-12)
    assert prediction.lambda_max == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_differentiated_statistics_leave_only_the_last_term(gamma: float) -> None:
    prediction = predict(FC, gamma)
    assert prediction.variant == "batch"
    assert prediction.lambda_max == pytest.approx(1000 * gamma**2 / (2 * math.pi), rel=1e-12)
    assert [layer.term for layer in prediction.layers[:-1]] == [0.0] * 3


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
def test_detached_lambda_max_scales_with_gamma_squared_where_the_activation_is_homogeneous(
    line: str, gamma: float
) -> None:
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


def test_differentiated_statistics_take_from_a_gradient_its_mean_and_what_goes_along_with_the_signal() -> None:
    """q̃ = (γ²σ_w²/s²)(1/2 − 1/4 − 1/2π) below the last norm: E φ'², less (E φ')², less (E uφ')²."""
    s2 = W2 * (1 / 2 - 1 / (2 * math.pi))
    assert predict(FC).layers[2].q_tilde == pytest.approx(W2 / s2 * (1 / 2 - 1 / 4 - 1 / (2 * math.pi)), rel=1e-12)


def test_biases_gamma_and_beta_count_where_all_parameters_do() -> None:
    """∂f/∂b has q̃_xy; ∂f/∂β = φ'·g has q̃ above/4 and ∂f/∂γ = u φ'·g has it over 2π."""
    found = {layer.name: layer.term for layer in predict(FC, variant="detached", parameters="all").layers}
    order = batchnorm(4, 1.0)
    for name, term, g in zip(("fc1", "fc2", "fc3", "head"), order.terms(WIDTHS), order.q_tilde_xy[1:], strict=True):
        assert found[name] == pytest.approx(term + g, rel=1e-12)
    for k in (1, 2, 3):
        g = order.q_tilde_xy[k + 1]
        assert found[f"norm{k}"] == pytest.approx(W2 * g * (1 / 4 + 1 / (2 * math.pi)), rel=1e-12)


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


def test_widths_may_be_a_grid_too() -> None:
    found = predict(FC, width=torch.tensor([100.0, 1000.0])).lambda_max
    assert found.tolist() == pytest.approx([100 / (2 * math.pi), 1000 / (2 * math.pi)], rel=1e-12)


# random networks

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "leaky_relu(0.3)": lambda z: F.leaky_relu(z, 0.3),
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
}


@dataclass(frozen=True)
class Sample:
    """λ_max, and ‖E ∇f‖² of the weights of every layer: their term of the Gram matrix, averaged over all its pairs."""

    lambda_max: float
    terms: list[float]


def sample(net: Architecture, detached: bool, seed: int, examples: int) -> Sample:
    def norm(z: Tensor) -> Tensor:
        if net.norm == "none":
            return z
        dims = (0, *range(2, z.dim())) if net.norm == "batch" else tuple(range(1, z.dim()))
        constant = z.detach() if detached and net.norm == "batch" else z
        variance, mean = torch.var_mean(constant, dims, correction=0, keepdim=True)
        return float(net.gamma) * (z - mean) / variance.sqrt()

    phi = ACTIVATIONS[str(net.activation)]
    x, weights = normal(examples, *net.input, seed=1000 * seed).float(), []
    z = x
    for k, units in enumerate((*net.hidden, 1)):
        is_head = k == len(net.hidden)
        h = phi(norm(z)) if k else x
        if is_head and net.is_convolutional:
            h = h.flatten(1) if net.head == "flatten" else h.mean((2, 3))
        shape = [int(units), h.shape[1], *[net.kernel] * (2 if net.is_convolutional and not is_head else 0)]
        weight = normal(*shape, seed=1000 * seed + 2 * k + 1).float()
        if is_head:  # few weights, whose mean square would scatter all that is measured below them
            weight /= weight.square().mean().sqrt()
        weights.append((math.sqrt(W2 / math.prod(shape[1:])) * weight).requires_grad_())
        bias = math.sqrt(B2) * normal(int(units), seed=1000 * seed + 2 * k + 2).float()
        layer = (
            F.conv2d(h, weights[-1], bias, net.stride, net.padding)
            if len(shape) == 4
            else F.linear(h, weights[-1], bias)
        )
        z = z + layer if net.residual and k and not is_head else layer
    outputs = torch.eye(examples)
    rows = torch.autograd.grad(z[:, 0], weights, outputs, is_grads_batched=True)
    jacobians = [row.flatten(1).double() for row in rows]
    gram = sum((j @ j.T for j in jacobians), torch.zeros(examples, examples, dtype=torch.float64)) / examples
    return Sample(float(torch.linalg.eigvalsh(gram)[-1]), [float(j.mean(0).square().sum()) for j in jacobians])


def mean_of_samples(line: str, variant: Variant, seeds: int, examples: int) -> Sample:
    net = Architecture.parse(line)
    found = [sample(net, variant == "detached", seed, examples) for seed in range(seeds)]
    columns = zip(*(one.terms for one in found), strict=True)
    return Sample(sum(one.lambda_max for one in found) / seeds, [sum(column) / seeds for column in columns])


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "line",
    [
        "fc 100-250-250-250-1",
        "fc 100-250-250-250-1 gamma=0.3",
        "fc 100-250-250-250-1 gamma=3",
        "fc 100-250-250-250-1 gelu",
        "fc 100-250-250-250-1 silu gamma=2",
        "fc 100-250-250-250-1 sigmoid",
        "fc 100-250-250-250-1 leaky_relu(0.3)",
        "fc 100-250-250-250-250-1 residual",
        "fc 100-250-250-250-1 residual gelu",
    ],
)
def test_dense_networks_with_batchnorm_measure_as_predicted(line: str, variant: Variant) -> None:
    """Within 15 %, and each layer's term within 10 % of λ_max."""
    found = mean_of_samples(line, variant, seeds=2, examples=100)
    prediction = predict(line, variant=variant, examples=100)
    assert found.lambda_max == pytest.approx(prediction.lambda_max, rel=0.15)
    for term, layer in zip(found.terms, prediction.layers, strict=True):
        assert term == pytest.approx(layer.term, abs=0.1 * prediction.lambda_max)


@pytest.mark.parametrize(
    "words", ["vanilla", "vanilla tanh", "vanilla erf", "vanilla gelu", "vanilla residual", "ln", "ln tanh"]
)
def test_dense_networks_without_batchnorm_measure_as_predicted(words: str) -> None:
    line = f"fc 100-250-250-250-1 {words}"
    found = mean_of_samples(line, "batch", seeds=4, examples=60)
    assert found.lambda_max == pytest.approx(predict(line, examples=60).lambda_max, rel=0.15)


@pytest.mark.parametrize("head", ["flatten", "pool"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("padding", [0, 1])
def test_convolutions_measure_as_predicted(head: str, variant: Variant, padding: int) -> None:
    """Within 15 %, and each layer's term within 15 % of λ_max."""
    line = f"conv 2x15x15 120-120 k3 s2 p{padding} 1 {head}"
    found = mean_of_samples(line, variant, seeds=2, examples=40)
    prediction = predict(line, variant=variant, examples=40)
    assert found.lambda_max == pytest.approx(prediction.lambda_max, rel=0.15)
    for term, layer in zip(found.terms, prediction.layers, strict=True):
        assert term == pytest.approx(layer.term, abs=0.15 * prediction.lambda_max)


def test_padding_that_is_ignored_is_far_off() -> None:
    """With position-independent moments the flattened network above comes out a third lower through the statistics."""
    line = "conv 1x14x14 60-80-100 k3 s2 p1 1"
    found = mean_of_samples(line, "batch", seeds=2, examples=40)
    ignored, _ = contributions(Architecture.parse(line).stages(), Moments.independent(), "batch")
    assert float(ignored) < 0.75 * found.lambda_max


def test_finitely_many_examples_add_what_one_shares_with_itself() -> None:
    line = f"{FC} vanilla"
    few, many = (predict(line, examples=n) for n in (1, 10**9))
    order = predict(line).layers
    own = sum(n * layer.q_hat * layer.q_tilde for n, layer in zip(WIDTHS, order, strict=True))
    assert few.lambda_max == pytest.approx(own, rel=1e-12)
    assert many.lambda_max == pytest.approx(predict(line).lambda_max, rel=1e-6)


def test_few_normalised_examples_are_correlated_negatively() -> None:
    """Of N examples whose mean is taken away, two have a correlation of −1/(N−1), and E relu relu follows eq. 21."""
    c = -1 / 9
    rectified = (math.sqrt(1 - c**2) + c * math.pi / 2 + c * math.asin(c)) / (2 * math.pi)
    assert predict(FC, examples=10).layers[-1].q_hat_xy == pytest.approx(rectified, rel=1e-12)


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


def test_given_inputs_that_are_alike_raise_the_first_term() -> None:
    """x = m + noise: q̂⁰_xy is the mean square of what they share, and the first layer has a term."""
    x = normal(80, 100) * math.sqrt(0.5) + normal(100, seed=1) * math.sqrt(0.5)
    prediction = predict("fc 100-300-10 vanilla", inputs=x)
    shared = float((x @ x.T).sum() - (x @ x.T).trace()) / (80 * 79 * 100)
    first, _ = prediction.layers
    assert first.q_hat_xy == pytest.approx(shared, rel=1e-12)
    assert first.term == pytest.approx(100 * shared * first.q_tilde_xy, rel=0.05)


def test_given_images_are_followed_by_position() -> None:
    images = normal(40, 2, 6, 6) + 3 * normal(2, 6, 6, seed=1)
    first = predict("conv 2x6x6 8-8 k3 3", inputs=images).layers[0]
    flat = images.flatten(2)
    total = torch.einsum("nca,mca->nm", flat, flat)
    assert first.q_hat_xy == pytest.approx(float(total.sum() - total.trace()) / (40 * 39 * 2 * 36), rel=1e-12)


# modules, and the result


def seeded_network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for k, (n, m) in enumerate(((50, 400), (400, 400), (400, 10))):
        layer = nn.Linear(n, m)
        layer.weight.data = normal(m, n, seed=k).float() * math.sqrt(W2 / n)
        layer.bias.data = normal(m, seed=k + 10).float() * math.sqrt(B2)
        layers += [layer, nn.BatchNorm1d(m), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_module_is_predicted_as_its_architecture(variant: Variant) -> None:
    module = predict(seeded_network(), variant=variant, parameters="weights", gamma=0.5)
    line = predict("fc 50-400-400-10 gamma=0.5", variant=variant)
    assert module.lambda_max == pytest.approx(line.lambda_max, rel=0.03)  # σ² of the weights drawn
    assert [layer.name for layer in module.layers] == ["0", "3", "6"]


def test_all_parameters_of_a_module_count_unless_told() -> None:
    names = [layer.name for layer in predict(seeded_network()).layers]
    assert names == ["0", "1", "3", "4", "6"]
    line = predict("fc 50-400-400-10", parameters="all")
    assert predict(seeded_network()).lambda_max == pytest.approx(line.lambda_max, rel=0.03)


def test_a_module_takes_other_numbers_but_no_other_width() -> None:
    grid = predict(seeded_network(), torch.tensor([0.5, 1.0]), sigma_w2=2.0, sigma_b2=0.5, parameters="weights")
    assert grid.lambda_max.tolist() == pytest.approx([400 * 0.25 / (2 * math.pi), 400 / (2 * math.pi)], rel=1e-5)
    with pytest.raises(ValueError, match="width is 3"):
        predict(seeded_network(), width=3)
    with pytest.raises(ValueError, match="gamma is -1"):
        predict(seeded_network(), -1.0)


def test_rows_hold_lambda_max_the_rate_and_the_terms() -> None:
    prediction = predict(FC, variant="detached")
    rows = {(row.layer, row.quantity): row for row in prediction.rows(step=7)}
    assert rows["", "lambda_max"].value == prediction.lambda_max
    assert (rows["", "max_lr"].value, rows["", "max_lr"].unit) == (prediction.max_lr, "lr")
    assert [rows[layer.name, "term"].value for layer in prediction.layers] == [
        layer.term for layer in prediction.layers
    ]
    assert {row.step for row in rows.values()} == {7}


def test_rows_of_a_grid_are_its_ends() -> None:
    grid = predict(FC, torch.tensor([[1.0, 3.0, 2.0]]))
    values = {row.quantity: row.value for row in grid.rows()}
    assert values["lambda_max_greatest"] == pytest.approx(9 * values["lambda_max_least"], rel=1e-12)
    assert [values["max_lr_least"], values["max_lr_greatest"]] == [float(grid.max_lr.min()), float(grid.max_lr.max())]


def test_the_text_says_what_limits_the_rate_and_what_was_assumed() -> None:
    text = str(predict(FC))
    assert "the last layer limits the rate, its term is 100 %" in text
    assert "differentiated, as in training (variant 'batch')" in text
    assert "no pass over the data" in text
    assert "conv3 limits the rate, its term is 44 %" in str(predict(CONV.format("30-60-90"), variant="detached"))
    assert "BatchNorm" not in str(predict(f"{FC} vanilla"))
    assert "a grid of 2 × 3 networks" in str(predict(FC, torch.ones(2, 1), sigma_w2=torch.ones(3)))
    assert "equally likely" in str(predict(FC, loss="cross-entropy"))


def test_gradients_that_share_nothing_do_not_limit_the_rate() -> None:
    """An odd activation behind a norm has a mean of 0: for very many examples no direction is common to them."""
    prediction = predict("fc 784-300-300-10 tanh")
    assert (prediction.lambda_max, prediction.max_lr) == (0.0, math.inf)
    assert "nothing in common" in str(prediction)
    assert predict("fc 784-300-300-10 tanh", examples=400).lambda_max > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "running"}, "variant is 'running'.*'detached'"),
        ({"variant": "source"}, "variant is 'source'.*'batch', 'detached'"),
        ({"loss": "hinge"}, "loss is 'hinge'.*'mse'"),
        ({"parameters": "biases"}, "parameters is 'biases'"),
        ({"momentum": 1.0}, "momentum is 1.0.*below 1"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"examples": 0}, "examples is 0"),
        ({"gamma": 0.0}, "gamma is 0.0; it must be above 0"),
        ({"gamma": torch.tensor([1.0, -1.0])}, "gamma is -1.0"),
        ({"sigma_w2": -1.0}, "sigma_w2 is -1.0"),
        ({"width": 0}, "hidden is 0"),
        ({"inputs": torch.ones(5, 3)}, "inputs is 5×3; it must be N×784"),
        ({"inputs": torch.ones(1, 784)}, "with N > 1"),
        ({"gamma": math.inf}, "gamma is inf; it must be finite"),
        ({"gamma": torch.ones(0)}, "gamma is a tensor without elements"),
        ({"gamma": torch.ones(3), "sigma_w2": torch.ones(4)}, r"not broadcast.*gamma \(3,\), sigma_w2 \(4,\)"),
        ({"examples": 2.5}, "examples is 2.5; it must be a whole number"),
        ({"examples": math.nan}, "examples is nan"),
        ({"examples": 1}, "examples is 1.*2 or more"),
    ],
)
def test_options_out_of_range_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        predict(FC, **options)


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (3, {}, "network is of type int; pass an nn.Module, a Problem, a line"),
        (FC, {"gamma": [1.0]}, "gamma is of type list"),
        (FC, {"momentum": "0.9"}, "momentum is of type str"),
        (FC, {"inputs": (784,)}, "inputs is of type tuple.*N×784"),
    ],
)
def test_arguments_of_another_type_are_refused_by_name(network: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        predict(network, **options)


def normed(activation: nn.Module | None = None) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), activation or nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize(
    ("network", "options", "message"),
    [
        (normed(), {"inputs": torch.full((5, 6), math.nan)}, "inputs: they hold NaN"),
        (normed(), {"inputs": torch.ones(5, 6)}, "all examples are alike"),
        ("fc 6-8-2", {"inputs": torch.full((5, 6), math.inf)}, "inputs: they hold NaN"),
        ("fc 6-8-2", {"inputs": torch.zeros(5, 6)}, "all examples are alike"),
        ("fc 6-8-2", {"gamma": 1e-200}, "no finite λ_max: numbers over- or underflow"),
        ("fc 6-8-2 vanilla", {"sigma_w2": torch.tensor([1.0, 1e200], dtype=torch.float64)}, "no finite λ_max"),
        ("fc 6-8-2 ln", {"inputs": torch.zeros(5, 6), "sigma_b2": 0.0}, "no finite λ_max: the inputs are all 0"),
    ],
)
def test_a_lambda_max_that_is_no_number_is_refused_with_its_cause(
    network: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(WellcondError, match=message):
        predict(network, **options)


def test_a_layer_of_zeros_before_a_norm_is_named() -> None:
    model = normed()
    nn.init.zeros_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    with pytest.raises(WellcondError, match="weights of layer '0' are all 0"):
        predict(model, inputs=normal(5, 6, seed=0))


def test_a_network_of_which_nothing_is_trained_is_refused() -> None:
    with pytest.raises(InvalidProblem, match="no parameter is trained"):
        predict(normed().requires_grad_(False))


def test_few_values_at_a_batchnorm_between_convolutions_are_noted() -> None:
    """Maps of 6×6, 4×4 and 2×2 positions: the second norm sees fewest, 4 × 100 values."""
    line, few = "conv 1x6x6 8-8 k3 10", "BatchNorm norm2 sees only 400 values per channel"
    assert few in str(predict(line, examples=100))
    assert few in str(predict(line, inputs=normal(100, 1, 6, 6, seed=0)))
    assert "values per channel" not in str(predict(line, examples=250))
    assert "values per channel" not in str(predict(f"{line} vanilla", examples=100))


def test_few_examples_behind_a_norm_and_an_odd_activation_are_noted() -> None:
    x = normal(20, 6, seed=0)
    assert "a lower bound" in str(predict(normed(nn.Tanh()), inputs=x))
    assert "a lower bound" not in str(predict(normed(), inputs=x))
    assert "a lower bound" in str(predict("fc 6-8-2 tanh", examples=999))
    assert "a lower bound" not in str(predict("fc 6-8-2 tanh", examples=1000))


def test_a_norm_that_limits_the_rate_is_called_by_its_name() -> None:
    model = normed()
    model[3].requires_grad_(False)
    assert ": 1 limits the rate" in str(predict(model))


def test_cross_entropy_needs_two_outputs() -> None:
    with pytest.raises(ValueError, match="two or more"):
        predict("fc 10-10-1", loss="cross-entropy")


def test_the_curvature_of_cross_entropy_is_that_of_the_networks_own_outputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 400), nn.ReLU(), nn.Linear(400, 5)).double()
    with torch.no_grad():
        model[2].bias.copy_(torch.tensor([2.0, 0.0, 0.0, 0.0, -1.0]))  # classes that are not equally likely
    inputs = torch.randn(80, 30, dtype=torch.float64)
    p = model(inputs).detach().softmax(1)
    mean = torch.stack([row.diag() - torch.outer(row, row) for row in p]).mean(0)
    expected = float(torch.linalg.eigvalsh(mean)[-1]) * predict(model, inputs=inputs).lambda_max
    found = predict(model, inputs=inputs, loss="cross-entropy").lambda_max
    assert found == pytest.approx(expected, rel=1e-10)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (inputs, torch.arange(80) % 5))
    measured = float(wc.eigenvalues(wc.GGN(problem)).values[-1])
    assert found == pytest.approx(measured, rel=0.15)


# problems


def classification(batchnorm: str = "batch", batches: int = 1) -> wc.Problem:
    torch.manual_seed(0)
    x, y = torch.randn(30, 6), torch.randint(0, 2, (30,))
    data = [(x[k::batches], y[k::batches]) for k in range(batches)]
    return wc.Problem(normed(), nn.CrossEntropyLoss(), data, batchnorm=batchnorm)


@pytest.mark.parametrize(("batchnorm", "variant"), [("batch", "batch"), ("running", "detached")])
def test_a_problem_says_its_inputs_loss_and_variant(batchnorm: str, variant: Variant) -> None:
    problem = classification(batchnorm)
    found = predict(problem, momentum=0.5)
    by_hand = predict(problem.model, None, 0.5, variant, inputs=problem.batches[0][0], loss="cross-entropy")
    assert (found.variant, found.loss) == (variant, "cross-entropy")
    assert found.rows() == by_hand.rows()
    assert (found.cost.forwards, found.cost.backwards) == (1.0, 0.0)


def test_what_is_given_with_a_problem_counts() -> None:
    problem, x = classification(), normal(9, 6)
    found = predict(problem, 0.5, variant="detached", inputs=x, loss="mse")
    assert found.rows() == predict(problem.model, 0.5, variant="detached", inputs=x, loss="mse").rows()
    assert found.cost.forwards == 0
    assert predict(problem, inputs=x).rows() == predict(problem.model, inputs=x, loss="cross-entropy").rows()


def test_of_several_batches_the_first_counts() -> None:
    problem = classification(batches=3)
    found = predict(problem)
    first = predict(problem.model, inputs=problem.batches[0][0], loss="cross-entropy")
    assert found.lambda_max == first.lambda_max
    assert "of the batches the first one counts" in found.notes


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (nn.MSELoss(), "mse"),
        (lambda f, y: (f - y).square().sum(1).mean() / 2, "half-squared"),
        (lambda f, y: 7 * (f - y).square().mean(), None),
        (nn.L1Loss(), None),
    ],
)
def test_the_loss_of_a_problem_is_recognised(loss: Any, name: str | None) -> None:
    problem = wc.Problem(nn.Linear(6, 3), loss, (normal(9, 6).float(), normal(9, 3, seed=1).float()))
    if name is not None:
        assert predict(problem).loss == name
        return
    with pytest.raises(Unsupported, match="cross-entropy or squared error"):
        predict(problem)


def test_a_problem_with_two_inputs_is_refused() -> None:
    problem = wc.Problem(nn.Bilinear(2, 3, 1), nn.MSELoss(), ((torch.ones(4, 2), torch.ones(4, 3)), torch.zeros(4, 1)))
    with pytest.raises(Unsupported, match="one tensor as input"):
        predict(problem)
