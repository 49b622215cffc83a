"""The Marchenko-Pastur law against quadrature, textbook moments, Kolmogorov's tables and random matrices."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from zoo import normal, white

import wellcond as wc
from wellcond.curvature.spectra.exact import Spectrum
from wellcond.measurements.blocks.local_hessian import local_hessian
from wellcond.measurements.blocks.marchenko_pastur import MarchenkoPastur, marchenko_pastur, zeros_of_rounding

RATIOS = [0.25, 1.0, 4.0, 1 - 1e-6, 1 + 1e-3, 1e-4, 1e4]


def textbook_density(law: MarchenkoPastur, x: Tensor) -> Tensor:
    """zhang2018, eq. 11, written out."""
    s2 = law.sigma**2
    low, high = s2 * (1 - law.c**0.5) ** 2 / law.c, s2 * (1 + law.c**0.5) ** 2 / law.c
    return law.c / (2 * math.pi * s2) * ((high - x) * (x - low).clamp(min=0)).sqrt() / x


def integral(function: Callable[[Tensor], Tensor], low: float, high: float, law: MarchenkoPastur) -> float:
    """Gauss-Legendre in φ, x = c₋ + (c₊ − c₋) sin²φ: smooth although the integrand ends as √ or 1/√.

    Panels that halve toward c₋ resolve its peak near c = 1.
    """
    start, end = law.support
    nodes, weights = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(30))
    first, last = (math.asin(math.sqrt(min(1.0, max(0.0, (x - start) / (end - start))))) for x in (low, high))
    total = 0.0
    for left, right in itertools.pairwise([0.0, *(2.0**-k for k in range(40, -1, -1))]):
        half = (last - first) * (right - left) / 2
        phi = first + (last - first) * left + half * (nodes + 1)
        x = start + (end - start) * phi.sin() ** 2
        slope = 2 * (end - start) * phi.sin() * phi.cos()
        total += half * float((weights * function(x) * slope).sum())
    return total


every_law = pytest.mark.parametrize(
    "law", [marchenko_pastur(c, sigma) for c in RATIOS for sigma in (1.0, 0.3)], ids=str
)


@every_law
def test_the_density_is_equation_11_and_integrates_to_the_mass_above_zero(law: MarchenkoPastur) -> None:
    low, high = law.support
    x = torch.linspace(low, high, 23, dtype=torch.float64)[1:-1]
    torch.testing.assert_close(law.density(x), textbook_density(law, x), rtol=1e-9, atol=0)
    assert law.density(1.01 * high) == law.density(-1.0) == law.density(math.inf) == 0
    assert low == 0 or law.density(0.99 * low) == 0
    assert law.mass_at_zero == max(0, 1 - law.c)
    assert integral(law.density, low, high, law) == pytest.approx(1 - law.mass_at_zero, abs=1e-10)


@every_law
def test_cdf_is_the_integral_of_the_density_and_the_atom(law: MarchenkoPastur) -> None:
    low, high = law.support
    for share in (1e-4, 0.1, 0.35, 0.5, 0.8, 0.999, 1.0):
        x = low + (high - low) * share
        expected = max(0, 1 - law.c) + integral(lambda t: textbook_density(law, t), low, x, law)
        # rounding of x itself moves the share of a narrow law, and that of c₋ the density near c = 1
        assert law.cdf(x) == pytest.approx(expected, abs=1e-10)
    assert law.cdf(-1e-300) == law.cdf(-math.inf) == 0
    assert law.cdf(0.0) == law.cdf(low / 2) == max(0, 1 - law.c)
    assert law.cdf(2 * high) == law.cdf(math.inf) == 1
    shares = law.cdf(torch.linspace(low, high, 1001, dtype=torch.float64))
    assert bool((shares.diff() >= -1e-12).all())


@every_law
def test_quantile_and_cdf_undo_each_other(law: MarchenkoPastur) -> None:
    low, high = law.support
    x = torch.linspace(low, high, 41, dtype=torch.float64)[1:-1]
    # a share of 1e-16 is so much of x: a tiny c has all its eigenvalues in a share c
    rounding = 1e-15 / law.density(x)
    assert bool(((law.quantile(law.cdf(x)) - x).abs() <= 1e-12 * high + rounding).all())
    q = torch.linspace(law.mass_at_zero, 1, 37, dtype=torch.float64)[1:]
    torch.testing.assert_close(law.cdf(law.quantile(q)), q, rtol=0, atol=1e-12)
    assert law.quantile(0.0) == law.quantile(law.mass_at_zero) == (0 if law.c < 1 else low)
    assert law.quantile(1.0) == high


@every_law
def test_moments_are_those_of_narayana_and_of_the_density(law: MarchenkoPastur) -> None:
    c, s2 = law.c, law.sigma**2
    expected = [1, s2, s2**2 * (1 + 1 / c), s2**3 * (1 + 3 / c + 1 / c**2)]
    assert [law.moment(k) for k in range(4)] == pytest.approx(expected, rel=1e-14)
    assert law.mean == pytest.approx(s2, rel=1e-15)
    for k in (1, 2, 3, 6):
        by_density = integral(lambda t, k=k: t**k * law.density(t), *law.support, law)
        assert by_density == pytest.approx(law.moment(k), rel=1e-9)


@every_law
def test_scaling_the_weights_by_a_scales_the_eigenvalues_by_a_squared(law: MarchenkoPastur) -> None:
    wide = marchenko_pastur(law.c, 3 * law.sigma)
    assert wide.support == pytest.approx(tuple(9 * edge for edge in law.support), rel=1e-14)
    assert law.scaled(9).sigma == pytest.approx(wide.sigma, rel=1e-15)
    q = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(wide.quantile(q), 9 * law.quantile(q), rtol=1e-12, atol=0)


def test_the_square_case_in_closed_form_is_the_limit_from_both_sides() -> None:
    """c = 1: F = (θ + sin θ)/π with x = 4 sin²(θ/2); half of the eigenvalues are below the root of θ + sin θ = π/2."""
    law = marchenko_pastur(1.0)
    assert [marchenko_pastur(c).support for c in (0.25, 1, 4)] == [(1, 9), (0, 4), (0.25, 2.25)]
    theta = torch.linspace(0, math.pi, 50, dtype=torch.float64)
    x = 4 * (theta / 2).sin() ** 2
    torch.testing.assert_close(law.cdf(x), (theta + theta.sin()) / math.pi, rtol=0, atol=1e-14)
    tiny = 1e-18
    assert law.cdf(tiny) == pytest.approx(2 * math.sqrt(tiny) / math.pi, rel=1e-12)  # 1/√x is integrated to the end
    assert law.quantile(law.cdf(tiny)) == pytest.approx(tiny, rel=1e-12)
    assert law.density(0.0) == math.inf
    x = torch.linspace(0.01, 3.9, 40, dtype=torch.float64)
    for c in (1 - 1e-12, 1 + 1e-12):
        torch.testing.assert_close(marchenko_pastur(c).cdf(x), law.cdf(x), rtol=0, atol=1e-11)


def test_numbers_and_tensors_come_back_as_what_they_were() -> None:
    law = marchenko_pastur(0.5)
    x = torch.tensor([[0.5, 1.0], [2.0, 5.0]])  # float32
    for function in (law.density, law.cdf):
        assert isinstance(function(1.0), float)
        assert (function(x).shape, function(x).dtype) == (x.shape, torch.float64)
        assert function(x)[1, 0] == function(2.0)
    assert isinstance(law.quantile(0.9), float)
    assert law.quantile(torch.tensor([0.2, 0.9], dtype=torch.float64)).tolist() == [0.0, law.quantile(0.9)]
    assert math.isnan(law.cdf(math.nan))
    assert math.isnan(law.density(math.nan))


def test_unit_rows_have_the_density_of_equation_19() -> None:
    for c in (0.25, 1.0, 4.0):
        law = MarchenkoPastur.of_unit_rows(c)
        low, high = (1 - c**0.5) ** 2, (1 + c**0.5) ** 2
        assert law.support == pytest.approx((low, high), abs=1e-15)
        assert law.mean == pytest.approx(c, rel=1e-15)
        x = torch.linspace(low, high, 20, dtype=torch.float64)[1:-1]
        expected = ((high - x) * (x - low)).sqrt() / (2 * math.pi * x)
        torch.testing.assert_close(law.density(x), expected, rtol=1e-12, atol=0)


def spectrum_of_h_z(weight: Tensor, inputs: Tensor, *, norm: bool) -> wc.Spectrum:
    """H_z of one example, for a linear layer with this weight, or for it and BatchNorm with the inputs' statistics."""
    rows, columns = weight.shape
    layer = nn.Linear(columns, rows, bias=False)
    layer.weight.data = weight
    after = nn.BatchNorm1d(rows, eps=1e-30, affine=False) if norm else nn.Identity()
    if norm:
        after.running_var = (inputs @ weight.T).var(0, correction=0)
    model = nn.Sequential(nn.Sequential(layer, after), nn.Linear(rows, 1)).double()
    batch = (inputs[:1], torch.zeros(1, 1, dtype=torch.float64))
    block = local_hessian(wc.Problem(model, nn.MSELoss(), batch, batchnorm="running"), "0")
    return wc.spectrum(block.z.gauss_newton.dense())


