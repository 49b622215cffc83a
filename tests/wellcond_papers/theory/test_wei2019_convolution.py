"""The recursions of wei2019 for convolutions, against wide random networks, in float64.

h_α(x) are the activations at position α, (channels,), and δ_α = ∂f/∂z_α; q, q̂, q̃ are mean squares, `_xy` mean
products of two different inputs at one position, `_αβ` of two different inputs at two different positions.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, unfold
from wei2019_means import term
from wei2019_recursions import SIGMA_B2, SIGMA_W2, both_positive, convolution_terms, rectified_product
from zoo import normal

from wellcond_papers.papers.wei2019.printed import printed_contributions

# forward and back through two convolutions


WIDTHS, SHARED, NETWORKS = (64, 200, 200), 0.5, 6
"""Channels of the input and of two 3×3 convolutions with stride 2; share of the input that is one mean image;
networks over which the moments are averaged."""
Norm = Literal["none", "position", "channel"]


@dataclass(frozen=True)
class Moments:
    """Of a map (N, C, P): the mean square, the mean product at one position, and that at two positions."""

    q: float
    q_xy: float
    q_ab: float

    @classmethod
    def of(cls, tensors: list[Tensor]) -> Moments:
        """Averaged over the networks."""
        each = [cls._of_one(t) for t in tensors]
        return cls(*(float(np.mean(values)) for values in zip(*((m.q, m.q_xy, m.q_ab) for m in each), strict=True)))

    @classmethod
    def _of_one(cls, t: Tensor) -> Moments:
        n, c, p = t.shape
        square = float(t.square().sum())
        same = float(t.sum(0).square().sum()) - square
        any_two = float(t.sum((0, 2)).square().sum() - t.sum(2).square().sum())
        pairs = n * (n - 1)
        return cls(square / (n * c * p), same / (pairs * c * p), (any_two - same) / (pairs * c * p * (p - 1)))

    def affine(self) -> Moments:
        """Eqs. 34 to 36 and 39 to 41, left: σ_b² + σ_w² q̂ of each."""
        return Moments(*(SIGMA_B2 + SIGMA_W2 * q_hat for q_hat in (self.q, self.q_xy, self.q_ab)))

    def rectified(self) -> Moments:
        """Eqs. 34 to 36, right."""
        return Moments(self.q / 2, *(rectified_product(self.q, other / self.q) for other in (self.q_xy, self.q_ab)))


@dataclass(frozen=True)
class Maps:
    """Of random networks: h^l for l = 0, 1, 2, and z^l and δ^l, (N, channels, positions) of each network."""

    h: list[list[Tensor]]
    z: list[list[Tensor]]
    delta: list[list[Tensor]]


@functools.cache
def maps(norm: Norm, gamma: float = 1.0) -> Maps:
    each = [_network(norm, gamma, seed=1000 * k) for k in range(NETWORKS)]
    return Maps(*([list(layer) for layer in zip(*parts, strict=True)] for parts in zip(*each, strict=True)))


def _network(norm: Norm, gamma: float, seed: int, examples: int = 100) -> tuple[list[Tensor], ...]:
    """A convolutional network with a linear head over all features.

    Inputs share a mean image, so that q̂⁰ = 1, q̂⁰_xy = ½ and q̂⁰_αβ = 0. BN takes constant statistics for each
    position, as eq. 28 has them, or for each channel, as BN layers do.
    """
    mean_image, own = (normal(n, WIDTHS[0], 13, 13, seed=seed + n) for n in (1, examples))
    h = [math.sqrt(SHARED) * mean_image + math.sqrt(1 - SHARED) * own]
    z: list[Tensor] = []
    for k, (c_in, c_out) in enumerate(pairwise(WIDTHS), start=1):
        weight = normal(c_out, c_in, 3, 3, seed=seed + 200 + k) * math.sqrt(SIGMA_W2 / (9 * c_in))
        bias = normal(c_out, seed=seed + 300 + k) * math.sqrt(SIGMA_B2)
        z.append(conv2d(h[-1], weight, bias, stride=2).requires_grad_())
        u = z[-1]
        if norm != "none":
            axes = (0,) if norm == "position" else (0, 2, 3)
            variance, mean = torch.var_mean(u.detach(), axes, correction=0, keepdim=True)
            u = gamma * (u - mean) / variance.sqrt()
        h.append(torch.relu(u))
    head = normal(h[-1][0].numel(), seed=seed + 400) * math.sqrt(SIGMA_W2 / h[-1][0].numel())
    delta = torch.autograd.grad((h[-1].flatten(1) @ head).sum(), z)
    return tuple([t.detach().flatten(2) for t in part] for part in (h, z, list(delta)))


def assert_close(measured: Moments, expected: Moments, rel: float) -> None:
    assert (measured.q, measured.q_xy, measured.q_ab) == pytest.approx(
        (expected.q, expected.q_xy, expected.q_ab), rel=rel
    )


@pytest.mark.slow
def test_claim_6_5_forward_through_convolutions_without_bn() -> None:
    """Eqs. 34 to 36, where q_xy and q_αβ differ: the mean image is one at each position."""
    measured, q_hat = maps("none"), Moments(1.0, SHARED, 0.0)
    for k in (1, 2):
        q = q_hat.affine()
        assert_close(Moments.of(measured.z[k - 1]), q, rel=0.1)
        q_hat = q.rectified()
        assert_close(Moments.of(measured.h[k]), q_hat, rel=0.1)
        assert q_hat.q_xy > 1.2 * q_hat.q_ab


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.1, 1.0])
def test_claim_6_3_forward_through_convolutions_with_bn_for_each_position(gamma: float) -> None:
    """Eqs. 39 to 41: q̂ = γ²/2 and q̂_xy = q̂_αβ = γ²/2π, whatever the inputs share."""
    measured, q_hat = maps("position", gamma), Moments(1.0, SHARED, 0.0)
    for k in (1, 2):
        assert_close(Moments.of(measured.z[k - 1]), q_hat.affine(), rel=0.1)
        q_hat = Moments(gamma**2 / 2, *[gamma**2 / (2 * math.pi)] * 2)
        assert_close(Moments.of(measured.h[k]), q_hat, rel=0.03)


@pytest.mark.slow
def test_claim_6_3_needs_bn_for_each_position_or_positions_that_are_alike() -> None:
    """BN layers take statistics over positions: what inputs share at one of them remains, so
    that q̂_xy is 1.9 times γ²/2π."""
    measured, q, positions = maps("channel"), Moments(1.0, SHARED, 0.0).affine(), 36
    subtracted = (q.q_xy + (positions - 1) * q.q_ab) / positions
    c = (q.q_xy - subtracted) / (q.q - subtracted)
    q_hat = Moments.of(measured.h[1])
    assert q_hat.q == pytest.approx(1 / 2, rel=0.03)
    assert q_hat.q_xy == pytest.approx(rectified_product(1.0, c), rel=0.03)
    assert q_hat.q_xy > 1.8 / (2 * math.pi)
    assert q_hat.q_ab == pytest.approx(1 / (2 * math.pi), rel=0.05)


def position_sums(delta: list[Tensor]) -> tuple[float, float]:
    """Σ_α E ‖δ_α(x)‖² and Σ_α E ⟨δ_α(x), δ_α(y)⟩ of different inputs."""
    moments, (_, channels, positions) = Moments.of(delta), delta[0].shape
    return channels * positions * moments.q, channels * positions * moments.q_xy


@pytest.mark.slow
def test_claim_6_6_back_through_convolutions_without_bn() -> None:
    """Of position sums: σ_w²/2 and, in terms of q̃_xy, σ_w² P(both positive); claim 6.6 prints q̃ for q̃_xy."""
    measured, q_hat = maps("none"), Moments(1.0, SHARED, 0.0)
    above, above_xy = position_sums(measured.delta[1])
    below, below_xy = position_sums(measured.delta[0])
    q = q_hat.affine()
    factor = SIGMA_W2 * both_positive(q.q_xy / q.q)
    assert below == pytest.approx(SIGMA_W2 / 2 * above, rel=0.1)
    assert below_xy == pytest.approx(factor * above_xy, rel=0.1)
    assert factor * above > 1.2 * below_xy


@pytest.mark.slow
@pytest.mark.parametrize("gamma", [0.1, 1.0])
def test_claim_6_4_back_through_convolutions_with_bn(gamma: float) -> None:
    """Of position sums, with the variance q − q_xy: σ_w²γ²/2s² and σ_w²γ²/4s²; eq. 118 prints q̃ for q̃_xy."""
    measured, q = maps("position", gamma), Moments(1.0, SHARED, 0.0).affine()
    above, above_xy = position_sums(measured.delta[1])
    below, below_xy = position_sums(measured.delta[0])
    s2 = q.q - q.q_xy
    assert below == pytest.approx(SIGMA_W2 * gamma**2 / (2 * s2) * above, rel=0.1)
    assert below_xy == pytest.approx(SIGMA_W2 * gamma**2 / (4 * s2) * above_xy, rel=0.1)
    assert SIGMA_W2 * gamma**2 / (4 * s2) * above > 1.8 * below_xy


# sums over positions, exactly


def back_through_unit_weights(delta: Tensor, c_in: int, k: int, stride: int, padding: int = 0) -> Tensor:
    """Wᵀδ/√fan_in for every W with a single 1: sums of products over them are expectations over W."""
    weights = torch.eye(delta.shape[1] * c_in * k * k, dtype=torch.float64).view(-1, delta.shape[1], c_in, k, k)
    back = torch.stack([conv_transpose2d(delta, weight, stride=stride, padding=padding) for weight in weights])
    return back / math.sqrt(c_in * k * k)


@pytest.mark.parametrize(("stride", "size"), [(1, 6), (2, 7), (3, 9)])
def test_a_convolution_conserves_sums_over_positions_and_not_means(stride: int, size: int) -> None:
    """E_W Σ_α ⟨(Wᵀδ)_α(x), (Wᵀδ)_α(y)⟩ = σ_w² Σ_β ⟨δ_β(x), δ_β(y)⟩, and likewise over α ≠ α' and β ≠ β'.

    The expectation over W is exact: a sum over unit weights. Eqs. 114, 115 and 124 equate the means over positions.
    """
    positions = (size - 3) // stride + 1
    delta = normal(2, 3, positions, positions)  # of two inputs x, y
    back = math.sqrt(SIGMA_W2) * back_through_unit_weights(delta, 2, 3, stride)

    def same_and_other(x: Tensor, y: Tensor) -> tuple[float, float]:
        same = float((x * y).sum())
        return same, float((x.sum((-1, -2)) * y.sum((-1, -2))).sum()) - same

    above, below = same_and_other(delta[0], delta[1]), same_and_other(back[:, 0], back[:, 1])
    assert below == pytest.approx([SIGMA_W2 * s for s in above], rel=1e-10)
    sites_below, sites_above = back.shape[-1] ** 2, positions**2
    assert abs(below[0] / sites_below) < 0.6 * SIGMA_W2 * abs(above[0] / sites_above)


def test_padding_loses_the_part_of_the_position_sum_that_falls_outside() -> None:
    """Σ_β ⟨δ_β(x), δ_β(y)⟩ then counts each position by the share of its kernel sites that lie inside."""
    k, size = 3, 7
    positions = (size + 2 - k) // 2 + 1
    delta = normal(2, 3, positions, positions)
    back = back_through_unit_weights(delta, 2, k, stride=2, padding=1)
    product = float((back[:, 0] * back[:, 1]).sum())
    ones = torch.ones(1, 1, size, size, dtype=torch.float64)
    inside = conv2d(ones, torch.ones(1, 1, k, k, dtype=torch.float64), stride=2, padding=1)[0, 0] / k**2
    products = (delta[0] * delta[1]).sum(0)
    assert product == pytest.approx(float((inside * products).sum()), rel=1e-10)
    assert abs(product - float(products.sum())) > 1e-2 * abs(float(products.sum()))


CHANNELS = [1, 60, 120, 180]
SIDES = [28, 13, 6, 2]


def convolutional_network(
    gamma: float, head: str, seed: int, examples: int = 80
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The inputs of three 3×3 convolutions with stride 2 and detached BN, their δ, and the features of the head."""
    h = normal(examples, 1, 28, 28, seed=seed + 100).requires_grad_()
    inputs, z = [], []
    for k, (c_in, c_out) in enumerate(pairwise(CHANNELS), start=1):
        weight = normal(c_out, c_in, 3, 3, seed=10 * seed + k) * math.sqrt(SIGMA_W2 / (9 * c_in))
        inputs.append(h)
        z.append(conv2d(h, weight, normal(c_out, seed=10 * seed + k + 50) * math.sqrt(SIGMA_B2), stride=2))
        variance, mean = torch.var_mean(z[-1].detach(), (0, 2, 3), correction=0, keepdim=True)
        h = torch.relu(gamma * (z[-1] - mean) / variance.sqrt())
    features = h.flatten(1) if head == "flatten" else h.mean((2, 3))
    weight = normal(features.shape[1], seed=10 * seed + 9) * math.sqrt(SIGMA_W2 / features.shape[1])
    deltas = torch.autograd.grad((features @ weight).sum(), z)
    return [x.detach() for x in inputs], list(deltas), features.detach()


