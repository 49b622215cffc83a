"""lange2022 on other norms: eq. 3, Batch Renorm in both forms, and § 3.5, what LayerNorm and GroupNorm are blind to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from references import assert_same
from torch import Tensor, nn
from zoo import normal

import wellcond as wc

# eq. 3


GAIN, SHIFT, MEAN, SIGMA = normal(5, seed=1), normal(5, seed=2), normal(5, seed=3), normal(5, seed=4).exp()
"""γ, β and the running μ, σ of five units."""


def inference_form(h: Tensor) -> Tensor:
    """γ (h − μ)/σ + β."""
    return GAIN * (h - MEAN) / SIGMA + SHIFT


def training_form(h: Tensor) -> Tensor:
    """γ ((h − μ_H)/σ_H · s + d) + β, where s = σ_H/σ and d = (μ_H − μ)/σ are held fixed."""
    mean, sigma = h.mean(0), h.std(0, correction=0)
    s, d = (sigma / SIGMA).detach(), ((mean - MEAN) / SIGMA).detach()
    return GAIN * ((h - mean) / sigma * s + d) + SHIFT


def renorm(r_max: float, d_max: float) -> nn.Module:
    """The library's layer with these limits from the start, and the running statistics of eq. 3."""
    layer = wc.nn.BatchRenorm1d(5, eps=1e-30, r_max=r_max, d_max=d_max, r_ramp=(0, 1), d_ramp=(0, 1)).double()
    layer.weight.data, layer.bias.data = GAIN.clone(), SHIFT.clone()
    layer.running_mean, layer.running_var = MEAN.clone(), SIGMA.square()
    layer.num_batches_tracked.fill_(1)  # past both ramps
    return layer


def gradient(f: Callable[[Tensor], Tensor], h: Tensor) -> Tensor:
    h = h.clone().requires_grad_()
    (by_h,) = torch.autograd.grad(f(h), h, normal(*h.shape, seed=9))
    return by_h


H = 3 * normal(12, 5) + 1


def test_equation_3_both_forms_are_one_function_of_the_batch() -> None:
    assert_same(training_form(H), inference_form(H), 1e-13)
    layer = renorm(r_max=1e6, d_max=1e6)
    assert_same(layer.eval()(H).detach(), inference_form(H), 1e-13)
    assert_same(layer.train()(H).detach(), training_form(H), 1e-13)


def test_equation_3_in_training_has_the_gradient_of_bn_times_s() -> None:
    """It has no part along 1 and along ĥ; that of the form for inference, a factor γ/σ, has both."""
    mean, sigma = H.mean(0), H.std(0, correction=0)
    computed, elsewhere = gradient(training_form, H), gradient(inference_form, H)
    through_bn = gradient(lambda h: GAIN * (h - h.mean(0)) / h.std(0, correction=0), H)
    assert_same(computed, through_bn * sigma / SIGMA, 1e-12)
    assert_same(gradient(renorm(r_max=1e6, d_max=1e6).train(), H), computed, 1e-12)
    normalized = (H - mean) / sigma
    for direction in (torch.ones_like(H), normalized):
        assert float((computed * direction).sum(0).abs().max()) < 1e-10
        assert float((elsewhere * direction).sum(0).norm()) > 0.1


def test_equation_3_without_its_limits_is_not_what_ioffe_defines() -> None:
    """s is clipped to [1/r_max, r_max] and d to ±d_max: 1 and 0 are plain BN, and only wide limits are eq. 3."""
    bn = nn.functional.batch_norm(H, None, None, GAIN, SHIFT, training=True, eps=1e-30)
    narrow, usual = renorm(r_max=1, d_max=0).train()(H).detach(), renorm(r_max=3, d_max=5).train()(H).detach()
    assert_same(narrow, bn, 1e-13)
    for other in (narrow, usual):
        assert float((other - training_form(H)).abs().max()) > 1e-2


def mixed(batches: list[Tensor], rho: float) -> tuple[Tensor, Tensor]:
    """μ and σ of TensorFlow 1.x for the last batch: averages from 0, and that batch's moments for the missing weight.

    The weight of an average after t batches is 1 − ρ^t; σ is averaged, not σ².
    """
    moments = [torch.stack([h.mean(0), h.std(0, correction=0)]) for h in batches]
    average, weight = torch.zeros_like(moments[0]), 0.0
    for moment in moments[:-1]:
        average, weight = rho * average + (1 - rho) * moment, rho * weight + (1 - rho)
    mean, sigma = average + (1 - weight) * moments[-1]
    return mean, sigma