@pytest.mark.slow
@pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
def test_h_z_of_gaussian_weights_has_the_law_also_with_batchnorm(c: float) -> None:
    columns = 200
    w, inputs = 0.3 * normal(int(c * columns), columns, seed=5), white(300, columns)
    law, unit_rows = marchenko_pastur(c, 0.3).scaled(len(w)), MarchenkoPastur.of_unit_rows(c)
    critical = law.critical_value(columns)
    normalized = []
    for factor in (1, 3):  # BatchNorm takes the scale of the weights away
        plain = spectrum_of_h_z(factor * w, inputs, norm=False)
        assert law.scaled(factor**2).distance(plain) < critical / 3
        normalized.append(spectrum_of_h_z(factor * w, inputs, norm=True))
        assert unit_rows.distance(normalized[-1]) < critical / 3
    torch.testing.assert_close(normalized[0].values, normalized[1].values, rtol=0, atol=1e-11)
    # inputs of variances 0.01 to 100: the rows are no longer divided by their lengths, but by what varies
    stretch = torch.logspace(-1, 1, columns, dtype=torch.float64)
    assert unit_rows.distance(spectrum_of_h_z(w, inputs * stretch, norm=True)) > 1.5 * critical


def test_the_distance_is_the_largest_difference_next_to_a_step() -> None:
    for c in (0.25, 1.0, 4.0):
        law, n = marchenko_pastur(c, 2.0), 100
        middles = law.quantile((torch.arange(n, dtype=torch.float64) + 0.5) / n)
        assert law.distance(middles) == pytest.approx(0.5 / n, abs=1e-12)
    law = marchenko_pastur(3.0)
    assert law.distance([law.quantile(0.3)]) == pytest.approx(0.7, abs=1e-12)
    assert law.distance([law.quantile(0.8)]) == pytest.approx(0.8, abs=1e-12)


