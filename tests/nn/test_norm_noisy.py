"""Noisy BN: Algorithm 1 of santurkar2018. Statistical tolerances are five standard errors, at fixed seeds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from norm_references import batch
from references import assert_same
from torch import Tensor
from zoo import normal

from wellcond.nn import NoisyBatchNorm1d, NoisyBatchNorm2d

UNITS, EXAMPLES = 3000, 400
SILENT = {"n_mu": 0.0, "n_sigma": 1.0, "r_mu": 0.0, "r_sigma": 0.0}


def noise_on(value: float, seed: int = 0, **settings: Any) -> Tensor:
    """What becomes of activations that are all `value`: γ = 0, β = value. (examples, units)."""
    layer = NoisyBatchNorm1d(UNITS, dtype=torch.float64, **settings)
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(value)
    torch.manual_seed(seed)
    return layer(normal(EXAMPLES, UNITS)).detach()


def assert_mean(values: Tensor, mean: float, sd: float) -> None:
    """Independent draws with this mean and standard deviation."""
    assert abs(float(values.mean()) - mean) <= 5 * sd / math.sqrt(values.numel())


Moments = dict[int, tuple[float, float]]
"""Mean and standard deviation of powers of a random number."""
UNIFORM: Moments = {
    1: (0, math.sqrt(1 / 3)), 2: (1 / 3, math.sqrt(1 / 5 - 1 / 9)), 4: (1 / 5, math.sqrt(1 / 9 - 1 / 25)),
}  # fmt: skip
"""On [−1, 1]."""
NORMAL: Moments = {1: (0, 1), 2: (1, math.sqrt(2)), 3: (0, math.sqrt(15)), 4: (3, math.sqrt(96))}
DRAWS: dict[str, tuple[float, dict[str, float], dict[str, float], float, float, Moments]] = {
    # activations; other settings, and the one drawn with; center and half-width of the draw, and its law
    "mean_of_a_unit": (0.0, {}, {"n_mu": 0.5}, 0.0, 0.5, UNIFORM),
    "scale_of_a_unit": (1.0, {}, {"n_sigma": 1.25}, 0.125, 0.125, UNIFORM),
    "move_of_a_value": (0.0, {"n_mu": 0.5}, {"r_mu": 0.1}, 0.0, 0.1, UNIFORM),
    "stretch_of_a_value": (1.0, {"n_sigma": 1.25}, {"r_sigma": 0.1}, 0.0, 0.1, NORMAL),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_has_its_law_and_units_share_theirs(name: str) -> None:
    value, others, own, center, size, law = DRAWS[name]
    noise = noise_on(value, **SILENT | others | own)
    drawn = (noise - noise_on(value, **SILENT | others)[0] - center) / size
    if "unit" in name:
        assert (noise == noise[0]).all()
        drawn = drawn[0]
    if law is UNIFORM:
        assert 1 - 30 / drawn.numel() < drawn.abs().max() <= 1 + 1e-12
    for power, (mean, sd) in law.items():
        assert_mean(drawn**power, mean, sd)


@pytest.mark.slow
def test_the_defaults_are_those_of_the_source() -> None:
    """With a = 0 the output is m, of variance n_μ²/3 + r_μ²/3; with a = 1 and m = 0 it is s."""
    m = noise_on(0.0)
    assert m.abs().max() <= 0.6 + 1e-12
    inside = (m - m.mean(0)).var(0).mean()
    assert float(inside) == pytest.approx(0.1**2 / 3, rel=0.01)
    s = noise_on(1.0, n_mu=0.0, r_mu=0.0)
    assert float(s.var(0).mean()) == pytest.approx(0.1**2, rel=0.01)
    assert float(s.mean(0).max()) == pytest.approx(1.25, abs=0.02)
    assert float(s.mean(0).min()) == pytest.approx(1.0, abs=0.02)


def test_positions_are_part_of_the_batch() -> None:
    """Every position draws its own noise, around the mean that its unit has at this step."""
    layer = NoisyBatchNorm2d(2000, affine=False, dtype=torch.float64, **SILENT | {"n_mu": 0.5, "r_mu": 0.1})
    plain = torch.nn.BatchNorm2d(2000, affine=False, dtype=torch.float64)
    x = normal(4, 2000, 3, 3)
    m = layer(x) - plain(x)
    means = m.mean((0, 2, 3))
    assert_mean(means, 0.0, math.sqrt((0.5**2 + 0.1**2 / 36) / 3))
    moved = (m - means[:, None, None]) / (0.1 / math.sqrt(3))
    assert moved.abs().max() < 2 * math.sqrt(3)
    neighbors = moved[..., 0] * moved[..., 1]  # the mean over 36 values was subtracted: correlation −1/35
    assert_mean(neighbors, -1 / 35, 1.0)


@pytest.mark.slow
def test_the_noise_stretches_and_moves_the_output_of_affine_batchnorm() -> None:
    """s and m, taken from constant activations at the same seed, applied to real ones."""
    settings = {"n_mu": 0.3, "n_sigma": 1.5, "r_mu": 0.2, "r_sigma": 0.4}
    m = noise_on(0.0, seed=3, **settings)
    s = noise_on(1.0, seed=3, **settings) - m
    layer = NoisyBatchNorm1d(UNITS, dtype=torch.float64, **settings)
    plain = torch.nn.BatchNorm1d(UNITS, dtype=torch.float64)
    with torch.no_grad():
        for norm in (layer, plain):
            norm.weight.copy_(normal(UNITS, seed=1))
            norm.bias.copy_(normal(UNITS, seed=2))
    x = normal(EXAMPLES, UNITS)
    torch.manual_seed(3)
    y = layer(x)
    assert_same(y, s * plain(x) + m, 1e-12)
    assert_same(layer.running_mean, plain.running_mean, 1e-12)
    assert_same(layer.running_var, plain.running_var, 1e-12)
    (gradient,) = torch.autograd.grad(y.sum(), layer.bias)  # the noise has no gradient, and scales that of a
    assert_same(gradient, s.sum(0), 1e-12)


def test_every_step_draws_anew_and_a_seed_fixes_it() -> None:
    layer, x = NoisyBatchNorm2d(4, dtype=torch.float64), batch("2d")
    torch.manual_seed(1)
    first, second = layer(x), layer(x)
    assert not torch.isclose(first, second).any()
    torch.manual_seed(1)
    assert torch.equal(layer(x), first)


def test_evaluation_has_no_noise_and_draws_no_random_numbers() -> None:
    layer, x = NoisyBatchNorm2d(4, dtype=torch.float64, track_running_stats=False).eval(), batch("2d")
    state = torch.get_rng_state()
    plain = torch.nn.BatchNorm2d(4, dtype=torch.float64)
    assert_same(layer(x), plain(x), 1e-12)
    assert torch.equal(torch.get_rng_state(), state)


def test_noise_on_half_activations_is_drawn_in_float32() -> None:
    """A bfloat16 in [0.5, 1) has 128 values; noise drawn in float32 and rounded once has them all evenly often."""
    layer = NoisyBatchNorm1d(1, **SILENT | {"r_mu": 1.0})
    with torch.no_grad():
        layer.weight.zero_()
    torch.manual_seed(0)
    y = layer(normal(200_000, 1).bfloat16()).float()
    assert_mean((y > 0.5).double(), 0.25, math.sqrt(0.25 * 0.75))
    assert len(y[(y >= 0.5) & (y < 1)].unique()) == 128
