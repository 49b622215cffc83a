"""The two sides of a second moment, its range and its limits, against dense float64 products."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from layer_zoo import CONVOLUTIONS
from references import assert_same
from torch import Tensor, nn
from zoo import integers, normal, seeded

import wellcond as wc
from wellcond.curvature.kronecker import second_moment
from wellcond.curvature.kronecker.matrix_conditioning import largest_product
from wellcond.curvature.kronecker.second_moment import SecondMoment
from wellcond.errors import NonFinite, TooLarge
from wellcond_papers.models import mlp

SCALES = [1e-42, 1e-40, 1e-30, 1e-24, 1e-19, 1.0, 1e18, 1e30, 1e37]


def dense(batches: list[tuple[float, Tensor]]) -> Tensor:
    """Σ weight · r rᵀ / count of (groups, n, d), in float64."""
    total = sum(weight * torch.einsum("cni,cnj->cij", rows.double(), rows.double()) for weight, rows in batches)
    return total / sum(rows.shape[1] for _, rows in batches)


def gathered(batches: list[tuple[float, Tensor]]) -> SecondMoment:
    moment = SecondMoment("Σx of layer 'fc'")
    for weight, rows in batches:
        moment.add(rows.unsqueeze(1), weight)
    return moment


def all_values(moment: SecondMoment) -> Tensor:
    values = moment.eigenvalues()
    zeros = values.new_zeros(moment.groups, moment.dimension - values.shape[1])
    return torch.cat([zeros, values], 1).sort(-1).values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sizes", [[3], [2, 3], [4, 4], [3, 0, 9], [40]], ids=str)
def test_both_sides_are_the_dense_matrix(sizes: list[int], scale: float, dtype: torch.dtype) -> None:
    """Whatever the magnitude, the number of batches and their weights; 8 features, 2 groups."""
    batches = [(float(1 + i), (normal(2, n, 8, seed=i) * scale).to(dtype)) for i, n in enumerate(sizes)]
    moment, expected = gathered(batches), dense(batches)
    assert moment.side == ("rows" if sum(sizes) < 8 else "features")
    assert moment.count == sum(sizes)
    largest = expected.abs().max()
    eps = torch.finfo(dtype).eps
    assert_same(moment.mean / largest, expected / largest, 100 * eps)
    assert_same(all_values(moment) / largest, torch.linalg.eigvalsh(expected / largest), 100 * eps)
    assert moment.trace == pytest.approx(float(expected.diagonal(dim1=1, dim2=2).sum()), rel=100 * eps)


@pytest.mark.parametrize("first", [1e-30, 1e25])
@pytest.mark.parametrize("rows", [3, 20])
def test_batches_of_very_different_magnitude(rows: int, first: float) -> None:
    batches = [(1.0, (normal(1, rows, 10, seed=i) * scale).float()) for i, scale in enumerate((first, 1.0, 1e-12))]
    moment, expected = gathered(batches), dense(batches)
    largest = expected.abs().max()
    assert_same(all_values(moment) / largest, torch.linalg.eigvalsh(expected / largest), 1e-5)


def test_one_group_out_of_range_keeps_its_eigenvalues() -> None:
    rows = torch.stack([normal(20, 4), normal(20, 4, seed=1) * 1e-28]).float()
    values = gathered([(1.0, rows)]).eigenvalues()[1]
    assert_same(values * 1e56, torch.linalg.eigvalsh(dense([(1.0, rows * 1e28)])[1]), 1e-5)


def test_the_side_of_the_rows_invents_no_rank() -> None:
    """32 rows twice in float32 have the same number of eigenvalues above rounding as in float64."""
    half = normal(1, 32, 500).float()
    rows = torch.cat([half, half], 1)
    values = gathered([(1.0, rows)]).eigenvalues().flatten()
    assert int((values > 1e-12 * values.max()).sum()) == 32


def test_rows_are_kept_as_they_were() -> None:
    rows = normal(1, 1, 3, 8)
    moment = SecondMoment("Σx")
    moment.add(rows)
    before = moment.mean.clone()
    rows.zero_()
    assert torch.equal(moment.mean, before)


def test_half_precision_is_summed_in_float32() -> None:
    rows = normal(1, 30, 4).bfloat16()
    assert_same(gathered([(1.0, rows)]).mean, dense([(1.0, rows)]), 1e-6)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("n", [3, 30])
def test_what_is_not_finite_is_named(n: int, bad: float) -> None:
    rows = normal(1, n, 8).float()
    rows[0, 1, 2] = bad
    with pytest.raises(NonFinite, match=r"Σx of layer 'fc'.*NaN or inf"):
        gathered([(1.0, rows)]).eigenvalues()


def test_a_matrix_large_on_both_sides_has_its_largest_eigenvalue_and_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_moment, "EXACT", 50)
    model = seeded(lambda: nn.Sequential(nn.Linear(60, 4), nn.Linear(4, 3)))
    data = [(normal(30, 60, seed=i), integers(3, 30)) for i in range(3)]
    problem = wc.Problem(model, nn.CrossEntropyLoss(), data)
    table = wc.conditioning(problem)
    x = torch.cat([x for x, _ in data])
    largest = float(torch.linalg.eigvalsh(x.T @ x / 90)[-1])
    result = table["0"].x
    assert result.lambda_max == pytest.approx(largest, rel=1e-3)
    assert result.trace == pytest.approx(float(x.square().sum()) / 90)
    assert (result.rank, result.dimension, table["0"].kronecker) == (None, 60, None)
    assert all(map(math.isnan, result.kappa.values()))
    assert "by Lanczos on all rows" in result.note
    assert result.note in str(table)
    with pytest.raises(TooLarge, match="Lanczos"):
        result.values  # noqa: B018
    written = {row.quantity for row in table.rows() if row.layer == "0"}
    assert {"input_lambda_max", "input_trace", "gradient_rank"} <= written
    assert not written & {"input_rank", "input_kappa_50", "kronecker_lambda_max"}
    assert table["0"].g.rank == 2
    assert list(table.not_covered) == ["0"]
    for words in ("Σx of layer '0'", "60 × 60", "90 rows", "above 50", "fewer examples"):
        assert words in table.not_covered["0"]
    with pytest.raises(TooLarge, match="Σx of layer '0'"):
        wc.kronecker_factors(problem)["0"].x.mean  # noqa: B018
    few = wc.conditioning(wc.Problem(model, nn.CrossEntropyLoss(), [(x[:40], integers(3, 40))]))
    assert (few["0"].x.rank, few["0"].x.side, few.not_covered) == (40, "rows", {})


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("at_once", [2**20, 0])
def test_the_place_of_a_product_is_that_among_all(groups: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellcond.curvature.kronecker.matrix_conditioning.MOST_SORTED", at_once)
    x, g = normal(groups, 7).exp() ** 8, normal(groups, 5, seed=1).exp() ** 8
    x[0, 2] = g[-1, 3] = 0.0
    g[0, 0] = g[0, 1]  # a tie
    products = torch.einsum("ci,co->cio", x, g).flatten().sort(descending=True).values
    for place in range(1, int((products > 0).sum()) + 1):
        assert largest_product(x, g, place) == pytest.approx(float(products[place - 1]), rel=1e-11)


# whole networks


@pytest.mark.parametrize("scale", [1e-40, 1e-24, 1e18, 1e30])
@pytest.mark.parametrize("examples", [6, 64])
def test_the_conditioning_of_a_vanished_or_exploded_signal_is_float64s(examples: int, scale: float) -> None:
    """Σx of the second layer and Σ∇h of the first, from rows and from features."""
    model: Any = seeded(lambda: nn.Sequential(nn.Linear(8, 12, bias=False), nn.Linear(12, 3))).float()
    model[0].weight.data *= scale
    model[1].weight.data /= max(scale, 1e-30)
    x, y = normal(examples, 8).float(), integers(3, examples)
    single = wc.conditioning(wc.Problem(model, nn.CrossEntropyLoss(), (x, y)))
    double = wc.conditioning(wc.Problem(model.double(), nn.CrossEntropyLoss(), (x.double(), y)))
    coarse = 1e-2 if scale == 1e-40 else 1e-4  # so small a float32 has few digits itself
    for name, part in (("1", "x"), ("0", "g")):
        result, expected = getattr(single[name], part), getattr(double[name], part)
        assert result.lambda_max == pytest.approx(expected.lambda_max, rel=coarse)
        assert result.trace == pytest.approx(expected.trace, rel=coarse)
        assert result.kappa[0.2] == pytest.approx(expected.kappa[0.2], rel=10 * coarse)
        assert result.side == expected.side


@pytest.mark.parametrize("form", ["position", "patch"])
@pytest.mark.parametrize("name", ["conv2d_grouped", "conv2d_depthwise", "transposed2d_grouped", "conv1d"])
def test_convolutions_keep_the_numbers_of_small_signals(name: str, form: Any) -> None:
    build, shape = CONVOLUTIONS[name]
    tables = {}
    for dtype in (torch.float32, torch.float64):
        model = nn.Sequential(seeded(build), nn.Flatten()).to(dtype)
        x = (normal(4, *shape) * 1e-26).to(dtype)
        target = torch.zeros_like(model(x))
        problem = wc.Problem(model, lambda f, y: 1e-26 * (f - y - 1).square().mean(), (x, target))
        tables[dtype] = wc.conditioning(problem, convolution=form)["0"]
    for part in ("x", "g"):
        single, double = (getattr(table, part) for table in tables.values())
        assert_same(single.values / double.lambda_max, double.values / double.lambda_max, 1e-5)


@pytest.mark.slow
def test_150_layers_in_float32_are_those_in_float64() -> None:
    model = mlp([32] + [64] * 150 + [10], norm="none", init="lecun", seed=0).float()
    x, y = normal(256, 32).float().double(), integers(10, 256)
    double = wc.conditioning(wc.Problem(model.double(), nn.CrossEntropyLoss(), (x, y)))
    single = wc.conditioning(wc.Problem(model.float(), nn.CrossEntropyLoss(), (x.float(), y)))
    for name in double:
        for part in ("x", "g"):
            result, expected = getattr(single[name], part), getattr(double[name], part)
            assert result.lambda_max == pytest.approx(
                expected.lambda_max, rel=2e-3
            )  # a unit at its threshold is on in one of them
            level = 64 * torch.finfo(torch.float32).eps * expected.lambda_max
            surely, maybe = (int((expected.values > factor * level).sum()) for factor in (1.2, 0.8))
            assert surely <= result.rank <= maybe
