"""Moments by position, against convolutions and poolings of explicit images in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, unfold
from wei2019_recursions import rectified_product
from zoo import normal

from wellcond.errors import TooLarge
from wellcond.learning_rate.meanfield.architecture import Architecture
from wellcond.learning_rate.meanfield.feature_maps import AveragePool, Convolution, Flatten, GlobalPool, Window
from wellcond.learning_rate.meanfield.gaussian import PiecewiseLinear
from wellcond.learning_rate.meanfield.moments import MOST_POSITIONS, Moments
from wellcond.learning_rate.meanfield.prediction import contributions
from wellcond.learning_rate.meanfield.stages import Variant

WINDOWS = [
    Window((6, 5), (3, 3)),
    Window((6, 5), (3, 2), (2, 1)),
    Window((6, 5), (3, 3), (2, 2), (1, 1)),
    Window((6, 5), (3, 3), (1, 1), (2, 1), (2, 1)),
    Window((7, 4), (1, 4), (3, 1), (0, 2)),
]
SCALE, OFFSET = torch.tensor(1.7, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)


def close(result: Tensor, expected: Tensor, tolerance: float = 1e-12) -> bool:
    return bool((result - expected).abs().max() <= tolerance * expected.abs().max())


def products(x: Tensor, y: Tensor) -> Tensor:
    """(P, P): those of two images at all pairs of positions."""
    return torch.outer(x.flatten(), y.flatten())


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_patches_are_mean_products_and_gradients_use_their_adjoint(
    window: Window,
) -> None:
    x, y = normal(1, 1, *window.size), normal(1, 1, *window.size, seed=1)
    seen = [
        unfold(image, window.kernel, window.dilation, window.padding, window.stride)[0] / math.sqrt(window.sites)
        for image in (x, y)
    ]
    k = products(x, y)
    assert close(window.patches(k), seen[0].T @ seen[1])
    output = conv2d(x, normal(1, 1, *window.kernel), None, window.stride, window.padding, window.dilation)
    assert tuple(output.shape[2:]) == window.outputs
    # ⟨patches(A), B⟩ = ⟨A, spread(B)⟩
    a, b = normal(*k.shape, seed=2), normal(*window.patches(k).shape, seed=3)
    adjoint = float((a * window.spread(b)).sum())
    assert float((window.patches(a) * b).sum()) == pytest.approx(adjoint, rel=1e-12)


def test_a_grid_of_fields_is_each_of_them() -> None:
    k = normal(2, 3, 30, 30)
    for change in (WINDOWS[2].patches, lambda k: WINDOWS[2].spread(WINDOWS[2].patches(k))):
        single = [[change(k[i, j]) for j in range(3)] for i in range(2)]
        assert close(change(k), torch.stack([torch.stack(row) for row in single]))


def test_without_the_mean_over_examples_and_positions() -> None:
    """Exact for any ensemble whose pairs are all pairs of it: z − mean is then another such ensemble."""
    z = normal(7, 4, 5)  # examples, units, positions

    def of(z: Tensor) -> Moments:
        same = torch.einsum("nca,ncb->ab", z, z) / (7 * 4)
        mean = z.mean(0)
        return Moments(same, mean.T @ mean / 4)

    expected = of(z - z.mean((0, 2), keepdim=True))
    u, variance = of(z).centered()
    assert close(u.same, expected.same)
    assert close(u.pair, expected.pair)
    assert float(variance) == pytest.approx(float(z.var((0, 2), correction=0).mean()), rel=1e-12)


@pytest.mark.parametrize("count", [1, 5])
def test_statistics_remove_the_mean_and_the_part_along_the_signal(count: int) -> None:
    """δ with variance 1/P at P independent positions after ReLU has 1/2P, less 1/4P² and 1/2πP² for the two means."""
    one = torch.eye(count, dtype=torch.float64)
    a, g = Moments(SCALE * one, 0 * one), Moments(one / count, one / count)
    left = g.without_statistics(a, PiecewiseLinear(0.0), SCALE)
    expected = 1 / (2 * count) - 1 / (4 * count**2) - 1 / (2 * math.pi * count**2)
    assert close(left.same.diagonal(), torch.full((count,), expected, dtype=torch.float64))
    assert float(left.pair.sum()) == pytest.approx(0, abs=1e-14)
    assert close(left.pair + 1 / (4 * count**2), one / (4 * count))


def test_moments_of_given_images_are_means_over_one_and_over_two_of_them() -> None:
    x = normal(5, 3, 2, 2)
    result = Moments.of(x)
    flat = x.flatten(2)
    same = sum(flat[n].T @ flat[n] for n in range(5)) / (5 * 3)
    pair = sum(flat[n].T @ flat[m] for n in range(5) for m in range(5) if n != m) / (20 * 3)
    assert close(result.same, torch.as_tensor(same))
    assert close(result.pair, torch.as_tensor(pair))


@pytest.mark.parametrize("padding", [0, 1])
def test_average_pooling_and_its_way_back(padding: int) -> None:
    window = Window((6, 4), (2, 2), (2, 2), (padding, padding))
    x, y = normal(1, 1, 6, 4), normal(1, 1, 6, 4, seed=1)
    pooled = [avg_pool2d(image, 2, 2, padding) for image in (x, y)]
    stage, field = AveragePool(window), Moments(products(x, x), products(x, y))
    output = stage.forward(field)
    assert isinstance(output, Moments)
    assert close(output.pair, products(*pooled))
    g = Moments(torch.ones_like(output.same), normal(*output.pair.shape))
    back = stage.backward(field, g, "batch")
    assert isinstance(back, Moments)
    assert float((back.pair * field.pair).sum()) == pytest.approx(float((g.pair * output.pair).sum()), rel=1e-12)


def test_heads_see_all_positions_or_their_mean() -> None:
    """Either way the position sum of the gradient is that of the head."""
    field = Moments(normal(6, 6), normal(6, 6, seed=1))
    for head, expected in ((Flatten(), lambda k: k.trace() / 6), (GlobalPool(6), torch.mean)):
        for result, k in zip(head.forward(field).same_and_pair(), (field.same, field.pair), strict=True):
            assert float(result) == pytest.approx(float(expected(k)), rel=1e-12)
        back = head.backward(field, Moments(torch.tensor([[3.0]]), torch.tensor([[2.0]])), "batch")
        assert isinstance(back, Moments)
        assert (float(back.same.sum()), float(back.pair.sum())) == pytest.approx((3, 2), rel=1e-12)
        if isinstance(head, Flatten):
            assert float(back.pair.trace()) == pytest.approx(2.0, rel=1e-12)


@pytest.mark.parametrize("head", ["flatten", "pool"])
@pytest.mark.parametrize("norm", ["batch", "none", "layer"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("variant", ["detached", "batch"])
def test_without_padding_positions_are_alike(head: str, norm: str, activation: str, variant: Variant) -> None:
    """All terms to 1e-12 of the largest, as of `Moments`; nothing is assumed of the two paths but their formulas."""
    net = Architecture.parse(f"conv 2x15x17 5-6-7 k3 s2 10 {head} {activation}")
    stages = replace(net, norm=norm).stages("all")  # type: ignore[arg-type]
    total, uniform = contributions(stages, Moments.independent(), variant)
    by_position, layers = contributions(stages, Moments.independent(15 * 17), variant)
    assert float(by_position) == pytest.approx(float(total), rel=1e-12)
    for a, b in zip(uniform, layers, strict=True):
        assert float(b.term) == pytest.approx(float(a.term), abs=1e-12 * float(total))
        assert float(b.q_hat_xy) == pytest.approx(float(a.q_hat_xy), rel=1e-11, abs=1e-13, nan_ok=True)
        assert float(b.q_tilde_xy) == pytest.approx(float(a.q_tilde_xy), rel=1e-11, abs=1e-13, nan_ok=True)


def test_what_two_positions_of_one_example_share_is_followed() -> None:
    """E z_α z_β of a wide random convolution of one image, over weights: exact by summing unit weights."""
    image, unit = normal(1, 1, 5, 5), torch.eye(9, dtype=torch.float64).view(9, 1, 3, 3)
    z = conv2d(image, unit, padding=1).flatten(2)[0] * math.sqrt(float(SCALE) / 9)  # (weights, P)
    stage = Convolution("conv", torch.tensor(9.0), SCALE, OFFSET, window=Window((5, 5), (3, 3), (1, 1), (1, 1)))
    output = stage.forward(Moments(products(image, image), products(image, image)))
    assert isinstance(output, Moments)
    assert close(output.same, z.T @ z + OFFSET)


def test_activations_act_on_positions_of_unlike_variance() -> None:
    a = normal(3, 8)
    k = a @ a.T / 8
    result, v = Moments(k, 0.5 * k).expected(PiecewiseLinear(0.0).product), k.diagonal()
    c = 0.5 * k[0, 1] / (v[0] * v[1]).sqrt()
    assert float(result.pair[0, 1]) == pytest.approx(
        rectified_product(float((v[0] * v[1]).sqrt()), float(c)), rel=1e-12
    )
    assert float(result.same[2, 2]) == pytest.approx(float(v[2] / 2), rel=1e-12)


def test_large_maps_are_refused_before_they_fill_memory() -> None:
    with pytest.raises(TooLarge, match=r"50176 positions.*limit is 4096.*without padding"):
        Moments.independent(224 * 224)
    assert Moments.independent(4).positions == 4
    assert MOST_POSITIONS == 64 * 64
