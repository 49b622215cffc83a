"""The conditioning table against numpy on hand-made moments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from layer_references import gradient_moment, input_moment, layer_gradients, row_moment
from layer_zoo import LAYERS
from references import assert_same, dense_fisher
from torch import nn
from zoo import ARCHITECTURES, Case, Written, classifier, integers, mlp, normal, seeded, split

import wellcond as wc
from wellcond.errors import NonFinite, UnknownLayer

P = (0.2, 0.5, 0.8, 1.0)


def moments(case: Case, layer: str) -> tuple[np.ndarray, np.ndarray]:
    x, _, ((_, g),) = layer_gradients(case.model, layer, case.terms, case.batch, "data", case.batchnorm)
    return row_moment(x.detach())[0].numpy(), row_moment(g)[0].numpy()


def kappa(values: np.ndarray, p: float) -> float:
    """λ_max / λ_⌈p·d⌉, counted from the largest."""
    descending = sorted(values.tolist(), reverse=True)
    chosen = descending[math.ceil(p * len(descending)) - 1]
    return descending[0] / chosen if chosen > len(descending) * 2.3e-16 * descending[0] else math.inf


@pytest.mark.parametrize("layer", ["0", "2", "4"])
def test_magnitude_conditioning_rank_and_trace_are_numpys(layer: str) -> None:
    case = classifier(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)),
        normal(30, 4),
        30,
    )
    entry = wc.conditioning(case.problem())[layer]
    for part, moment in zip((entry.x, entry.g), moments(case, layer), strict=True):
        values = np.linalg.eigvalsh(moment)
        rank = int(np.linalg.matrix_rank(moment, hermitian=True))
        np.testing.assert_allclose(part.values.numpy(), values, rtol=1e-9, atol=1e-14 * values.max())
        assert part.lambda_max == pytest.approx(values.max(), rel=1e-9)
        assert part.trace == pytest.approx(np.trace(moment), rel=1e-9)
        assert part.rank == rank
        for p in P:
            if math.ceil(p * len(values)) <= rank:
                assert part.kappa[p] == pytest.approx(kappa(values, p), rel=1e-7)  # rounding of a small λ
            else:
                assert part.kappa[p] == math.inf


def test_singular_moments_have_an_infinite_condition_number() -> None:
    """Σ_c (q − y)_c = 0 of cross-entropy; fewer examples than features; in float32, two equal columns (λ is 1e-8)."""
    gradient = wc.conditioning(ARCHITECTURES["mlp_tanh"]().problem())["2"].g
    few = wc.conditioning(classifier(mlp, normal(3, 4), 3).problem())["0"].x
    x = normal(50, 2).float()
    batch = (torch.cat([x, x[:, :1]], 1), integers(3, 50))
    equal = wc.conditioning(wc.Problem(nn.Linear(3, 3), nn.CrossEntropyLoss(), batch))[""].x
    assert [(part.rank, part.kappa[1.0]) for part in (gradient, few, equal)] == [(r, math.inf) for r in (2, 3, 2)]
    assert math.isfinite(few.kappa[0.5])


def test_kronecker_lambda_max_and_condition_number_are_the_products() -> None:
    """Proposition 1; and its whole spectrum is NumPy's."""
    problem = wc.Problem(mlp(), nn.MSELoss(), (normal(20, 4), normal(20, 3)))
    for layer in wc.conditioning(problem).values():
        assert layer.kronecker.lambda_max == pytest.approx(layer.x.lambda_max * layer.g.lambda_max, rel=1e-12)
        assert layer.kronecker.kappa[1.0] == pytest.approx(layer.x.kappa[1.0] * layer.g.kappa[1.0], rel=1e-9)
    case = classifier(mlp, normal(20, 4), 20)
    product = wc.conditioning(case.problem())["0"].kronecker
    values = np.linalg.eigvalsh(np.kron(*moments(case, "0")))
    np.testing.assert_allclose(product.values.numpy(), values, rtol=1e-9, atol=1e-14 * values.max())
    assert product.kappa[0.5] == pytest.approx(kappa(values, 0.5), rel=1e-9)


@pytest.mark.parametrize("name", ["conv2d_grouped", "conv2d_depthwise", "transposed2d_grouped"])
def test_groups_only_meet_their_own_factor(name: str) -> None:
    """A grouped convolution's approximate Fisher matrix is block-diagonal, one Kronecker product a group."""
    case = LAYERS[name]()
    entry = wc.conditioning(case.problem(), convolution="patch")["layer"]
    x, h, gradients = layer_gradients(case.model, "layer", case.terms, case.batch, "data", "running")
    xs = input_moment(case.model.layer, x, h, "patch").numpy()
    gs = gradient_moment(case.model.layer, x, gradients, "patch").numpy()
    values = np.sort(np.concatenate([np.linalg.eigvalsh(np.kron(a, b)) for a, b in zip(xs, gs, strict=True)]))
    np.testing.assert_allclose(entry.kronecker.values.numpy(), values, atol=1e-13 * values.max())
    assert len(entry.kronecker.values) == case.model.layer.weight.numel()


