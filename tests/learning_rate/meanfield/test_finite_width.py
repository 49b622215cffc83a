"""Odd activations without bias: the gradients of two examples share little, and the widths of the layers decide."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
import torch
from measured import largest
from torch import Tensor, nn
from zoo import normal

from wellcond.learning_rate.meanfield import predict
from wellcond.learning_rate.meanfield.gram import Gram


class OwnOdd(nn.Module):
    """A custom odd function."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(0.5 * x)


def network(activation: Callable[[], nn.Module], widths: list[int], seed: int, bias: float = 0.0) -> nn.Sequential:
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for k, (inputs, outputs) in enumerate(zip(widths, [*widths[1:], 1], strict=True)):
        layer = nn.Linear(inputs, outputs)
        with torch.no_grad():
            layer.weight.normal_(0, 1 / math.sqrt(inputs), generator=generator)
            if outputs == 1:  # few weights, whose mean square would scatter all that is measured below them
                layer.weight /= layer.weight.norm()
            layer.bias.normal_(0, bias, generator=generator) if bias else layer.bias.zero_()
        layers += [activation(), layer] if k else [layer]
    return nn.Sequential(*layers)


ODD = {
    "tanh": (nn.Tanh, [120, 250, 250], 60),
    "hardtanh": (nn.Hardtanh, [120, 250, 250], 60),
    "identity": (nn.Identity, [120, 250, 250], 60),
    "softsign": (nn.Softsign, [120, 250, 250, 250], 60),
    "few": (nn.Tanh, [120, 250, 250], 20),
    "more than units": (nn.Tanh, [150, 80], 120),
    "own": (OwnOdd, [120, 250, 250], 60),
}


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "widths", "examples"), ODD.values(), ids=ODD)
def test_the_prediction_is_that_of_the_widths(activation: type[nn.Module], widths: list[int], examples: int) -> None:
    ratios = []
    for seed in range(4):
        model, x = network(activation, widths, seed), normal(examples, widths[0], seed=seed).float()
        prediction = predict(model, inputs=x)
        assert any("many directions are alike" in note for note in prediction.notes)
        assert sum(layer.term for layer in prediction.layers) == pytest.approx(prediction.lambda_max, rel=1e-9)
        ratios.append(prediction.lambda_max / largest(model, x))
    assert statistics.mean(ratios) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(("activation", "bias"), [(nn.ReLU, 0.0), (nn.ReLU, 0.3), (nn.GELU, 0.0), (nn.Tanh, 1.0)])
def test_where_examples_share_a_direction_nothing_is_said(activation: type[nn.Module], bias: float) -> None:
    prediction = predict(network(activation, [150, 400, 400], 0, bias), inputs=normal(100, 150).float())
    assert not prediction.notes


@pytest.mark.slow
def test_two_predictions_of_one_network_are_equal() -> None:
    model, x = network(nn.Tanh, [150, 400], 0), normal(50, 150).float()
    torch.manual_seed(1)
    first, following = predict(model, inputs=x).lambda_max, float(torch.rand(()))
    torch.manual_seed(1)
    assert float(torch.rand(())) == following
    assert predict(model, inputs=x).lambda_max == first


@pytest.mark.slow
def test_draws_have_the_moments_of_means_over_units() -> None:
    """A Wishart matrix has the mean K and variances (K_ij² + K_ii K_jj)/n, on both sides of n = N."""
    h = normal(6, 9)
    k = h @ h.mT / 9
    for units in (4, 11):
        draws = torch.stack([Gram(k).drawn(units, seed).matrix for seed in range(4000)])
        variance = (k**2 + k.diagonal() * k.diagonal()[:, None]) / units
        assert (((draws.mean(0) - k) / (variance / 4000).sqrt()).abs() < 4.5).all()
        assert ((draws.var(0) / variance - 1).abs() < 0.2).all()


def test_without_inputs_it_is_a_lower_bound_and_says_so() -> None:
    assert any("a lower bound" in note for note in predict("fc 100-500-500-1 tanh vanilla sigma_b2=0").notes)
    assert not any("a lower bound" in note for note in predict("fc 100-500-500-1 vanilla").notes)