def test_the_distance_counts_zeros_against_the_atom() -> None:
    law = marchenko_pastur(0.25)
    median = law.quantile(0.75 + 0.25 / 2)
    assert law.distance([0.0, 0.0, 0.0, median]) == pytest.approx(0.125, abs=1e-12)
    assert law.distance([0.0, 0.0, median, median]) == pytest.approx(0.375, abs=1e-12)  # F(median⁻) = 0.875
    assert law.distance([0.0, median, median, median]) == pytest.approx(0.625, abs=1e-12)
    assert law.distance([0.0] * 7) == 0.25
    assert law.distance([10.0]) == 1
    assert marchenko_pastur(4.0).distance([0.0, 0.0, 1.0]) == pytest.approx(2 / 3, abs=1e-12)
    assert marchenko_pastur(4.0).distance([-1.0, 1.0]) >= 0.5


def test_what_is_zero_to_rounding_of_its_dtype_is_zero() -> None:
    law = marchenko_pastur(0.25)
    noise = torch.tensor([-2e-7, 1e-7, 3e-7, 5.0])
    assert law.distance(noise) == law.distance(torch.tensor([0.0, 0.0, 0.0, 5.0]))
    assert law.distance(noise.double()) == 0.5  # in float64 they are not: one is below 0, none at it, F(0) = 0.75
    assert zeros_of_rounding(noise).tolist() == [0, 0, 0, 5]
    assert zeros_of_rounding([3.0, 1e-15, 1e-12]).tolist() == [0, 1e-12, 3]
    for dtype in (torch.float32, torch.float64):
        w = normal(50, 200).to(dtype)
        assert law.distance(torch.linalg.eigvalsh(w.T @ w / 50)) < 0.02