@pytest.mark.parametrize("name", ["mlp_tanh", "cnn_batch", "cnn_running"])
def test_small_layers_get_the_exact_spectrum_of_their_fisher_matrix(name: str) -> None:
    case = ARCHITECTURES[name]()
    table = wc.conditioning(case.problem(), fisher_up_to=18)
    whole = dense_fisher(case.model, case.terms, case.batch, "model", case.batchnorm)
    start = 0
    for full, p in case.model.named_parameters():
        rows = slice(start, start + p.numel())
        start += p.numel()
        layer, _, part = full.rpartition(".")
        if part != "weight" or layer not in table:
            continue
        if p.numel() > 18:
            assert table[layer].fisher is None
        else:
            assert_same(table[layer].fisher.values, torch.linalg.eigvalsh(whole[rows, rows]))


def test_a_model_that_is_one_layer_is_its_own_table() -> None:
    model = seeded(lambda: nn.Linear(3, 2))
    batch = (normal(8, 3), normal(8, 2))
    table = wc.conditioning(wc.Problem(model, nn.MSELoss(), batch), fisher_up_to=100)
    assert list(table) == [""]
    assert_same(table[""].x.values, torch.linalg.eigvalsh(row_moment(batch[0])[0]))
    assert len(table[""].fisher.values) == 6


def test_several_batches_are_the_joined_data() -> None:
    case = ARCHITECTURES["mlp_relu"]()
    whole, parts = (wc.conditioning(case.problem(batches=b)) for b in ([case.batch], split(case.batch, [4, 2])))
    for name in whole:
        assert_same(parts[name].x.values, whole[name].x.values, 1e-12)
        assert_same(parts[name].g.values, whole[name].g.values, 1e-12)


def test_the_table_says_how_it_was_made_and_what_is_missing() -> None:
    table = wc.conditioning(ARCHITECTURES["cnn_running"]().problem(), convolution="patch", labels="sample")
    text = str(table)
    assert "batchnorm='running', convolution='patch', labels='sample'" in text
    assert (table.cost.forwards, table.cost.backwards) == (1, 1)
    assert str(table.cost) in text
    assert "not covered: 1: BatchNorm2d" in text
    assert list(table) == ["0", "4", "7"]
    assert table["0.weight"] is table["0"]
    with pytest.raises(UnknownLayer, match="'7'"):
        table["8"]


def test_rows_hold_every_number_of_the_table() -> None:
    problem = wc.Problem(mlp(), nn.MSELoss(), (normal(20, 4), normal(20, 3)))
    table = wc.conditioning(problem, fisher_up_to=50)
    rows = {(row.layer, row.quantity): row.value for row in table.rows(step=4)}
    assert {row.step for row in table.rows(step=4)} == {4}
    shares = {0.2: "kappa_fifth", 0.5: "kappa_half", 0.8: "kappa_four_fifths", 1.0: "kappa_all"}
    for name, layer in table.items():
        parts = {"input": layer.x, "gradient": layer.g, "kronecker": layer.kronecker, "fisher": layer.fisher}
        for matrix, part in parts.items():
            for quantity in ("lambda_max", "rank", "trace"):
                assert rows.pop((name, f"{matrix}_{quantity}")) == getattr(part, quantity)
            assert rows.pop((name, f"{matrix}_dimension")) == len(part.values)
            assert {p: rows.pop((name, f"{matrix}_{kappa}")) for p, kappa in shares.items()} == part.kappa
    assert rows == {}
    other = wc.conditioning(problem, p=(0.3, 0.5))
    assert other["0"].x.kappa.keys() == {0.3, 0.5}
    assert {row.quantity for row in other.rows() if "kappa" in row.quantity} == {
        f"{matrix}_kappa_half" for matrix in ("input", "gradient", "kronecker")
    }


def test_an_infinite_gradient_names_the_layer() -> None:
    root = Written(lambda _m, x: x.clamp_min(0).sqrt())
    model: Any = seeded(lambda: nn.Sequential(nn.Linear(4, 3), root))
    model[0].weight.data.zero_()
    model[0].bias.data.zero_()
    with pytest.raises(NonFinite, match="layer '0'"):
        wc.conditioning(wc.Problem(model, nn.CrossEntropyLoss(), (normal(3, 4), integers(3, 3))))