def grams(inputs: list[Tensor], deltas: list[Tensor], features: Tensor) -> list[Tensor]:
    """⟨∂f(x)/∂W^l, ∂f(y)/∂W^l⟩ / N of the convolutions and of the linear head."""
    gradients = [
        torch.einsum("nok,nik->noi", delta.flatten(2), unfold(x, 3, stride=2)).flatten(1)
        for x, delta in zip(inputs, deltas, strict=True)
    ]
    return [g @ g.T / len(g) for g in (*gradients, features)]


@pytest.mark.slow
@pytest.mark.parametrize("head", ["flatten", "pool"])
def test_equation_45_holds_for_means_over_positions(head: str) -> None:
    """With q̃ and q̂ as eqs. 30 to 33 define them, measured, it is the term of a layer; the mean of four networks."""
    networks = [convolutional_network(1.0, head, seed) for seed in range(4)]
    for k in (1, 2):
        h, delta = (Moments.of([each[part][k].flatten(2) for each in networks]) for part in (0, 1))
        channels, positions = networks[0][1][k].flatten(2).shape[1:]
        of_delta, of_h = ((positions - 1) * m.q_ab + m.q_xy for m in (delta, h))
        measured = np.mean([term(grams(*each)[k]) for each in networks])
        assert 9 * CHANNELS[k] * channels * of_delta * of_h == pytest.approx(measured, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["flatten", "pool"])
def test_equation_45_with_the_printed_recursions_is_too_high(head: str) -> None:
    """With position sums it is right within 20 %, each layer's term too; as printed it is over twice as high."""
    networks = [grams(*convolutional_network(1.0, head, seed)) for seed in range(4)]
    largest = float(np.mean([float(torch.linalg.eigvalsh(sum(each))[-1]) for each in networks]))
    corrected = convolution_terms(CHANNELS, SIDES, 1.0, head)
    assert largest == pytest.approx(sum(corrected), rel=0.2)
    printed, layers = printed_contributions(f"conv 1x28x28 60-120-180 k3 s2 1 {head}")
    assert float(printed) > 2 * largest
    for k in (2, 3, 4):
        measured = np.mean([term(each[k - 1]) for each in networks])
        assert measured == pytest.approx(corrected[k - 1], rel=0.2)
        if k < 4:
            assert float(layers[k - 1].term) > 1.4 * measured
