"""The recursions of wei2019 written out, for ReLU and independent normalized inputs.

Weights N(0, σ_w²/fan_in), biases N(0, σ_b²). q, q̂, q̃ are the mean squares of pre-activations, activations and
gradients of one output; `_xy` are the mean products of two different inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SIGMA_W2, SIGMA_B2 = 2.0, 0.5


def rectified_product(q: float, c: float) -> float:
    """E relu(u)relu(v) for Gaussian u, v of variance q and correlation c: eq. 21."""
    return q / (2 * math.pi) * (math.sqrt(1 - c**2) + c * math.pi / 2 + c * math.asin(c))


def both_positive(c: float) -> float:
    """P(u > 0, v > 0): eq. 22."""
    return (math.pi / 2 + math.asin(c)) / (2 * math.pi)


@dataclass(frozen=True)
class Order:
    """The order parameters of a network with L layers, by layer; q̃ at 0 and q at 0 do not exist."""

    q: list[float]
    q_xy: list[float]
    q_hat: list[float]
    q_hat_xy: list[float]
    q_tilde: list[float]
    q_tilde_xy: list[float]

    def terms(self, widths: Sequence[int]) -> list[float]:
        """f_l = N_{l−1} q̂_xy^{l−1} q̃_xy^l for l = 1 to L."""
        return [n * h * d for n, h, d in zip(widths, self.q_hat_xy, self.q_tilde_xy[1:], strict=False)]


def vanilla(layers: int) -> Order:
    """Eqs. 20 to 22."""
    q, q_xy, q_hat, q_hat_xy = [math.nan], [math.nan], [1.0], [0.0]
    for _ in range(layers):
        q.append(SIGMA_B2 + SIGMA_W2 * q_hat[-1])
        q_xy.append(SIGMA_B2 + SIGMA_W2 * q_hat_xy[-1])
        q_hat.append(q[-1] / 2)
        q_hat_xy.append(rectified_product(q[-1], q_xy[-1] / q[-1]))
    q_tilde, q_tilde_xy = [1.0], [1.0]
    for k in range(layers - 1, 0, -1):
        q_tilde.insert(0, SIGMA_W2 * q_tilde[0] / 2)
        q_tilde_xy.insert(0, SIGMA_W2 * q_tilde_xy[0] * both_positive(q_xy[k] / q[k]))
    return Order(q, q_xy, q_hat, q_hat_xy, [math.nan, *q_tilde], [math.nan, *q_tilde_xy])


def batchnorm(layers: int, gamma: float, *, as_printed: bool = False) -> Order:
    """Eqs. 23 to 25 with constant statistics, s² = q − q_xy; as printed, s² = q."""
    q_hat = [1.0] + [gamma**2 / 2] * (layers - 1)
    q_hat_xy = [0.0] + [gamma**2 / (2 * math.pi)] * (layers - 1)
    q = [math.nan] + [SIGMA_B2 + SIGMA_W2 * h for h in q_hat]
    q_xy = [math.nan] + [SIGMA_B2 + SIGMA_W2 * h for h in q_hat_xy]
    q_tilde, q_tilde_xy = [1.0], [1.0]
    for k in range(layers - 1, 0, -1):
        s2 = q[k] if as_printed else q[k] - q_xy[k]
        q_tilde.insert(0, SIGMA_W2 * gamma**2 * q_tilde[0] / (2 * s2))
        q_tilde_xy.insert(0, SIGMA_W2 * gamma**2 * q_tilde_xy[0] / (4 * s2))
    return Order(q, q_xy, q_hat, q_hat_xy, [math.nan, *q_tilde], [math.nan, *q_tilde_xy])


def convolution_terms(
    channels: Sequence[int], sides: Sequence[int], gamma: float, head: str, *, as_printed: bool = False
) -> list[float]:
    """Of 3×3 convolutions with BatchNorm and a linear head, by position sums: flattened or pooled they start at 1.

    As printed, the mean over positions is kept in place of the sum, which eq. 45 then multiplies by |K|, and q̃_αβ is 0.
    channels, sides: of the input and the layers.
    """
    layers = len(channels)
    order = batchnorm(layers, gamma, as_printed=as_printed)
    features = channels[-1] * (sides[-1] ** 2 if head == "flatten" else 1)
    counted = [side**2 if as_printed else 1 for side in sides]
    terms = [
        9 * channels[k - 1] * counted[k] * order.q_hat_xy[k - 1] * order.q_tilde_xy[k] for k in range(1, layers)
    ]  # q̂_αβ = q̂_xy
    return [*terms, features * order.q_hat_xy[layers - 1]]
