"""Gaussian expectations of activations, against closed forms and against dense Gauss-Legendre quadrature in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from wellcond.learning_rate.meanfield.gaussian import PiecewiseLinear, Smooth

SMOOTH: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "silu": F.silu,
    "erf": torch.erf,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "square": torch.square,
}
PAIRS = [(1.0, 1.0, 1.0), (1.0, 1.0, 0.5), (1.3, 0.4, 0.6), (2.0, 0.5, -0.9), (0.3, 1.0, 0.0)]
"""v, w, k with k² ≤ vw."""
EXPECTATIONS = ["product", "slopes", "weighted_slopes"]


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def reference(f: Callable[[Tensor], Tensor], v: float, w: float, k: float) -> float:
    """E[f(a) f(b)] on a grid of 400 × 400 nodes over ±12 deviations; what lies beyond is below 1e-30."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    u = 12 * torch.from_numpy(nodes)
    density = 12 * torch.from_numpy(weights) * torch.exp(-u.square() / 2) / math.sqrt(2 * math.pi)
    b = k / math.sqrt(v) * u[:, None] + math.sqrt(max(w - k * k / v, 0.0)) * u
    return float((density * f(math.sqrt(v) * u) * (density * f(b)).sum(-1)).sum())


def of_kind(f: Callable[[Tensor], Tensor], kind: str) -> Callable[[Tensor], Tensor]:
    """The function whose E[·(a) ·(b)] each expectation is."""

    def slope(x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(f(x).sum(), x)[0]

    return {"product": f, "slopes": slope, "weighted_slopes": lambda x: x * slope(x)}[kind]


@pytest.mark.parametrize("kind", EXPECTATIONS)
@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(("v", "w", "k"), PAIRS)
def test_smooth_activations_agree_with_a_dense_quadrature(name: str, v: float, w: float, k: float, kind: str) -> None:
    result = getattr(Smooth(name, SMOOTH[name]), kind)(number(v), number(w), number(k))
    assert float(result) == pytest.approx(reference(of_kind(SMOOTH[name], kind), v, w, k), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("v", "w", "k"), [*PAIRS, (9.0, 9.0, 4.0), (4.0, 0.1, 0.3)])
def test_erf_has_closed_forms(v: float, w: float, k: float) -> None:
    """E erf(a)erf(b) = (2/π) asin(2k/√((1+2v)(1+2w))) and E erf'(a)erf'(b) = (4/π)/√((1+2v)(1+2w) − 4k²)."""
    erf, d = Smooth("erf", torch.erf), (1 + 2 * v) * (1 + 2 * w)
    product, slopes = erf.product(*map(number, (v, w, k))), erf.slopes(*map(number, (v, w, k)))
    assert float(product) == pytest.approx(2 / math.pi * math.asin(2 * k / math.sqrt(d)), rel=1e-9, abs=1e-14)
    assert float(slopes) == pytest.approx(4 / math.pi / math.sqrt(d - 4 * k * k), rel=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("name", ["gelu", "silu", "tanh"])
def test_smooth_activations_are_exact_to_1e_3_up_to_variance_nine(name: str, gamma: float) -> None:
    for kind in EXPECTATIONS:
        result = getattr(Smooth(name, SMOOTH[name]), kind)(*[number(gamma**2)] * 3)
        f = of_kind(SMOOTH[name], kind)
        assert float(result) == pytest.approx(reference(f, gamma**2, gamma**2, gamma**2), rel=1e-3)


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0, -0.5])
@pytest.mark.parametrize(("v", "w", "c"), [(1.0, 1.0, 0.0), (2.0, 0.5, 0.7), (0.3, 3.0, -0.95), (1.0, 1.0, 0.999)])
def test_piecewise_linear_activations_agree_with_integrals_over_half_lines(
    slope: float, v: float, w: float, c: float
) -> None:
    """Given a > 0 or a < 0, b is a Gaussian whose moments above and below 0 are known."""
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(400))
    edges = [-12.0, -0.5, 0.0, 0.5, 12.0]
    u = torch.cat([(a + b + (b - a) * nodes) / 2 for a, b in pairwise(edges)])
    lengths = torch.cat([(b - a) * weights / 2 for a, b in pairwise(edges)])
    density = lengths * torch.exp(-u.square() / 2) / math.sqrt(2 * math.pi)
    mean, spread = c * u, math.sqrt(1 - c * c)
    above = torch.special.ndtr(mean / spread)
    bump = spread * torch.exp(-((mean / spread) ** 2) / 2) / math.sqrt(2 * math.pi)
    conditional = (mean * above + bump) + slope * (mean * (1 - above) - bump)
    product = math.sqrt(v * w) * float((density * torch.where(u > 0, u, slope * u) * conditional).sum())
    slopes = float((density * (1 + (slope - 1) * (u < 0).double()) * (above + slope * (1 - above))).sum())
    phi = PiecewiseLinear(slope)
    arguments = (number(v), number(w), number(c * math.sqrt(v * w)))
    assert float(phi.product(*arguments)) == pytest.approx(product, rel=1e-9, abs=1e-12)
    assert float(phi.weighted_slopes(*arguments)) == pytest.approx(product, rel=1e-9, abs=1e-12)
    assert float(phi.slopes(*arguments)) == pytest.approx(slopes, rel=1e-9)


def test_limits_of_pairs() -> None:
    """Odd functions of independent Gaussians; no variance; a correlation that rounding takes beyond 1."""
    zero, one, two = map(number, (0.0, 1.0, 2.0))
    relu, sigmoid = PiecewiseLinear(0.0), Smooth("sigmoid", torch.sigmoid)
    slope = reference(lambda x: torch.sigmoid(x) * (1 - torch.sigmoid(x)), 1.0, 1.0, 0.0) ** 0.5
    assert float(Smooth("tanh", torch.tanh).product(two, one, zero)) == 0.0
    assert float(sigmoid.product(zero, zero, zero)) == pytest.approx(0.25, rel=1e-12)
    assert float(sigmoid.slopes(zero, one, zero)) == pytest.approx(0.25 * slope, rel=1e-9)
    assert float(relu.product(zero, zero, zero)) == 0.0
    assert float(relu.product(one, one, number(1 + 1e-12))) == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("phi", [PiecewiseLinear(0.1), Smooth("gelu", F.gelu)], ids=lambda phi: phi.name)
def test_a_matrix_of_pairs_is_that_of_single_pairs(phi: PiecewiseLinear | Smooth) -> None:
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    k = x @ x.T / 9
    variance = k.diagonal()
    result = phi.product(variance[:, None], variance[None, :], k)
    single = [[float(phi.product(k[i, i], k[j, j], k[i, j])) for j in range(4)] for i in range(4)]
    assert result.tolist() == [pytest.approx(row, rel=1e-12) for row in single]