def test_eigenvalues_in_any_order_and_form_have_the_same_distance() -> None:
    law, values = marchenko_pastur(1.0), normal(30).square().sort().values
    for form in (values.flip(0), values.tolist(), Spectrum(values, "dense")):
        assert law.distance(form) == law.distance(values)


@pytest.mark.parametrize(("level", "table"), [(0.1, 1.2238), (0.05, 1.3581), (0.01, 1.6276), (0.001, 1.9495)])
def test_critical_values_are_those_of_smirnovs_table(level: float, table: float) -> None:
    assert MarchenkoPastur.critical_value(1, level) == pytest.approx(table, abs=5.1e-5)
    assert MarchenkoPastur.critical_value(400, level) == pytest.approx(table / 20, abs=3e-6)


@pytest.mark.parametrize("level", [0.999, 0.5, 0.01, 1e-8])
def test_critical_values_solve_the_other_form_of_kolmogorovs_series(level: float) -> None:
    """P(K ≤ x) = √(2π)/x Σ exp(−(2k−1)²π²/8x²), by Jacobi's identity."""
    x = MarchenkoPastur.critical_value(1, level)
    below = math.sqrt(2 * math.pi) / x * sum(math.exp(-(((2 * k - 1) * math.pi / x) ** 2) / 8) for k in range(1, 30))
    assert below == pytest.approx(1 - level, abs=1e-14)


def test_a_law_prints_and_has_rows() -> None:
    law = marchenko_pastur(0.25)
    assert str(law) == "Marchenko-Pastur law, c = 0.25, σ = 1: 0.75 of the eigenvalues at 0, the others from 1 to 9"
    assert str(marchenko_pastur(4.0)) == "Marchenko-Pastur law, c = 4, σ = 1: eigenvalues from 0.25 to 2.25"
    values = {row.quantity: row.value for row in law.rows()}
    assert values == {"support_low": 1, "support_high": 9, "mass_at_zero": 0.75, "mean": 1}
    with pytest.raises(dataclasses.FrozenInstanceError):
        law.c = 2.0  # type: ignore[misc]


LAW = marchenko_pastur(1.0)
NOT_POSITIVE = [0.0, -1.0, math.inf, math.nan]
WRONG: list[tuple[str, Callable[[Any], Any], list[Any]]] = [
    ("c is ", marchenko_pastur, NOT_POSITIVE),
    ("c is ", MarchenkoPastur.of_unit_rows, NOT_POSITIVE),
    ("sigma is ", lambda sigma: marchenko_pastur(1.0, sigma), NOT_POSITIVE),
    ("factor is ", LAW.scaled, NOT_POSITIVE),
    ("level is ", lambda level: LAW.critical_value(10, level), [*NOT_POSITIVE, 1.0]),
    ("q is ", LAW.quantile, [-0.1, 1.1, math.nan, *(torch.tensor([0.5, q]) for q in (-0.1, 1.1, math.nan))]),
    ("order is -1", LAW.moment, [-1]),
    ("n is 0", LAW.critical_value, [0]),
    ("values must be a vector of finite", LAW.distance, [[], [math.nan], [1.0, math.inf], torch.ones(2, 2)]),
]


@pytest.mark.parametrize(("message", "function", "arguments"), WRONG)
def test_wrong_arguments_are_named(message: str, function: Callable[[Any], Any], arguments: list[Any]) -> None:
    for wrong in arguments:
        with pytest.raises(ValueError, match=f"^{message}"):
            function(wrong)
