"""lange2022: a convolution as a matrix product, and the Hessian of one of its channels, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lange2022_matrices import centering, extended, kappa, matrix, scaling
from references import assert_same
from torch import Tensor, nn
from unit_hessians import (
    CONVOLUTIONS,
    TAILS,
    autograd_hessian,
    convolutional,
    curvature,
    joint_curvature,
    labeled,
    library_hessian,
    pre_activations,
    rows,
    unit_parameters,
)
from zoo import normal, seeded


def vec(t: Tensor) -> Tensor:
    """From the first dimension onward, as the source has it."""
    return t.permute(*reversed(range(t.dim()))).reshape(-1)


def printed_block(h: Tensor, k: int, t: int, u: int) -> Tensor:
    """(H_p)_tu of the source, r × k, with its 1-based indices: entry (i, j) is h(t′ + i + j, u′), 0 out of bounds."""
    r, s = h.shape
    t_prime, u_prime = 1 - (k - 1) // 2, u - (k - 1) // 2 + (t - 1)
    block = torch.zeros(r, k, dtype=h.dtype)
    for i in range(r):
        for j in range(k):
            row = t_prime + i + j
            if 1 <= row <= r and 1 <= u_prime <= s:
                block[i, j] = h[row - 1, u_prime - 1]
    return block


def source_im2col(h: Tensor, k: int) -> Tensor:
    """[H_1 … H_c] of one example h (c, r, s)."""
    c, _, s = h.shape
    maps = [
        torch.cat([torch.cat([printed_block(h[p], k, t, u) for u in range(1, k + 1)], 1) for t in range(1, s + 1)])
        for p in range(c)
    ]
    return torch.cat(maps, 1)


SAME = [(1, 3, 4, 3), (2, 3, 3, 5), (3, 5, 4, 6), (2, 1, 3, 2)]
"""Channels, kernel, r and s."""


@pytest.mark.parametrize(("c", "k", "r", "s"), SAME)
def test_lemma_8_a_convolution_is_the_im2col_matrix_times_w_hat(c: int, k: int, r: int, s: int) -> None:
    conv, h = seeded(lambda: nn.Conv2d(c, 2, k, padding="same")), normal(3, c, r, s, seed=k)
    for d in range(2):
        H_hat = extended(torch.cat([source_im2col(example, k) for example in h]))
        w_hat = torch.cat([conv.bias[d : d + 1], *(vec(conv.weight[d, p]) for p in range(c))]).detach()
        a_hat = torch.cat([vec(example[d]) for example in conv(h)])
        assert_same(H_hat @ w_hat, a_hat, 1e-13)


def test_lemma_8_prints_the_indices_of_a_kernel_entry_exchanged() -> None:
    """Column (j−1)k + v belongs to w(v, j), as the ranges of u and i printed for it say; not to "w(j, v, p, d)"."""
    conv, h = seeded(lambda: nn.Conv2d(1, 1, 3, padding="same", bias=False)), normal(1, 1, 4, 3)
    w, k = conv.weight[0, 0].detach(), 3
    a = vec(conv(h)[0, 0]).detach()
    H_1 = source_im2col(h[0], k)
    by_column = {"right": torch.empty(k * k).double(), "printed": torch.empty(k * k).double()}
    for j in range(1, k + 1):
        for v in range(1, k + 1):
            by_column["right"][(j - 1) * k + v - 1] = w[v - 1, j - 1]
            by_column["printed"][(j - 1) * k + v - 1] = w[j - 1, v - 1]
    assert_same(H_1 @ by_column["right"], a, 1e-13)
    assert (H_1 @ by_column["printed"] - a).norm() > 0.1 * a.norm()


@pytest.mark.parametrize("settings", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_lemma_8_holds_for_every_stride_and_padding_with_their_own_im2col(settings: dict[str, Any]) -> None:
    """Through the library's patches, whose columns run over the last dimension first."""
    model, (x, _) = convolutional(settings, "ReLU, pooled"), labeled(3, 1, 5, 4, seed=1)
    for unit in (0, 3):
        H_hat, w_hat = extended(rows(model, 2, unit, x)), unit_parameters(model, 2, unit)
        assert_same(H_hat @ w_hat, pre_activations(model, 2, unit, x), 1e-13)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("settings", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_proposition_9_s_has_one_block_per_example(settings: dict[str, Any], tail: str) -> None:
    """S = (1/N) blockdiag(∂²L/∂v_a²), blocks of rs × rs."""
    model, data = convolutional(settings, tail), labeled(4, 1, 5, 4, seed=3)
    H_hat, S = extended(rows(model, 2, 2, data[0])), curvature(model, 2, 2, data)
    assert_same(S, joint_curvature(model, 2, 2, data), 1e-12)
    expected = autograd_hessian(model, 2, 2, data)
    assert_same(H_hat.T @ S @ H_hat, expected, 1e-11)
    assert_same(library_hessian(model, 2, 2, data), expected, 1e-11)


def test_proposition_9_with_the_diagonal_of_s_alone_fails() -> None:
    """What "diag{…}" must not be read as: positions of one example meet in later layers."""
    model, data = convolutional({"padding": "same"}, "tanh, averaged"), labeled(4, 1, 5, 4, seed=3)
    H_hat, S = extended(rows(model, 2, 2, data[0])), curvature(model, 2, 2, data)
    expected = autograd_hessian(model, 2, 2, data)
    diagonal = H_hat.T @ torch.diag(S.diagonal()) @ H_hat
    assert (diagonal - expected).norm() > 0.1 * expected.norm()


def test_section_4_one_example_has_condition_number_1_in_a_dense_layer_and_not_in_a_convolution() -> None:
    """Ĥ of a dense layer has one row then, with or without P; that of a convolution has one row a position."""
    row = extended(5 * normal(1, 8) + 3)
    P = centering(normal(20, 8)) @ scaling(normal(20, 8))
    assert kappa(row) == pytest.approx(1, rel=1e-12)
    assert kappa(row @ P) == pytest.approx(1, rel=1e-12)
    image = normal(2, 9, 9) * matrix([0.1, 10.0]).view(2, 1, 1) + 3
    H = source_im2col(image, 3)
    assert kappa(extended(H)) > 100
    assert kappa(extended(H) @ centering(H) @ scaling(H)) < kappa(extended(H)) / 10
