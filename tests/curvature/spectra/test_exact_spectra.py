"""Exact spectra: limits are checked first, and the scale of a matrix does not matter, in float32 either."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from references import assert_same, dense_ggn
from torch import Tensor, nn
from zoo import ARCHITECTURES, CLASSES, integers, mlp, normal, seeded

import wellcond as wc
from wellcond.curvature.fisher import Fisher
from wellcond.curvature.spectra.exact import Spectrum, block_spectra
from wellcond.errors import NonFinite, TooLarge
from wellcond.measurements.blocks.local_hessian import local_hessian

SCALES = [1e-30, 1e-22, 1e-12, 1.0, 1e12, 1e30]


def exact_values(matrix: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(matrix.double())


# matrices


@pytest.mark.parametrize("scale", SCALES)
def test_a_matrix_of_any_scale(scale: float) -> None:
    a = normal(6, 6)
    matrix = ((a + a.T) * scale).float()
    exact = wc.spectrum(matrix)
    assert exact.values.dtype == torch.float32
    assert_same(exact.values.double() / scale, exact_values(matrix) / scale, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool])
def test_other_dtypes_are_taken_as_the_numbers_they_hold(dtype: torch.dtype) -> None:
    matrix = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1]]).to(dtype)
    exact = wc.spectrum(matrix)
    assert_same(exact.values, exact_values(matrix))


def test_the_rank_of_a_coarse_matrix_is_that_of_its_rounding() -> None:
    a = normal(20, 3)
    assert wc.spectrum((a @ a.T).to(torch.float32)).rank == 3
    assert wc.spectrum((a @ a.T).to(torch.bfloat16)).rank <= 3


@pytest.mark.parametrize(("matrix", "error", "message"), [
    (torch.tensor([[1.0, 2.0], [0.0, 1.0]]), ValueError, "not symmetric"),
    (torch.tensor([[1, 2], [3, 1]]), ValueError, "not symmetric"),
    (torch.tensor([[1.0, math.nan], [math.nan, 1.0]]), NonFinite, "NaN or inf"),
    (torch.tensor([[1.0, 0.0], [0.0, math.inf]]), NonFinite, "NaN or inf"),
    (torch.ones(2, 3), ValueError, "square"),
    (torch.ones(2, 2, 2), ValueError, "square"),
    (torch.ones(0, 0), ValueError, "square"),
    (torch.ones(2, 2, dtype=torch.complex64), ValueError, "real"),
    (torch.eye(11), TooLarge, "11 rows, above the limit of 10"),
])  # fmt: skip
def test_what_is_no_symmetric_matrix_within_the_limit_is_refused(matrix: Tensor, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        wc.spectrum(matrix, limit=10)


def test_asymmetry_within_rounding_is_rounding() -> None:
    a = normal(30, 30).float()
    matrix = a @ a.T
    matrix[0, 1] *= 1 + 3e-7
    assert_same(wc.spectrum(matrix).values, exact_values(a.double() @ a.double().T), 1e-5)


# networks of any scale


def scaled_network(scale: float, examples: int, kind: str) -> tuple[nn.Module, Tensor, Tensor]:
    """One whose outputs are of order one, and whose first weights have gradients of order `scale`."""
    layers = {
        "linear": lambda: [nn.Linear(4, 3, bias=False)],
        "conv": lambda: [nn.Conv1d(2, 3, 2, bias=False), nn.Flatten()],
    }[kind]()
    model = seeded(lambda: nn.Sequential(*layers))
    x = normal(examples, 4) if kind == "linear" else normal(examples, 2, 4)
    model[0].weight.data /= max(scale, 1.0)
    targets = normal(examples, 3 if kind == "linear" else 9, seed=1)
    return model.float(), (x * scale).float(), targets.float()


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("examples", [1, 30], ids=["gram", "dense"])
@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e-10, 1.0, 1e10, 1e25])
def test_a_factor_of_any_scale(scale: float, examples: int, kind: str) -> None:
    model, x, y = scaled_network(scale, examples, kind)
    exact = wc.spectrum(wc.GGN(wc.Problem(model, nn.MSELoss(), (x, y))))
    assert exact.side == ("gram" if examples == 1 else "dense")
    expected = dense_ggn(model.double(), nn.MSELoss(), (x.double() / scale, y.double()))
    assert_same(exact.values.double() / scale**2, torch.linalg.eigvalsh(expected), 1e-5)
    assert exact.rank == int(torch.linalg.matrix_rank(expected))
    assert exact.values.dtype == (torch.float32 if 1e-10 <= scale <= 1e10 else torch.float64)
    assert float(exact.values[0]) >= -1e-6 * exact.lambda_max


@pytest.mark.parametrize("operator", [wc.Hessian, wc.GGN])
@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e-10, 1.0, 1e10])
def test_products_of_any_scale(scale: float, operator: Any) -> None:
    def log_cosh(outputs: Tensor, targets: Tensor) -> Tensor:  # no likelihood, so there is no factor
        return (outputs - targets).cosh().log().mean()

    model, x, y = scaled_network(scale, 30, "linear")
    problem = wc.Problem(model, log_cosh, (x, y))
    exact = wc.spectrum(operator(problem))
    start = model.double()[0].weight.detach().flatten()
    expected = torch.autograd.functional.hessian(
        lambda w: log_cosh(x.double() @ w.view(3, 4).T, y.double()), start
    )  # fmt: skip
    assert_same(exact.values.double() / scale**2, torch.linalg.eigvalsh(expected / scale**2), 1e-4)


def test_a_matrix_of_zeros_is_one() -> None:
    problem = wc.Problem(nn.Linear(2, 1), lambda o, _: o.mean(), (torch.ones(3, 2), torch.zeros(3)))
    assert wc.spectrum(wc.Hessian(problem)).values.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("shape", [(2, 6), (6, 2)], ids=["gram", "dense"])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e25])
def test_a_local_factor_of_any_scale(scale: float, shape: tuple[int, int]) -> None:
    outputs, inputs = shape
    model = seeded(lambda: nn.Sequential(nn.Linear(inputs, outputs, bias=False), nn.Tanh(), nn.Linear(outputs, 1)))
    weight = model[0].weight.detach().clone()
    model[0].weight.data *= scale
    batch = (normal(1, inputs) / max(scale, 1.0)).float(), torch.zeros(1, 1)
    exact = wc.spectrum(local_hessian(wc.Problem(model.float(), nn.MSELoss(), batch), "0").z.gauss_newton)
    assert_same(exact.values.double() / scale**2, torch.linalg.eigvalsh(weight.T @ weight), 1e-5)


def test_gradients_that_overflow_are_refused() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 3, bias=False), nn.Tanh(), nn.Linear(3, 1))).float()
    model[0].weight.data *= 1e-30
    model[2].weight.data *= 1e15
    problem = wc.Problem(model, nn.MSELoss(), ((normal(5, 4) * 1e30).float(), torch.zeros(5, 1)))
    with pytest.raises(NonFinite, match=r"'0\.weight' are NaN or inf"):
        wc.spectrum(wc.GGN(problem))


def test_a_rank_in_float64_is_that_of_the_data() -> None:
    values = torch.tensor([1e-70, 1e-62, 1e-60], dtype=torch.float64)
    assert Spectrum(values, "dense", torch.float32).rank == 2
    assert Spectrum(values, "dense").rank == 3
    assert Spectrum(values, "dense", torch.float32).condition_number(1.0) == math.inf
    assert Spectrum(torch.zeros(3, dtype=torch.float64), "dense", torch.float32).rank == 0


# limits


def wide(classes: int) -> wc.Problem:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, classes))).float()
    return wc.Problem(model, nn.CrossEntropyLoss(), (normal(8, 4).float(), integers(classes, 8)))


def test_a_matrix_too_large_on_both_sides_is_refused_before_any_pass() -> None:
    problem = wide(100_000)
    for operator in (wc.Fisher(problem), wc.GGN(problem), wc.Fisher(problem).layer("0.bias")):
        before = problem.cost
        with pytest.raises(TooLarge, match=r"800,000 rows or more.*limit of 10,000.*labels=\"sample\""):
            wc.spectrum(operator)
        assert (problem.cost - before).backwards == 0
    assert wc.spectrum(wc.Fisher(problem, "sample")).side == "gram"


def test_rows_that_do_not_fit_into_memory_are_refused_or_not_formed() -> None:
    def norm(x: Tensor) -> Tensor:
        return x - x.mean(0)

    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return norm(x)

    model = seeded(lambda: nn.Sequential(nn.Linear(1000, 1000), Norm(), nn.Linear(1000, 10))).float()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (normal(200, 1000).float(), integers(10, 200)))
    with pytest.raises(TooLarge, match="GB"):  # 2000 rows of a million numbers, one by one
        wc.spectrum(wc.Fisher(problem))


def test_with_more_labels_than_parameters_the_matrix_itself_is_formed() -> None:
    model = seeded(lambda: nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, CLASSES)))
    batch = integers(5, 1, 60), integers(CLASSES, 1, 60)
    problem = wc.Problem(model, lambda o, t: nn.functional.cross_entropy(o.flatten(0, 1), t.flatten()), [batch])
    fisher = wc.Fisher(problem)
    assert 2 * fisher.shape[0] < 60 * CLASSES
    before = problem.cost
    exact = wc.spectrum(fisher)
    assert (problem.cost - before).matvecs == fisher.shape[0]
    assert_same(exact.values, exact_values(fisher.dense()))


def test_the_cotangents_of_a_batch_are_never_all_formed(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []

    def stack(tensors: Any, *args: Any) -> Tensor:
        held.append(len(tensors) * tensors[0].numel())
        return stacked(tensors, *args)

    stacked = torch.stack
    monkeypatch.setattr(torch, "stack", stack)
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 50)))
    fisher = wc.Fisher(wc.Problem(model, nn.CrossEntropyLoss(), (normal(20, 4), integers(50, 20))), layers="0")
    exact = wc.spectrum(fisher)
    assert max(held, default=0) < 50 * 20 * 50
    assert_same(exact.values, exact_values(fisher.dense()))


def test_blocks_are_limited_by_themselves() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    fisher = Fisher(case.problem())
    blocks = {name: [name] for name in fisher.names} | {"": list(fisher.names)}
    dense = fisher.dense()
    spectra = block_spectra(fisher, blocks)
    start = 0
    for name, p in fisher.params.items():
        block = dense[start : start + p.numel(), start : start + p.numel()]
        assert_same(spectra[name].values, exact_values(block))
        start += p.numel()
    assert_same(spectra[""].values, exact_values(dense))
    widest = max(p.numel() for p in fisher.params.values())
    alone = block_spectra(fisher, {name: [name] for name in fisher.names}, limit=widest)
    assert all(torch.allclose(alone[name].values, spectra[name].values) for name in fisher.names)
    with pytest.raises(TooLarge):
        block_spectra(fisher, blocks, limit=3)


def test_several_small_layers_need_no_decomposition_of_the_whole() -> None:
    model = seeded(mlp).float()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (normal(40, 4).float(), integers(CLASSES, 40)))
    table = wc.conditioning(problem, fisher_up_to=1000)
    for name in table:
        expected = exact_values(wc.Fisher(problem, layers=f"{name}.weight").dense())
        assert_same(table[name].fisher.values, expected, 1e-5)