def test_equation_3_starts_from_nothing_here_and_from_bn_in_tensorflow_1() -> None:
    """The source names no start. From (0, 1) a batch comes out as it is at first and ρ^t of that remains in batch t;
    TensorFlow 1.x starts at the batch's own moments, so that s = 1, d = 0. In the end both are averages."""
    rho = 0.99
    layer = wc.nn.BatchRenorm1d(
        5, eps=0.0, momentum=1 - rho, affine=False, r_max=1e9, d_max=1e9, r_ramp=(0, 1), d_ramp=(0, 1)
    )
    layer = layer.double().train()
    layer.num_batches_tracked.fill_(1)  # past both ramps
    batches = [3 * normal(400, 5, seed=seed) + 1 for seed in range(1000)]
    assert_same(layer(batches[0]), batches[0], 1e-13)
    mean, sigma = mixed(batches[:1], rho)
    assert_same(mean, batches[0].mean(0), 1e-13)
    assert_same(sigma, batches[0].std(0, correction=0), 1e-13)
    for h in batches[1:100]:
        layer(h)
    # 1 − 0.99¹⁰⁰ = 0.63 of the way from the start to the data's moments, 1 and 9
    assert_same(layer.running_mean, torch.full((5,), 0.63).double(), 0.1)
    assert_same(layer.running_var, torch.full((5,), 1 + 8 * 0.63).double(), 0.1)
    assert_same(mixed(batches[:100], rho)[0], torch.ones(5).double(), 0.1)
    for h in batches[100:]:
        layer(h)
    mean, sigma = mixed(batches, rho)
    assert_same(layer.running_mean, mean, 0.02)
    assert_same(layer.running_var.sqrt(), sigma, 0.01)


# § 3.5


UNITS, GROUPS = 6, 2
X, WEIGHT, BIAS = normal(20, 4), normal(UNITS, 4, seed=1), normal(UNITS, seed=2)
NORMS: dict[str, nn.Module] = {
    "BN": nn.BatchNorm1d(UNITS, eps=1e-30, affine=False, track_running_stats=False),
    "LN": nn.LayerNorm(UNITS, eps=1e-30, elementwise_affine=False),
    "GN": nn.GroupNorm(GROUPS, UNITS, eps=1e-30, affine=False),
}
ROW, ALL = normal(UNITS, 1, seed=3).exp(), torch.full((UNITS, 1), 2.5).double()
GROUP = ROW[:GROUPS].repeat_interleave(UNITS // GROUPS, 0)
"""Factors: of each row of W, of all of W, of each group of rows."""


@pytest.mark.parametrize(
    ("change", "blind"),
    [
        ("W times a number", {"BN", "LN", "GN"}),
        ("each group of rows times its own", {"BN", "GN"}),
        ("each row times its own", {"BN"}),
        ("a constant on each unit", {"BN"}),
        ("the same row added to all rows", {"LN", "GN"}),
        ("each example times its own", {"LN", "GN"}),
        ("all examples times a number", {"BN", "LN", "GN"}),
    ],
)
def test_section_3_5_bn_ln_and_gn_share_one_scale_of_the_weights_alone(change: str, blind: set[str]) -> None:
    """The source: LN and GN have BN's invariances. They share the scale of all of W, or of all inputs, and no other."""
    x, weight, bias = X, WEIGHT, BIAS
    match change:
        case "W times a number":
            weight, bias = ALL * weight, ALL[:, 0] * bias
        case "each group of rows times its own":
            weight, bias = GROUP * weight, GROUP[:, 0] * bias
        case "each row times its own":
            weight, bias = ROW * weight, ROW[:, 0] * bias
        case "a constant on each unit":
            bias = bias + ROW[:, 0]
        case "the same row added to all rows":
            weight = weight + normal(1, 4, seed=5)
        case "each example times its own":
            x, bias = normal(20, 1, seed=6).exp() * x, torch.zeros_like(bias)
        case "all examples times a number":
            x, bias = 2.5 * x, torch.zeros_like(bias)
    original = X @ WEIGHT.T + (0 if "example" in change else BIAS)
    changed = x @ weight.T + bias
    for name, norm in NORMS.items():
        difference = float((norm(changed) - norm(original)).abs().max())
        assert difference < 1e-10 if name in blind else difference > 0.1, name


def test_section_3_5_ln_and_gn_see_one_example_and_gn_of_one_group_is_ln() -> None:
    """An output does not depend on the other examples, nor on the mode; BN's does on both."""
    images = normal(7, UNITS, 3, 3)
    group, layer = nn.GroupNorm(1, UNITS, affine=False), nn.LayerNorm([UNITS, 3, 3], elementwise_affine=False)
    assert_same(group(images), layer(images), 1e-13)
    batch = nn.BatchNorm2d(UNITS, affine=False).double()
    for norm, depends in ((group, False), (nn.GroupNorm(GROUPS, UNITS, affine=False), False), (batch, True)):
        alone, together = norm.train()(images[:2])[0], norm(images)[0]
        assert (float((alone - together).abs().max()) > 1e-2) == depends
        assert (float((norm.eval()(images)[0] - together).abs().max()) > 1e-2) == depends
