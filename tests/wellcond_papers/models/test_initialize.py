"""Variances against their closed forms, for linear layers and convolutions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from wellcond_papers.models.initialize import Initialization, default, gaussian, glorot, he, he_out, lecun

IN, OUT, KERNEL = 60, 90, 3
FAN_IN, FAN_OUT = IN * KERNEL**2, OUT * KERNEL**2


@pytest.mark.parametrize(
    ("rule", "weight_variance", "bias_variance"),
    [
        (lecun(), 1 / FAN_IN, 0),
        (he(), 2 / FAN_IN, 0),
        (he(0.1), 0.02 / FAN_IN, 0),
        (he_out(), 2 / FAN_OUT, 0),
        (he_out(0.4), 0.32 / FAN_OUT, 0),
        (glorot(), 2 / (FAN_IN + FAN_OUT), 0),
        (default(), 1 / (3 * FAN_IN), 1 / (3 * FAN_IN)),
        (gaussian(2.0, 0.5), 2 / FAN_IN, 0.5),
        (gaussian(0.0), 0, 0),
    ],
)
@pytest.mark.parametrize("is_conv", [True, False])
def test_variances_are_those_of_the_closed_form(
    rule: Initialization, weight_variance: float, bias_variance: float, is_conv: bool
) -> None:
    # a linear layer with the fans of the convolution
    layer = nn.Conv2d(IN, OUT, KERNEL) if is_conv else nn.Linear(FAN_IN, FAN_OUT)
    rule(layer, torch.Generator().manual_seed(0))
    assert layer.bias is not None
    for values, variance in ((layer.weight, weight_variance), (layer.bias, bias_variance)):
        # five standard errors of the second moment of a Gaussian, which has the largest
        assert values.detach().square().mean().item() == pytest.approx(
            variance, rel=5 * math.sqrt(2 / values.numel()), abs=1e-12
        )


def test_default_fills_a_convolution_as_torch_does() -> None:
    layer = nn.Conv2d(4, 6, 3)
    default()(layer, torch.Generator().manual_seed(3))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        reference = nn.Conv2d(4, 6, 3)
    assert torch.equal(layer.weight, reference.weight)
    assert layer.bias is not None
    assert reference.bias is not None
    # a few ulp: torch computes the bound by another formula
    torch.testing.assert_close(layer.bias, reference.bias, rtol=1e-6, atol=0)


def test_he_out_and_glorot_are_torch_s_own_rules() -> None:
    with torch.random.fork_rng(devices=[]):
        for rule, own in (
            (he_out(), lambda w: nn.init.kaiming_normal_(w, mode="fan_out")),
            (glorot(), nn.init.xavier_uniform_),
        ):
            layer, reference = nn.Conv2d(4, 6, 3), torch.empty(6, 4, 3, 3)
            rule(layer, torch.Generator().manual_seed(5))
            torch.manual_seed(5)
            torch.testing.assert_close(layer.weight.detach(), own(reference), rtol=1e-6, atol=0)
